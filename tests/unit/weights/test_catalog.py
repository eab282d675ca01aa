"""Names to files."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from plait.errors import ModelFileError
from plait.weights import catalog, hub
from plait.weights.catalog import CATALOG, DEFAULT_MODEL, model_dir, pull, resolve_model
from plait.weights.pull import CatalogModel


@pytest.fixture(autouse=True)
def own_model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "models"
    monkeypatch.setenv("PLAIT_MODEL_DIR", str(directory))
    return directory


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of models that were to be pulled; nothing is downloaded."""
    names: list[str] = []

    def fake(model: CatalogModel, directory: Path, *, on_progress: object) -> Path:
        names.append(model.name)
        return directory / model.file_name

    monkeypatch.setattr(catalog, "pull_model", fake)
    return names


def test_catalogue_is_consistent() -> None:
    assert DEFAULT_MODEL in CATALOG
    assert len({model.file_name for model in CATALOG.values()}) == len(CATALOG)
    for name, model in CATALOG.items():
        assert model.name == name
        assert sum(part.num_bytes for part in model.parts) == model.num_bytes
        assert all(len(digest) == 64 for digest in [model.sha256, *(part.sha256 for part in model.parts)])
        assert all("==" in part.requirement for part in model.parts)
        if len(model.parts) == 1:
            assert model.parts[0].sha256 == model.sha256


def test_model_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert model_dir() == tmp_path / "models"
    monkeypatch.setenv("PLAIT_MODEL_DIR", "relative")
    assert model_dir() == Path.cwd() / "relative"
    monkeypatch.setenv("PLAIT_MODEL_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert model_dir() == tmp_path / "cache" / "plait" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert model_dir() == tmp_path / ".cache" / "plait" / "models"


def test_path_stands_for_itself(tmp_path: Path, pulled: list[str]) -> None:
    file = tmp_path / "any name.bin"
    file.write_bytes(b"x")
    assert resolve_model(str(file)) == file
    assert pulled == []


def test_catalogue_name_is_pulled_once(own_model_dir: Path, pulled: list[str]) -> None:
    model = CATALOG[DEFAULT_MODEL]
    assert resolve_model(DEFAULT_MODEL) == own_model_dir / model.file_name
    assert pulled == [DEFAULT_MODEL]
    own_model_dir.mkdir()
    with (own_model_dir / model.file_name).open("wb") as file:
        file.truncate(model.num_bytes)
    assert resolve_model(DEFAULT_MODEL) == own_model_dir / model.file_name
    assert pulled == [DEFAULT_MODEL]


@pytest.mark.parametrize("path", ["/absent/model.gguf", "./model", "absent.gguf", "a/absent.gguf", "~/m"])
def test_absent_path(path: str, pulled: list[str]) -> None:
    with pytest.raises(ModelFileError, match="there is no file"):
        resolve_model(path)


@pytest.mark.parametrize("name", ["gpt-17", "", "a b", "org/name/more", "../x/y", "org/../up"])
def test_unknown_name_lists_what_exists(
    name: str, pulled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "pull_from_hub", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(ModelFileError) as caught:
        pull(name)
    assert all(known in str(caught.value) for known in CATALOG)
    assert repr(name) in str(caught.value)


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="holds no GGUF file"):
        resolve_model(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"")
    assert resolve_model(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"several GGUF files; name one of them: a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


def fake_hub(
    monkeypatch: pytest.MonkeyPatch, files: list[str], error: Exception | None = None
) -> list[tuple[str, str]]:
    asked: list[tuple[str, str]] = []

    def download(repository: str, file_name: str) -> str:
        if error is not None:
            raise error
        asked.append((repository, file_name))
        return f"/hub/{file_name}"

    module = SimpleNamespace(list_repo_files=lambda repository: files, hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_hub_name_with_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, [])
    assert resolve_model("org/name:sub/model-q4.gguf") == Path("/hub/sub/model-q4.gguf")
    assert asked == [("org/name", "sub/model-q4.gguf")]


def test_hub_name_with_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["README.md", "mmproj-x.gguf", "model.gguf", "big-00001-of-00002.gguf"]
    asked = fake_hub(monkeypatch, files)
    assert pull("org/name") == Path("/hub/model.gguf")
    assert asked == [("org/name", "model.gguf")]


def test_hub_name_that_is_not_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, ["b.gguf", "a.gguf"])
    with pytest.raises(ModelFileError, match=r"choose one: org/name:a\.gguf, org/name:b\.gguf"):
        pull("org/name")
    fake_hub(monkeypatch, ["model.safetensors"])
    with pytest.raises(ModelFileError, match="holds no GGUF file"):
        pull("org/name")


def test_hub_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, ["m.gguf"], RuntimeError("401 refused\nRequest ID: 7"))
    with pytest.raises(ModelFileError, match=r"^cannot get org/name from the hub: 401 refused$"):
        pull("org/name")


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), socket.gaierror(-2, "not known")])
def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    fake_hub(monkeypatch, ["m.gguf"], error)
    phases: list[str] = []
    with pytest.raises(
        ModelFileError, match=r"^cannot get org/name from the hub: it cannot be reached \(.*HF_ENDPOINT$"
    ):
        pull("org/name", lambda progress: phases.append(progress.phase))
    assert phases == ["asking the hub"]


def test_the_hub_s_retries_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real package gives its logger a level of its own when its module for logging is imported."""
    logger = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    package = tmp_path / "huggingface_hub"
    (package / "utils").mkdir(parents=True)
    (package / "utils" / "__init__.py").touch()
    (package / "utils" / "logging.py").write_text(
        "import logging\nlogging.getLogger('huggingface_hub').setLevel(logging.WARNING)\n"
    )
    (package / "__init__.py").write_text(
        "def hf_hub_download(repository, name):\n"
        "    import huggingface_hub.utils.logging\n"
        "    import logging\n"
        "    logging.getLogger('huggingface_hub.utils').warning('Retrying in 1s [Retry 1/5].')\n"
        "    return '/hub/' + name\n"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", records.append)
    logger.addHandler(handler)
    try:
        assert pull("org/name:m.gguf") == Path("/hub/m.gguf")
    finally:
        logger.removeHandler(handler)
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            del sys.modules[name]
    assert records == []


def test_hub_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match=r"pip install 'plait\[hub\]'"):
        pull("org/name")


def test_hub_names() -> None:
    assert hub.is_hub_name("org/name-1.5_x")
    assert hub.is_hub_name("org/name:file.gguf")
    for bad in ("name", "a/b/c", "a/b:", "../a", "a/..", "a/b:../c", "/abs/path"):
        assert not hub.is_hub_name(bad)

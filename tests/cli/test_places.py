"""Model folders that are no folders or cannot be written, and models that cannot do what is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.weights import catalog
from plait.weights.catalog import CATALOG
from tests.fakes.run_cli import run

SMALL = CATALOG["smollm2-135m-instruct"]


@pytest.fixture(params=["file", "below", "home"])
def no_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file where the model folder should be; returns the file."""
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.delenv("PLAIT_MODEL_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if request.param == "home":
        monkeypatch.setenv("HOME", str(file))
    else:
        monkeypatch.setenv("PLAIT_MODEL_DIR", str(file if request.param == "file" else file / "a" / "b"))
    return file


def test_doctor_finds_a_file_in_place_of_the_folder(
    capsys: pytest.CaptureFixture[str], no_folder: Path
) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    bad = [line for line in out.splitlines() if line.startswith("BAD")]
    assert len(bad) == 1
    assert f"{no_folder} is a file, not a folder; PLAIT_MODEL_DIR can name another folder" in bad[0]


@pytest.mark.parametrize("command", ["pull", "generate", "inspect", "chat"])
def test_commands_say_what_to_do_without_a_folder(
    capsys: pytest.CaptureFixture[str], no_folder: Path, command: str
) -> None:
    arguments = ["generate", SMALL.name, "x"] if command == "generate" else [command, SMALL.name]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (1, "")
    assert err == (
        f"plait: cannot pull {SMALL.name}: {no_folder} is a file where a folder is needed; "
        "PLAIT_MODEL_DIR can name another folder\n"
    )


def test_doctor_finds_a_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may write everywhere, so the question itself is answered otherwise."""
    monkeypatch.setenv("PLAIT_MODEL_DIR", str(tmp_path / "models"))
    monkeypatch.setattr("plait.cli.doctor.os.access", lambda path, mode: Path(path) != tmp_path)
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert f"{tmp_path} cannot be written" in out


def test_a_folder_that_cannot_be_written_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setenv("PLAIT_MODEL_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = run(capsys, "pull", SMALL.name)
    assert code == 1
    assert "models cannot be written (Permission denied); PLAIT_MODEL_DIR can name another folder" in err


def test_a_home_that_nobody_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_MODEL_DIR", "~no-such-user/models")
    code, _, err = run(capsys, "pull", SMALL.name)
    assert code == 1
    assert err.startswith("plait: no folder for models: ")
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "BAD model folder" in out


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small model's file with the right size and zeros in it."""
    path = tmp_path / SMALL.file_name
    with path.open("wb") as file:
        file.truncate(SMALL.num_bytes)
    monkeypatch.setenv("PLAIT_MODEL_DIR", str(tmp_path))
    return path


@pytest.mark.parametrize("arguments", [["generate", "x"], ["chat"], ["inspect"], ["bench", "step"]])
@pytest.mark.parametrize("by_path", [False, True])
def test_a_damaged_model_is_to_be_pulled_again(
    capsys: pytest.CaptureFixture[str], damaged: Path, arguments: list[str], by_path: bool
) -> None:
    if by_path:
        where = len(arguments) - 1 if arguments[0] == "generate" else len(arguments)
        arguments = [*arguments[:where], str(damaged), *arguments[where:]]
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert "not a GGUF file" in err
    assert f"(rm {damaged}; plait pull {SMALL.name})" in err


def test_other_damaged_files_are_not_ours_to_renew(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x" * 100)
    _, _, err = run(capsys, "inspect", str(path))
    assert "not a GGUF file" in err
    assert "plait pull" not in err


def test_doctor_reads_the_models(capsys: pytest.CaptureFixture[str], damaged: Path) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert f"BAD model          {SMALL.name}: the file is not what was pulled" in out


@pytest.mark.parametrize("command", ["chat", "generate"])
@pytest.mark.parametrize("max_tokens", ["0", "-1", "x"])
def test_max_tokens_is_checked_before_the_model_loads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, max_tokens: str
) -> None:
    monkeypatch.setattr(catalog, "resolve_model", lambda *arguments: pytest.fail("the model was opened"))
    prompt = ["x"] if command == "generate" else []
    code, out, err = run(capsys, command, *prompt, "--max-tokens", max_tokens)
    assert (code, out) == (2, "")
    assert "--max-tokens" in err


@pytest.mark.parametrize("name", ["x" * 300, "x" * 4000, "a/" * 1500 + "b"])
def test_names_that_no_file_can_have(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, _, err = run(capsys, "inspect", name)
    assert code == 1
    assert "there is no model" in err
    assert len(err) < 500


@pytest.mark.model
def test_a_model_without_a_template_cannot_chat(
    capsys: pytest.CaptureFixture[str], gemma3_path: Path
) -> None:
    for arguments in (["chat", str(gemma3_path)], ["generate", "--chat", str(gemma3_path), "x"]):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (1, "")
        assert "has no chat template, so it cannot chat; it continues plain prompts (plait generate)" in err
        assert "plait pull" not in err

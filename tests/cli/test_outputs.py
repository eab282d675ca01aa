"""No command overwrites what it reads, whichever flag names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.run_cli import run

CONTENT = b"GGUF\x03\0\0\0 not really"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "MODEL", "Hi", "--trace", "OUT"],
        ["chat", "MODEL", "--trace", "OUT"],
        ["serve", "MODEL", "--port", "0", "--trace", "OUT"],
        ["bench", "step", "MODEL", "--json", "OUT"],
        ["bench", "kernels", "MODEL", "--json", "OUT"],
        ["bench", "kernels", "MODEL", "--svg", "OUT"],
        ["bench", "concurrency", "MODEL", "--json", "OUT"],
        ["bench", "concurrency", "MODEL", "--svg", "OUT"],
        ["bench", "queues", "--json", "OUT"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("by_link", [False, True])
def test_a_model_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, arguments: list[str], by_link: bool
) -> None:
    out = model
    if by_link:
        out = tmp_path / "result.json"
        out.symlink_to(model)
    names = {"MODEL": str(model), "OUT": str(out)}
    code, _, err = run(capsys, *(names.get(word, word) for word in arguments))
    assert code == 2, err
    assert f"{arguments[-2]}: {out} " in err
    assert model.read_bytes() == CONTENT


def test_a_model_that_a_variable_names_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_MODEL", str(model))
    code, _, err = run(capsys, "generate", "Hi", "--trace", str(model))
    assert (code, err) == (2, f"plait: --trace: {model} is {model}, which is read; name another file\n")
    assert model.read_bytes() == CONTENT


def test_a_configuration_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plait.yaml"
    file.write_text("{model: x}")
    code, _, err = run(capsys, "generate", "Hi", "--config", str(file), "--trace", str(file))
    assert code == 2
    assert "which is read" in err
    assert file.read_text() == "{model: x}"


def test_a_load_is_not_overwritten(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    from plait.bench.concurrency.scenario import MODES_FOLDER

    load = tmp_path / "load.json"
    load.write_bytes((MODES_FOLDER / "chat.json").read_bytes())
    code, _, err = run(capsys, "bench", "concurrency", str(model), "--loads", str(load), "--json", str(load))
    assert code == 2
    assert "which is read" in err
    assert load.read_bytes() == (MODES_FOLDER / "chat.json").read_bytes()


def test_two_results_are_two_files(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    same = str(tmp_path / "same")
    code, _, err = run(capsys, "bench", "kernels", str(model), "--json", same, "--svg", same)
    assert code == 2
    assert "--json and --svg name the same file" in err


@pytest.mark.parametrize("target", ["/dev/full", "/dev/null"])
def test_a_trace_is_a_file(capsys: pytest.CaptureFixture[str], model: Path, target: str) -> None:
    code, _, err = run(capsys, "generate", str(model), "Hi", "--trace", target)
    assert code == 2
    assert f"--trace: {target} is not a file that can be replaced" in err

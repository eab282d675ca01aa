"""The command line without a model: usage, errors, exit codes."""

from __future__ import annotations

import pytest

from plait.cli import main
from plait.cli.app import build_app
from plait.config.load import all_fields, field_info
from tests.fakes.run_cli import run


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    for command in ("serve", "generate", "chat", "pull", "inspect", "top", "doctor", "version"):
        assert f"\n  {command} " in out


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[:2] == run(capsys, "--help")[:2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "version") == run(capsys, "--version") == (0, "plait 0.1.0\n", "")


@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_every_setting_of_the_engine_has_a_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    sections = {"engine", "server", "concurrency"} if command == "serve" else {"engine"}
    for field in all_fields():
        assert (f"{field.flag} " in out) == (field.section in sections), field.key
        if field.section in sections and field_info(field).default is not None:
            assert f"{field_info(field).default}]" in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["serv"],
        ["serve", "--no-such-flag"],
        ["generate"],
        ["generate", "a", "b", "c"],
        ["serve", "--port", "many"],
        ["serve", "--process-count", "4"],
        ["serve", "--max-batch-size", "0"],
        ["serve", "--config", "/nowhere/plait.yaml"],
        ["generate", "x", "--max-tokens", "few"],
    ],
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err


def test_errors_are_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", "/nowhere/model.gguf")
    assert (code, out) == (1, "")
    assert err == "plait: there is no file /nowhere/model.gguf\n"


def test_unknown_variable_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_THREADS", "3")
    code, _, err = run(capsys, "serve")
    assert code == 2
    assert "unknown environment variable PLAIT_THREADS" in err


def test_debug_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.errors import ModelFileError

    for arguments in (["--debug", "inspect", "/nowhere.gguf"], ["inspect", "/nowhere.gguf", "--debug"]):
        with pytest.raises(ModelFileError):
            main(arguments)
    monkeypatch.setenv("PLAIT_DEBUG", "1")
    with pytest.raises(ModelFileError):
        main(["inspect", "/nowhere.gguf"])


def test_surprises_are_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("nothing\nto divide")

    monkeypatch.setattr("plait.cli.doctor.examine", fail)
    code, _, err = run(capsys, "doctor")
    assert code == 1
    assert err == "plait: ZeroDivisionError: nothing to divide (run again with --debug for the traceback)\n"


def test_pull_without_a_name_lists_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "pull")
    assert code == 0
    assert "smollm2-135m-instruct" in out
    assert "gemma3-270m" in out


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    for name in ("python", "cpu", "cores", "memory", "extension", "model folder", "smollm2-135m-instruct"):
        assert name in out


def test_doctor_sees_a_wrong_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_PORT", "none")
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "BAD configuration" in out


def test_only_the_wanted_command_has_its_settings() -> None:
    assert build_app("serve") is not build_app()

"""What an output may replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.errors import ConfigError
from plait.output_file import JSON_START, SVG_START, TRACE_START, check_different, check_output, write_output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"{ looks like JSON")
    return path


@pytest.mark.parametrize("link", ["itself", "symlink", "hardlink", "other spelling"])
def test_an_input_is_never_an_output(tmp_path: Path, model: Path, link: str) -> None:
    target = tmp_path / "target.json"
    if link == "symlink":
        target.symlink_to(model)
    elif link == "hardlink":
        target.hardlink_to(model)
    else:
        target = model if link == "itself" else tmp_path / ".." / tmp_path.name / model.name
    with pytest.raises(ConfigError, match=r"--json: .* is .*model\.gguf, which is read; name another file"):
        check_output("--json", target, JSON_START, inputs=[model])


@pytest.mark.parametrize("content", [b"GGUF\x03\0\0\0", b"model: x\n", b"text", b"<svg/>"])
def test_other_content_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds something else than a trace"):
        check_output("--trace", path, TRACE_START)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("start", "content"),
    [
        (JSON_START, b"\n {}"),
        (JSON_START, b""),
        (TRACE_START, TRACE_START + b':"ms","traceEvents":[]}'),
        (SVG_START, b"<svg/>"),
    ],
)
def test_an_earlier_output_may_be_replaced(tmp_path: Path, start: bytes, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    check_output("--json", path, start)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path], "the check leaves nothing behind"


def test_devices_may_be_refused() -> None:
    check_output("--json", Path("/dev/null"), JSON_START)
    with pytest.raises(ConfigError, match="/dev/full is not a file that can be replaced"):
        check_output("--trace", Path("/dev/full"), JSON_START, must_be_file=True)


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "result")
    with pytest.raises(ConfigError, match="--json and --svg name the same file"):
        check_different({"--json": tmp_path / "result", "--svg": link})
    check_different({"--json": tmp_path / "a", "--svg": tmp_path / "b"})
    check_different({"--json": Path("/dev/null"), "--svg": Path("/dev/null")})


def test_writing_goes_through_links_and_replaces_all(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("{" + "long " * 100)
    link.symlink_to(target)
    write_output("--json", link, "{}")
    assert link.is_symlink()
    assert target.read_text() == "{}"
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.write_text("{}")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plait.output_file.os.replace", fail)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_output("--json", target, "{1}")
    assert target.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [target]

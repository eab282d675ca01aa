"""Files that users ask for (``--trace``, ``--json``, ``--svg``): what may be replaced, and how it is replaced.

Knows: paths and first bytes. Must not know: who writes what. One rule for all of them: no output is ever an input or
another output, and a file with other content is left alone, whatever links lead to it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from plait.errors import ConfigError

JSON_START = b"{"
TRACE_START = b'{"displayTimeUnit"'
SVG_START = b"<"
_KINDS = {JSON_START: "a JSON object", TRACE_START: "a trace", SVG_START: "SVG"}


def check_output(
    shown: str, path: Path, start: bytes, *, inputs: Iterable[Path] = (), must_be_file: bool = False
) -> None:
    """That ``path`` can be written and costs nobody anything; leaves no trace of the question.

    Args:
        shown: what users call this output, e.g. ``"--json"``.
        start: how the content begins; an existing file must begin so, too, or be empty.
        inputs: files that are read meanwhile.
        must_be_file: devices and pipes are refused, too.

    Raises:
        ConfigError: names ``shown`` and ``path``.
    """
    for source in inputs:
        if _is_same(path, source):
            raise ConfigError(f"{shown}: {path} is {source}, which is read; name another file")
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21))
        if stat.S_ISREG(mode):
            with open(path, "r+b") as file:
                found = file.read(64).lstrip()[: len(start)]
            if path.stat().st_size and found != start:
                raise ConfigError(
                    f"{shown}: {path} holds something else than {_KINDS[start]}, so it is not overwritten; "
                    "name another file or remove this one"
                )
        elif must_be_file:
            raise ConfigError(f"{shown}: {path} is not a file that can be replaced; name a regular one")
        else:
            with open(path, "ab"):
                return
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"{shown}: {path}: {error.strerror}") from None
    part = part_of(path)
    try:
        try:
            part.open("xb").close()
        finally:  # a signal must not leave it there
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{shown}: {path}: {error.strerror}") from None


def check_different(outputs: Mapping[str, Path]) -> None:
    """That no two outputs, by what users call them, are one file. Raises ConfigError."""
    seen: list[tuple[str, Path]] = []
    for shown, path in outputs.items():
        for other, other_path in seen:
            if _is_same(path, other_path) and (path.is_file() or not path.exists()):
                raise ConfigError(f"{other} and {shown} name the same file, {path}; name two")
        seen.append((shown, path))


def part_of(path: Path) -> Path:
    """A name that nobody else uses, beside the file to which ``path`` leads: for content that is not whole yet."""
    target = Path(os.path.realpath(path))
    return target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")


def put_in_place(part: Path, path: Path) -> None:
    """``part`` takes the place of the file to which ``path`` leads. Raises OSError."""
    os.replace(part, os.path.realpath(path))


def write_output(shown: str, path: Path, text: str) -> None:
    """All of ``text`` or, with a ConfigError, what was there before."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        part = part_of(path)
        try:
            part.write_text(text, encoding="utf-8")
            put_in_place(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{shown}: {path}: {error.strerror}") from None


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)

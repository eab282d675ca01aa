"""What the commands of ``plait bench`` share: where a result goes, and telling what is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STDOUT = "-"


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Says on a terminal's standard error what is measured."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as shown:
        yield lambda text: shown.update(f"measuring {text}")


def give_json(result: Mapping[str, object], path: str | None) -> None:
    """As the last line of standard output, into a file, or nowhere. Raises ConfigError."""
    if path == STDOUT:
        print(json.dumps(result))
    elif path is not None:
        write("--json", Path(path), json.dumps(result, indent=1) + "\n")


def check_writable(flag: str, path: str | None) -> None:
    """Before minutes of measuring, not after. Raises ConfigError."""
    if path is None or path == STDOUT:
        return
    from plait.errors import ConfigError

    is_new = not Path(path).exists()
    try:
        with open(path, "a", encoding="utf-8"):
            pass
        if is_new:
            Path(path).unlink()
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {error.strerror}") from None


def write(flag: str, path: Path, text: str) -> None:
    """Raises ConfigError."""
    from plait.errors import ConfigError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {error.strerror}") from None

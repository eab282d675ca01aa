"""What the commands of ``plait bench`` share: where a result goes, and telling what is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Where a result goes: ``--json`` (``-``: the last line of standard output) and ``--svg``."""

    json: str | None = None
    svg: str | None = None

    def check(self, inputs: Sequence[Path] = ()) -> None:
        """Before minutes of measuring, not after. Raises ConfigError when a file cannot or must not be written."""
        from plait.output_file import JSON_START, SVG_START, check_different, check_output

        starts = {"--json": JSON_START, "--svg": SVG_START}
        named = {"--json": None if self.json == STDOUT else self.json, "--svg": self.svg}
        paths = {flag: Path(path) for flag, path in named.items() if path is not None}
        check_different(paths)
        for flag, path in paths.items():
            check_output(flag, path, starts[flag], inputs=inputs)

    def give(self, result: Mapping[str, object], draw: Callable[[], str] | None = None) -> None:
        """Raises ConfigError."""
        from plait.output_file import write_output

        if self.svg is not None and draw is not None:
            write_output("--svg", Path(self.svg), draw())
        if self.json == STDOUT:
            print(json.dumps(result))
        elif self.json is not None:
            write_output("--json", Path(self.json), json.dumps(result, indent=1) + "\n")

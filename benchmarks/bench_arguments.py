"""What the benchmarks' command lines have in common: numbers with bounds, and errors of one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from plait.errors import PlaitError


def positive(text: str) -> int:
    """For argparse: a whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def positives(text: str) -> tuple[int, ...]:
    """For argparse: the same, several of them, separated by commas."""
    return tuple(positive(part) for part in text.split(","))


def words(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """For argparse: some of ``allowed``, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        for word in text.split(","):
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(allowed)}")
        return tuple(text.split(","))

    return parse


def run_main(name: str, main: Callable[[], None]) -> int:
    """The exit code of a benchmark; an error of plait's takes one line."""
    try:
        main()
    except PlaitError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0

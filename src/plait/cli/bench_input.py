"""What the commands of ``plait bench`` share: lists in flags, and the model that is measured."""

from __future__ import annotations

from pathlib import Path

import typer


def parse_sizes(flag: str, text: str) -> tuple[int, ...]:
    """Raises typer.BadParameter, a usage error."""
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32", param_hint=flag) from None


def parse_words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def resolve_or_pull(model: str | None) -> Path:
    """The file of a model, by default of the default one; pulls it when it is not there, with a progress bar."""
    from plait.cli.progress import PullBar
    from plait.weights.catalog import DEFAULT_MODEL, resolve_model

    with PullBar() as bar:
        return resolve_model(model or DEFAULT_MODEL, bar.update)

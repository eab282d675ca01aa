"""plait version"""

from __future__ import annotations

import typer

from plait import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"plait {__version__}")

"""plait version"""

from __future__ import annotations

from plait import __version__


def version() -> None:
    """Print the version."""
    print(f"plait {__version__}")

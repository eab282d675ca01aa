"""Where plait's files of this user are: one rule for models and packed weights."""

from __future__ import annotations

import os
from pathlib import Path


def place(variable: str, name: str) -> Path:
    """The folder that the environment variable names, else ``plait/<name>`` in the XDG cache. Absolute.

    Raises:
        RuntimeError: this user has no home folder, and no variable names another place.
    """
    chosen = os.environ.get(variable)
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "plait" / name

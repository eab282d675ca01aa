"""plait serves language models on ordinary CPU machines to many clients at once."""

from __future__ import annotations

__version__ = "0.1.0"

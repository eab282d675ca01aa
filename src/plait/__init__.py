"""plait serves language models on ordinary CPU machines to many clients at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.errors import PlaitError
    from plait.offline import LLM, AsyncLLM, CompletionOutput, RequestOutput
    from plait.types import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "PlaitError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_MODULES = {
    "LLM": "plait.offline",
    "AsyncLLM": "plait.offline",
    "CompletionOutput": "plait.offline",
    "PlaitError": "plait.errors",
    "RequestOutput": "plait.offline",
    "SamplingParams": "plait.types",
}


if not TYPE_CHECKING:  # type checkers must see the names above, not `object`

    def __getattr__(name: str) -> object:
        """Public names are imported when they are first used, so that ``import plait`` costs nothing."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

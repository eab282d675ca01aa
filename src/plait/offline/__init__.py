"""Python programs use plait through LLM and AsyncLLM.

Knows: frontend, engine, weights. Must not know: HTTP.
"""

from __future__ import annotations

from plait.offline.async_llm import AsyncLLM
from plait.offline.llm import LLM
from plait.offline.open import close_frontend, open_frontend
from plait.offline.outputs import CompletionOutput, Logprob, RequestOutput

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "close_frontend",
    "open_frontend",
]

"""What a generation gives: plain data, immutable."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from plait.types import FinishReason


class TopLogprob(NamedTuple):
    token_id: int
    token: str
    raw: bytes
    logprob: float


class TextLogprob(NamedTuple):
    """One token with its log probability.

    ``token`` is lossy when the token holds part of a code point; ``raw`` never is. ``text_offset`` counts the
    code points that stand before the token in the text of its choice (or of the prompt).
    """

    token_id: int
    token: str
    raw: bytes
    logprob: float | None
    """None for the first prompt token, which nothing precedes."""
    text_offset: int
    top: tuple[TopLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    """Of this choice, so far."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""


class TextDelta(msgspec.Struct, frozen=True):
    """What one choice gained since its last delta. The last delta of a choice has a finish_reason.

    ``text`` is final: whole code points, never a part of a stop string. It may lag behind ``token_ids`` while
    a code point or a possible stop string is incomplete.
    """

    request_idx: int
    """Which of the requests that were submitted together."""
    index: int
    """Which of the n choices of that request."""
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    logprobs: tuple[TextLogprob, ...] = ()
    """One per token id when asked for."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or the stop token id (not EOS) that ended the choice."""
    prompt_logprobs: tuple[TextLogprob, ...] | None = None
    """Once per request, when asked for: one per prompt token."""
    error: str | None = None
    """Why the choice ended with FinishReason.ERROR."""

    def then(self, later: TextDelta) -> TextDelta:
        """This delta and the next one of the same choice as a single delta."""
        return replace(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            prompt_logprobs=later.prompt_logprobs if self.prompt_logprobs is None else self.prompt_logprobs,
        )

"""Replies that are sent whole: gathers the deltas of every choice."""

from __future__ import annotations

import msgspec

from plait.frontend import Generation, TextDelta, TextLogprob
from plait.server.replies import UsageCounter
from plait.server.streaming import check_failure
from plait.server.timing import RequestTimer


class CollectedChoice(msgspec.Struct):
    texts: list[str] = msgspec.field(default_factory=list)
    logprobs: list[TextLogprob] = msgspec.field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, delta: TextDelta) -> None:
        self.texts.append(delta.text)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = str(delta.finish_reason)
            self.stop_reason = delta.stop_reason


class Collected(msgspec.Struct):
    choices: dict[tuple[int, int], CollectedChoice] = msgspec.field(default_factory=dict)
    """By request and index."""
    prompt_logprobs: dict[int, tuple[TextLogprob, ...]] = msgspec.field(default_factory=dict)


async def collect(generation: Generation, usage: UsageCounter, timer: RequestTimer) -> Collected:
    """Wait for all choices. Raises GenerationFailedError."""
    collected = Collected()
    while batch := await generation.next_batch():
        timer.observe(batch)
        check_failure(batch)
        for delta in batch:
            usage.add(delta)
            collected.choices.setdefault((delta.request_idx, delta.index), CollectedChoice()).add(delta)
            if delta.prompt_logprobs is not None:
                collected.prompt_logprobs[delta.request_idx] = delta.prompt_logprobs
    return collected

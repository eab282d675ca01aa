"""What LLM and AsyncLLM return; the names are those that vLLM's users know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plait.frontend import TextDelta, TextLogprob
from plait.types import GenerateRequest


@dataclass(frozen=True, slots=True)
class Logprob:
    """``rank`` is None for a chosen token that is not among the best that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    """One per token when asked for."""
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    """"stop", "length" or "abort"; None while it runs."""
    stop_reason: str | int | None = None
    """The stop string or stop token (not EOS) that ended it."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    """None when token ids were given, or a chat."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    """One per prompt token when asked for; None for the first, which nothing precedes."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    finished: bool = False


def empty_output(request_id: str, prompt: str | None, request: GenerateRequest) -> RequestOutput:
    """What a request has produced before its first token."""
    sampling = request.sampling
    has_logprobs = sampling.logprobs is not None
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=tuple(
            CompletionOutput(
                index,
                logprobs=() if has_logprobs else None,
                cumulative_logprob=0.0 if has_logprobs else None,
            )
            for index in range(sampling.n)
        ),
    )


def extend(output: RequestOutput, deltas: Iterable[TextDelta]) -> RequestOutput:
    """``output`` with what the deltas of its request add."""
    answers = list(output.outputs)
    prompt_logprobs, num_cached = output.prompt_logprobs, output.num_cached_tokens
    for delta in deltas:
        answers[delta.index] = _extend_answer(answers[delta.index], delta)
        num_cached = max(num_cached, delta.usage.cached_tokens)
        if delta.prompt_logprobs is not None:
            prompt_logprobs = tuple(
                None if entry.logprob is None else convert_logprob(entry) for entry in delta.prompt_logprobs
            )
    return replace(
        output,
        outputs=tuple(answers),
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=num_cached,
        finished=all(answer.finish_reason is not None for answer in answers),
    )


def _extend_answer(answer: CompletionOutput, delta: TextDelta) -> CompletionOutput:
    logprobs, total = answer.logprobs, answer.cumulative_logprob
    if logprobs is not None and total is not None:
        logprobs += tuple(convert_logprob(entry) for entry in delta.logprobs)
        total += sum(entry.logprob or 0.0 for entry in delta.logprobs)
    return replace(
        answer,
        text=answer.text + delta.text,
        token_ids=answer.token_ids + delta.token_ids,
        logprobs=logprobs,
        cumulative_logprob=total,
        finish_reason=None if delta.finish_reason is None else str(delta.finish_reason),
        stop_reason=delta.stop_reason,
    )


def convert_logprob(entry: TextLogprob) -> dict[int, Logprob]:
    """By token id: the best tokens, best first, and the one that stands there."""
    found = {
        top.token_id: Logprob(top.logprob, rank, top.token) for rank, top in enumerate(entry.top, start=1)
    }
    if entry.logprob is not None and entry.token_id not in found:
        found[entry.token_id] = Logprob(entry.logprob, None, entry.token)
    return found

"""What FakeModel must give for a request that runs alone: no blocks, no steps, no scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from plait.types import FinishReason, GenerateRequest, TokenLogprob
from tests.fakes.fake_executor import FakeSlotStart, extend_hash, logprob_of, sample

_MASK64 = 2**64 - 1


def derive_seed(seed: int, index: int) -> int:
    """The seed of choice ``index``, by the definition of SplitMix64."""
    if index == 0:
        return seed & _MASK64
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass
class Expected:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def expected_choices(
    request: GenerateRequest, *, seed: int, max_tokens: int, eos: tuple[int, ...], vocab_size: int
) -> list[Expected]:
    return [
        _one_choice(request, derive_seed(seed, index), max_tokens, eos, vocab_size)
        for index in range(request.sampling.n)
    ]


def expected_prompt_logprobs(request: GenerateRequest, vocab_size: int) -> list[TokenLogprob | None]:
    values = array("I")
    out: list[TokenLogprob | None] = [None]
    for token, following in zip(request.prompt_token_ids, request.prompt_token_ids[1:], strict=False):
        values.append(extend_hash(values, token))
        logprob, rank, top = logprob_of(
            values[-1], following, request.sampling.prompt_logprobs or 0, vocab_size
        )
        out.append(TokenLogprob(following, logprob, rank, tuple(top)))
    return out


def _one_choice(
    request: GenerateRequest, seed: int, max_tokens: int, eos: tuple[int, ...], vocab_size: int
) -> Expected:
    sampling = request.sampling
    stop_ids = {*(() if sampling.ignore_eos else eos), *sampling.stop_token_ids}
    start = FakeSlotStart(
        slot=0,
        prompt_ids=list(request.prompt_token_ids),
        temperature=sampling.temperature,
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sorted(stop_ids),
        logit_bias=list(sampling.logit_bias),
    )
    tokens = [*request.prompt_token_ids, *request.produced_token_ids]
    values = array("I")
    for token in tokens:
        values.append(extend_hash(values, token))
    out = Expected()
    counter = len(request.produced_token_ids)
    while out.finish_reason is None:
        token = sample(values[-1], start, tokens, counter, vocab_size)
        logprob, rank, top = logprob_of(
            values[-1], token, -1 if sampling.logprobs is None else sampling.logprobs, vocab_size
        )
        out.token_ids.append(token)
        if sampling.logprobs is not None:
            out.logprobs.append(TokenLogprob(token, logprob, rank, tuple(top)))
        tokens.append(token)
        values.append(extend_hash(values, token))
        counter += 1
        if token in stop_ids:
            out.finish_reason = FinishReason.STOP
        elif counter >= max_tokens:
            out.finish_reason = FinishReason.LENGTH
    return out

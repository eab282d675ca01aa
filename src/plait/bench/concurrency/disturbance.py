"""What a long prompt does to streams that run: how long their tokens stay away, and how long its own first token takes.

The same with two schedules: the engine's own, and one whose steps may take as long as they like, so that the prompt
takes whole steps; that is the shortest way to its first token.

What the gaps are without the prompt is seen twice: before it comes, and in a second run of the same streams over the
same tokens, since contexts grow meanwhile, and with them the gaps of streams that nobody disturbs.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from plait.bench.concurrency.figures import Spread
from plait.bench.concurrency.streams import RunningStreams
from plait.client import EngineClient
from plait.errors import ConfigError, EngineDeadError, PlaitError
from plait.types import GenerateRequest, SamplingParams, TokenOutput

STREAM_CONTEXT_TOKENS = 64
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class DisturbanceFigures:
    streams: int
    prompt_tokens: int
    before: Spread
    """Gaps between two tokens of a stream until the prompt comes."""
    undisturbed: Spread
    """The same of all the tokens that the streams had until the prompt's first one, without the prompt."""
    disturbed: Spread
    """The same from the submission of the prompt to its first token."""
    first_token_s: float
    """Of the long prompt."""
    alone_first_token_s: float
    """Of such a prompt on an idle engine."""


def measure_disturbance(
    client: EngineClient, *, num_streams: int, prompt_tokens: int, quiet_tokens: int, seed: int = 0
) -> DisturbanceFigures:
    """On an idle engine; it is idle again afterwards. ``quiet_tokens`` of each stream are timed undisturbed.

    Raises:
        ConfigError: the prompt does not fit.
        EngineDeadError: the prompt's first token does not come.
        PlaitError: a request failed.
    """
    if prompt_tokens + 1 > client.info.max_model_len:
        raise ConfigError(
            f"a prompt of {prompt_tokens} tokens does not fit the engine's {client.info.max_model_len}"
        )
    draw = random.Random(f"disturbance {seed}")
    # The cost of a prompt token is known to the schedule before anything is timed.
    alone_s = _first_token_s(client, draw, prompt_tokens)
    with RunningStreams(client, num_streams, STREAM_CONTEXT_TOKENS, seed) as streams:
        quiet_begin = time.monotonic_ns()
        streams.wait_tokens(quiet_tokens)
        begin = time.monotonic_ns()
        first_token_s = _first_token_s(client, draw, prompt_tokens)
        end = time.monotonic_ns()
        # The gap in which the prompt's last slice fell ends with the next token.
        streams.wait_tokens(2)
        before = Spread.of(streams.gaps_within_ns(quiet_begin, begin))
        disturbed = Spread.of(streams.gaps_across_ns(begin, end))
        num_tokens = streams.tokens_within(quiet_begin, end)
    return DisturbanceFigures(
        streams=num_streams,
        prompt_tokens=prompt_tokens,
        before=before,
        undisturbed=_undisturbed(client, num_streams, num_tokens, seed),
        disturbed=disturbed,
        first_token_s=first_token_s,
        alone_first_token_s=alone_s,
    )


def _undisturbed(client: EngineClient, num_streams: int, num_tokens: int, seed: int) -> Spread:
    with RunningStreams(client, num_streams, STREAM_CONTEXT_TOKENS, seed) as streams:
        begin = time.monotonic_ns()
        streams.wait_tokens(num_tokens)
        return Spread.of(streams.gaps_within_ns(begin, time.monotonic_ns()))


def _first_token_s(client: EngineClient, draw: random.Random, prompt_tokens: int) -> float:
    ended = threading.Event()
    seen: list[tuple[int, str | None]] = []

    def on_output(output: TokenOutput) -> None:
        seen.append((time.monotonic_ns(), output.error))
        if output.finish_reason is not None:
            ended.set()

    prompt = tuple(draw.choices(range(client.info.vocab_size), k=prompt_tokens))
    begin = time.monotonic_ns()
    client.submit(
        GenerateRequest(prompt, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)), on_output
    )
    if not ended.wait(_TIMEOUT_S):
        raise EngineDeadError("the first token of a long prompt does not come")
    at, error = seen[0]
    if error is not None:
        raise PlaitError(f"a long prompt failed: {error}")
    return (at - begin) / 1e9

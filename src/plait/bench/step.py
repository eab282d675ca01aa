"""``plait bench step``: tokens per second of one engine, and the time that passes outside the forward pass.

The work goes through a whole EngineCore (scheduler, rings, sampling), not through bare kernels: what is measured is
what a client can get. The prompts are random token ids and the prefix cache is off.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.errors import ConfigError
from plait.types import GenerateRequest, SamplingParams, TokenOutput

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result. ``kind`` is "prefill" or "decode"."""

    kind: str
    batch: int
    context: int
    """Prompt tokens of each request."""
    tokens: int
    """Tokens that were timed, in all requests together."""
    seconds: float
    tokens_per_s: float
    outside_share: float
    """Share of the time in which no forward pass ran: scheduling, sampling, hand-over."""


@dataclass(frozen=True, slots=True)
class StepBench:
    model: str
    isa: str
    num_compute_threads: int
    measurements: list[Measurement]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def run_step_bench(
    model_path: Path,
    *,
    batches: Sequence[int] = (1, 8, 32),
    contexts: Sequence[int] = (128,),
    prompts: Sequence[int] = (512,),
    decode_tokens: int = 64,
    repeats: int = 3,
    num_compute_threads: int | None = None,
) -> StepBench:
    """Measures prefill of one prompt of each length in ``prompts`` and decode for each batch and context.

    Every figure is the median of ``repeats`` runs after one that is not counted.

    Raises:
        ConfigError: a size is not positive, or does not fit the model's context.
    """
    sizes = [*batches, *contexts, *prompts, decode_tokens, repeats]
    if any(size < 1 for size in sizes):
        raise ConfigError("bench step: batches, contexts, prompts, tokens and repeats must be positive")
    max_batch = max(batches)
    config = EngineConfig(
        max_batch_size=max(max_batch, 1),
        max_batch_tokens=max(512, max_batch),
        num_compute_threads=num_compute_threads,
        enable_prefix_cache=False,
    )
    client = start_engine(model_path, config)
    try:
        longest = max([*prompts, max(contexts) + decode_tokens])
        if longest >= client.info.max_model_len:
            raise ConfigError(
                f"bench step: {longest} tokens do not fit the model's {client.info.max_model_len}; use less context"
            )
        measurements = [
            _median([_prefill(client, length, seed) for seed in range(repeats + 1)][1:]) for length in prompts
        ]
        measurements += [
            _median([_decode(client, batch, context, decode_tokens, seed) for seed in range(repeats + 1)][1:])
            for context in contexts
            for batch in batches
        ]
        info = client.info
        return StepBench(info.model_name, info.isa, info.num_compute_threads, measurements)
    finally:
        client.close()


def _median(runs: list[Measurement]) -> Measurement:
    """The run in the middle by speed."""
    return sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]


class _Meter:
    """Counts the outputs of a batch of requests; the callbacks run on the engine's I/O thread."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._begun: set[int] = set()
        self._num_finished = 0
        self.times_ns: list[tuple[int, int]] = []
        """(time, tokens) of each output."""
        self.all_begun_ns = 0
        self.error: str | None = None
        self.done = threading.Event()

    def on_output(self, output: TokenOutput) -> None:
        now = time.monotonic_ns()
        self.times_ns.append((now, len(output.token_ids)))
        self._begun.add(output.request_id)
        if len(self._begun) == self._num_requests and not self.all_begun_ns:
            self.all_begun_ns = now
        if output.error is not None:
            self.error = output.error
        if output.finish_reason is not None:
            self._num_finished += 1
            if self._num_finished == self._num_requests:
                self.done.set()


def _run(
    client: EngineClient, batch: int, prompt_tokens: int, max_tokens: int, seed: int
) -> tuple[_Meter, int]:
    """Submits ``batch`` requests at once and waits for all; returns the meter and the time of submission."""
    draw = random.Random(f"{seed}-{batch}-{prompt_tokens}")
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests = [
        GenerateRequest(tuple(draw.randrange(client.info.vocab_size) for _ in range(prompt_tokens)), sampling)
        for _ in range(batch)
    ]
    meter = _Meter(batch)
    begin_ns = time.monotonic_ns()
    for request in requests:
        client.submit(request, meter.on_output)
    meter.done.wait()
    if meter.error is not None:
        raise RuntimeError(meter.error)
    return meter, begin_ns


def _prefill(client: EngineClient, length: int, seed: int) -> Measurement:
    forward = client.metrics()["forward_seconds_total"]
    meter, begin_ns = _run(client, 1, length, 1, seed)
    seconds = (meter.times_ns[-1][0] - begin_ns) / 1e9
    forward = client.metrics()["forward_seconds_total"] - forward
    return Measurement(
        "prefill", 1, length, length, seconds, length / seconds, max(0.0, 1 - forward / seconds)
    )


def _decode(client: EngineClient, batch: int, context: int, max_tokens: int, seed: int) -> Measurement:
    """Timed from the moment when every request has begun to the last token: all sequences decode together."""
    meter, _ = _run(client, batch, context, max_tokens + WARM_UP_TOKENS, seed)
    begun = [ns for ns, _ in meter.times_ns if ns >= meter.all_begun_ns]
    begin_ns, end_ns = begun[min(len(begun) - 1, batch)], begun[-1]
    tokens = sum(count for ns, count in meter.times_ns if begin_ns < ns <= end_ns)
    seconds = (end_ns - begin_ns) / 1e9
    share = client.metrics().get("last_outside_share", 0.0)
    return Measurement("decode", batch, context, tokens, seconds, tokens / seconds, share)


def mean_gap_s(times_ns: Sequence[int]) -> float:
    """Mean time between outputs, in seconds."""
    return statistics.fmean(b - a for a, b in itertools.pairwise(times_ns)) / 1e9

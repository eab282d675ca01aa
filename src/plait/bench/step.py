"""``plait bench step``: tokens per second of one engine, and the time that passes outside the forward pass.

The work goes through a whole EngineCore (scheduler, rings, sampling, outputs), not through bare kernels: what is
measured is what a client can get. The prompts are random token ids and the prefix cache is off.

Prefill: from the submission of one prompt to its first token, with the engine idle before.
Decode: from the first token of the sequence that begins last, until it has ``decode_tokens`` more. In that window
every step gives each sequence of the batch one token, as in llama-batched-bench's "tg".

Outputs are counted on the engine's I/O thread; the caller's thread only waits.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from plait.bench.bounds import check_sizes
from plait.bench.machine import describe_machine, load_average
from plait.bench.other_work import MAX_OTHER_CPUS, OtherWork
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.config.engine import ComputeParallelism, KvCacheDtype
from plait.engine import start_engine
from plait.errors import ConfigError, EngineDeadError, PlaitError
from plait.types import EngineInfo, GenerateRequest, SamplingParams, TokenOutput

SCHEMA_VERSION = 1
MAX_BATCH_TOKENS = 512
"""As many prompt tokens per step as llama.cpp takes by default (its "ubatch")."""
MAX_BATCH_SIZE = 4096
MAX_THREADS = 1024

# Steps that the sequence that begins first may be ahead of the last one, beyond those that the prompts take.
_SPARE_STEPS = 16
_HEALTH_INTERVAL_S = 1.0
# Prompts are computed as fast as they can be, whoever decodes beside them.
_NO_PACE_S = 3600.0

Clock = Callable[[], int]
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    batches: tuple[int, ...] = (1, 8, 32)
    """Sequences that decode together."""
    contexts: tuple[int, ...] = (128,)
    """Prompt tokens of each sequence before it decodes."""
    prompts: tuple[int, ...] = (512,)
    """Lengths of the prompts whose prefill is timed."""
    decode_tokens: int = 64
    """Timed tokens of each sequence."""
    repeats: int = 3
    """Timed runs of each measurement, after one that does not count; the median is reported."""
    num_compute_threads: int | None = None
    """None: the core budget."""
    kv_cache_dtype: KvCacheDtype = "f16"
    compute_parallelism: ComputeParallelism = "tensor"

    def check(self) -> None:
        """Raises ConfigError when a size makes no sense."""
        check_sizes("step", "--batches", self.batches, 1, MAX_BATCH_SIZE)
        check_sizes("step", "--contexts", self.contexts, 1, None)
        check_sizes("step", "--prompts", self.prompts, 1, None)
        check_sizes("step", "--decode-tokens", self.decode_tokens, 1, None)
        check_sizes("step", "--repeats", self.repeats, 1, None)
        if self.num_compute_threads is not None and not 1 <= self.num_compute_threads <= MAX_THREADS:
            raise ConfigError(f"bench step: give 1 to {MAX_THREADS} threads, not {self.num_compute_threads}")
        for name, value, known in (
            ("KV cache dtype", self.kv_cache_dtype, get_args(KvCacheDtype)),
            ("compute parallelism", self.compute_parallelism, get_args(ComputeParallelism)),
        ):
            if value not in known:
                raise ConfigError(f"bench step: no {name} {value!r}; use one of {', '.join(known)}")

    @property
    def max_batch_tokens(self) -> int:
        # Twice the batch: prompts must get on while everything else decodes.
        return max(MAX_BATCH_TOKENS, 2 * max(self.batches))

    def max_tokens(self, batch: int, context: int) -> int:
        """Answer tokens that each sequence needs so that none ends before the window closes."""
        # The other prompts fill the steps in which the first one decodes already.
        prompt_steps = -(-(batch - 1) * context // (self.max_batch_tokens - batch))
        return self.decode_tokens + prompt_steps + _SPARE_STEPS


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result: the run that is the median by speed."""

    kind: str
    """"prefill" or "decode"."""
    batch: int
    context: int
    """Prompt tokens of each sequence."""
    tokens: int
    """Tokens that were timed, of all sequences together."""
    seconds: float
    tokens_per_s: float
    outside_share: float
    """Share of the time in which no forward pass ran: scheduling, sampling, hand-over. 0 to 1."""
    runs_tokens_per_s: tuple[float, ...] = ()
    """Every timed run, in order."""


@dataclass(frozen=True, slots=True)
class StepReport:
    model: str
    model_bytes: int
    settings: StepSettings
    load_before: float
    machine: dict[str, object]
    measurements: tuple[Measurement, ...]
    other_cpus: float
    """CPUs that others kept busy on average while we measured."""

    def to_json(self) -> dict[str, object]:
        return {
            "bench": "step",
            "schema_version": SCHEMA_VERSION,
            "is_trusted": self.other_cpus <= MAX_OTHER_CPUS,
            **asdict(self),
        }


def run_step_bench(model_path: Path, settings: StepSettings) -> StepReport:
    """Starts an engine for ``model_path``, measures, and stops it. Blocks for all of that.

    Raises:
        ConfigError: a size is not positive, or does not fit the model's context or the KV cache.
        ModelFileError: the model cannot be loaded.
        EngineDeadError: the engine stopped or makes no progress.
    """
    settings.check()
    load_before = load_average()
    config = EngineConfig(
        max_batch_size=max(settings.batches),
        max_batch_tokens=settings.max_batch_tokens,
        num_compute_threads=settings.num_compute_threads,
        kv_cache_dtype=settings.kv_cache_dtype,
        compute_parallelism=settings.compute_parallelism,
        max_queued_requests=max(settings.batches),
        max_queued_tokens=max(*settings.prompts, max(settings.batches) * max(settings.contexts)),
        enable_prefix_cache=False,
        target_step_s=_NO_PACE_S,
    )
    client = start_engine(model_path, config)
    try:
        info = client.info
        others = OtherWork()
        measurements = measure_steps(client, settings)
        return StepReport(
            model=info.model_name,
            model_bytes=model_path.stat().st_size,
            settings=settings,
            load_before=load_before,
            machine=describe_machine(isa=info.isa, num_compute_threads=info.num_compute_threads),
            measurements=measurements,
            other_cpus=others.num_cpus(),
        )
    finally:
        client.close()


def measure_steps(
    client: EngineClient, settings: StepSettings, clock: Clock = time.monotonic_ns
) -> tuple[Measurement, ...]:
    """All prefill measurements, then all decode measurements, on an idle engine."""
    check_fits(client.info, settings)

    def decode(batch: int, context: int, seed: int) -> Measurement:
        return _measure_decode(client, clock, settings, batch, context, seed)

    prefills = [
        _median([_measure_prefill(client, clock, length, seed) for seed in range(settings.repeats + 1)][1:])
        for length in settings.prompts
    ]
    decodes = [
        _median([decode(batch, context, seed) for seed in range(settings.repeats + 1)][1:])
        for context in settings.contexts
        for batch in settings.batches
    ]
    return (*prefills, *decodes)


def check_fits(info: EngineInfo, settings: StepSettings) -> None:
    """Raises ConfigError when a sequence is longer than the model allows, or a batch larger than the KV cache."""
    needs = [
        (batch, context + settings.max_tokens(batch, context))
        for context in settings.contexts
        for batch in settings.batches
    ]
    longest = max(max(settings.prompts) + 1, *(length for _, length in needs))
    if longest > info.max_model_len:
        raise ConfigError(
            f"bench step: sequences of {longest} tokens do not fit the model's {info.max_model_len}; "
            "use shorter prompts or contexts"
        )
    for batch, length in needs:
        num_blocks = batch * -(-length // info.block_tokens)
        if num_blocks > info.num_kv_blocks:
            raise ConfigError(
                f"bench step: {batch} sequences of {length} tokens need {num_blocks} KV blocks, the engine has "
                f"{info.num_kv_blocks}; use smaller batches or contexts"
            )


def _median(runs: list[Measurement]) -> Measurement:
    """The run in the middle by speed, the slower one of two."""
    middle = sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]
    return replace(middle, runs_tokens_per_s=tuple(run.tokens_per_s for run in runs))


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the clock and the engine's counters said at once."""

    ns: int
    num_steps: float
    forward_s: float

    @classmethod
    def now(cls, client: EngineClient, clock: Clock) -> _Moment:
        ns, metrics = clock(), client.metrics()
        return cls(ns, metrics["steps_total"], metrics["forward_seconds_total"])


def _share_outside(begin: _Moment, end: _Moment, num_steps: float | None = None) -> float:
    """Share of the time between the moments in which no forward pass ran.

    ``num_steps`` is how many steps' outputs fell between them, when known: the counters may already hold a step
    whose outputs are still on their way, so only their mean forward time of a step is used then.
    """
    counted = end.num_steps - begin.num_steps
    forward_s = end.forward_s - begin.forward_s
    if num_steps is not None:
        forward_s *= num_steps / max(counted, 1)
    # Steps differ a little in length, so that the result may miss its bounds by a hair.
    return min(max(1 - forward_s / ((end.ns - begin.ns) / 1e9), 0.0), 1.0)


class _Meter:
    """Finds the window of one batch in its outputs. ``take`` runs on the engine's I/O thread."""

    def __init__(self, client: EngineClient, clock: Clock, num_requests: int, num_timed_tokens: int) -> None:
        self._client = client
        self._clock = clock
        self._num_requests = num_requests
        self._num_timed_tokens = num_timed_tokens
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._num_finished = 0
        self._last_id: int | None = None
        self._last_target = 0
        self.begin: _Moment | None = None
        self.end: _Moment | None = None
        self.num_tokens = 0
        """Of all sequences, within the window."""
        self.num_steps = 0
        """Within the window: each gave one token to the sequence that began last."""
        self.error: str | None = None
        self.is_measured = threading.Event()
        """The window is closed, or never will be."""
        self.is_idle = threading.Event()
        """Every request has ended."""

    def take(self, output: TokenOutput) -> None:
        if output.token_ids:
            self._count(output.request_id, len(output.token_ids))
        if output.finish_reason is not None:
            self._finish(output)

    def _count(self, request_id: int, num_tokens: int) -> None:
        self._counts[request_id] += num_tokens
        if self.end is not None:
            return
        if self.begin is not None:
            self.num_tokens += num_tokens
        elif len(self._counts) == self._num_requests:
            self.begin = _Moment.now(self._client, self._clock)
            self._last_id = request_id
            self._last_target = self._counts[request_id] + self._num_timed_tokens
        if request_id == self._last_id and self._counts[request_id] >= self._last_target:
            self.end = _Moment.now(self._client, self._clock)
            self.num_steps = self._counts[request_id] - self._last_target + self._num_timed_tokens
            self.is_measured.set()

    def _finish(self, output: TokenOutput) -> None:
        self._num_finished += 1
        if output.error is not None:
            self.error = self.error or output.error
        elif self.end is None:
            self.error = self.error or "a sequence ended before the others began: they never decoded together"
        if self.error is not None:
            self.is_measured.set()
        if self._num_finished == self._num_requests:
            self.is_idle.set()


def _run(
    client: EngineClient, clock: Clock, batch: int, context: int, max_tokens: int, num_timed: int, seed: int
) -> tuple[_Meter, _Moment]:
    """Submits ``batch`` prompts at once; returns when the window is closed and the engine is idle again."""
    draw = random.Random(f"{seed}-{batch}-{context}")
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests = [
        GenerateRequest(tuple(draw.choices(range(client.info.vocab_size), k=context)), sampling)
        for _ in range(batch)
    ]
    meter = _Meter(client, clock, batch, num_timed)
    submitted = _Moment.now(client, clock)
    ids = [client.submit(request, meter.take) for request in requests]
    _wait(client, meter.is_measured)
    for request_id in ids:
        client.abort(request_id)
    _wait(client, meter.is_idle)
    if meter.error is not None:
        raise PlaitError(f"bench step: batch {batch}, context {context}: {meter.error}")
    return meter, submitted


def _wait(client: EngineClient, event: threading.Event) -> None:
    while True:
        health = client.health()
        if not (health.is_alive and health.is_progressing):
            raise EngineDeadError(
                f"bench step: the engine makes no progress: {health.detail or 'it is gone'}"
            )
        if event.wait(_HEALTH_INTERVAL_S):
            return


def _measure_prefill(client: EngineClient, clock: Clock, length: int, seed: int) -> Measurement:
    meter, begin = _run(client, clock, batch=1, context=length, max_tokens=1, num_timed=0, seed=seed)
    assert meter.end is not None
    share = _share_outside(begin, meter.end)
    return _measurement("prefill", (1, length), length, (begin, meter.end), share)


def _measure_decode(
    client: EngineClient, clock: Clock, settings: StepSettings, batch: int, context: int, seed: int
) -> Measurement:
    max_tokens = settings.max_tokens(batch, context)
    meter, _ = _run(client, clock, batch, context, max_tokens, settings.decode_tokens, seed)
    assert meter.begin is not None
    assert meter.end is not None
    share = _share_outside(meter.begin, meter.end, meter.num_steps)
    return _measurement("decode", (batch, context), meter.num_tokens, (meter.begin, meter.end), share)


def _measurement(
    kind: str, shape: tuple[int, int], tokens: int, window: tuple[_Moment, _Moment], outside_share: float
) -> Measurement:
    batch, context = shape
    seconds = (window[1].ns - window[0].ns) / 1e9
    return Measurement(kind, batch, context, tokens, seconds, tokens / seconds, outside_share)

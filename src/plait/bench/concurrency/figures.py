"""What one run gives: rates, latencies, use of the machine, and a digest of every request's tokens.

Knows: turns, counters of the engine, the clock's numbers. Must not know: how the engine is run.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.bench.concurrency.closed_loop import LoopResult, Turn
from plait.client import EngineClient

GAP_COUNTER = "step_gap_seconds_total"
"""Time in which the compute thread had work waiting but was in no step, where the engine counts it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a set of times, in seconds."""

    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, values_ns: Sequence[float]) -> Spread:
        if not values_ns:
            return cls()
        ordered = sorted(values_ns)
        mean = sum(ordered) / len(ordered)
        return cls(*(v / 1e9 for v in (mean, quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1])))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in rising order, one at least; between two of them it is interpolated."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Figures:
    seconds: float
    """From the first submission to the last output."""
    requests: int
    """That ended by themselves; the rates of requests and the latencies are theirs."""
    aborted: int
    prompt_tokens: int
    output_tokens: int
    """Of aborted requests, too."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    latency: Spread
    first_token: Spread
    inter_token: Spread
    """Between two outputs of one request."""
    submit_call: Spread
    """How long submit() takes."""
    cpu_seconds: float
    """Of the whole process, its load included."""
    cpu_share: float
    """Of the cores that the process may use."""
    pss_bytes: int
    busy_share: float
    """Of the time in which requests were open, the compute thread was in a step."""
    step_mean_s: float
    gap_mean_s: float
    """From the end of a step to the begin of the next."""
    is_gap_counted: bool
    """By the engine; otherwise it is all the time in no step, that of waiting for a request included."""
    other_cpus: float
    """CPUs that other work on the machine kept busy meanwhile."""
    load_share: float
    """What the load itself costs: callbacks and the thread that submits, as a share of one core."""
    steps: int
    preemptions: int
    cached_tokens: int
    digests: tuple[str, ...]
    """One for each request."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What the clocks and the engine's counters said at once."""

    cpu_s: float
    counters: Mapping[str, float]

    @classmethod
    def now(cls, client: EngineClient) -> Moment:
        return cls(time.process_time(), client.metrics())


def figures_of(
    result: LoopResult, before: Moment, after: Moment, *, num_cores: float, pss_bytes: int, other_cpus: float
) -> Figures:
    turns = result.turns
    seconds = max((result.end_ns - result.begin_ns) / 1e9, 1e-9)
    done = [turn for turn in turns if turn.is_done]
    num_output = sum(len(turn.token_ids) for turn in turns)
    num_prompt = sum(len(turn.item.request.prompt_token_ids) for turn in turns)
    open_s = max(open_ns(turns) / 1e9, 1e-9)

    def grown(name: str) -> float:
        return after.counters.get(name, 0.0) - before.counters.get(name, 0.0)

    step_s = min(grown("step_seconds_total"), open_s)
    steps = int(grown("steps_total"))
    is_counted = GAP_COUNTER in after.counters
    gap_s = grown(GAP_COUNTER) if is_counted else open_s - step_s
    load_ns = result.driver_cpu_ns + sum(turn.callback_ns for turn in turns)
    cpu_s = after.cpu_s - before.cpu_s
    return Figures(
        seconds=seconds,
        requests=len(done),
        aborted=len(turns) - len(done),
        prompt_tokens=num_prompt,
        output_tokens=num_output,
        requests_per_s=len(done) / seconds,
        output_tokens_per_s=num_output / seconds,
        total_tokens_per_s=(num_output + num_prompt) / seconds,
        latency=Spread.of([turn.end_ns - turn.begin_ns for turn in done]),
        first_token=Spread.of([turn.arrivals_ns[0] - turn.begin_ns for turn in turns if turn.arrivals_ns]),
        inter_token=Spread.of([gap for turn in turns for gap in gaps_ns(turn.arrivals_ns)]),
        submit_call=Spread.of([turn.submitted_ns - turn.begin_ns for turn in turns]),
        cpu_seconds=cpu_s,
        cpu_share=cpu_s / seconds / num_cores,
        pss_bytes=pss_bytes,
        busy_share=step_s / open_s,
        step_mean_s=step_s / max(steps, 1),
        gap_mean_s=gap_s / max(steps, 1),
        is_gap_counted=is_counted,
        other_cpus=other_cpus,
        load_share=load_ns / 1e9 / seconds,
        steps=steps,
        preemptions=int(grown("preemptions_total")),
        cached_tokens=int(grown("cached_tokens_total")),
        digests=tuple(digest(turn) for turn in turns),
    )


def gaps_ns(times_ns: Sequence[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(times_ns)]


def open_ns(turns: Sequence[Turn]) -> int:
    """How long at least one request was open: slow clients leave an engine idle that has nothing to do."""
    total = 0
    until = 0
    for begin, end in sorted((turn.begin_ns, turn.end_ns) for turn in turns):
        total += max(end - max(begin, until), 0)
        until = max(until, end)
    return total


def digest(turn: Turn) -> str:
    """Of its tokens; of one that was to be aborted, those before the abort: later ones depend on timing."""
    ids = turn.token_ids[: turn.item.abort_after_tokens]
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def read_pss_bytes(path: Path = Path("/proc/self/smaps_rollup")) -> int:
    """This process's share of the memory that it maps; 0 where the system does not tell."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0

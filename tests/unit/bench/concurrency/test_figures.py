"""What is counted of a run, over turns with made-up times."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from plait.bench.concurrency.closed_loop import LoopResult, Turn
from plait.bench.concurrency.figures import (
    GAP_COUNTER,
    Moment,
    Spread,
    digest,
    figures_of,
    open_ns,
    quantile,
    read_pss_bytes,
)
from plait.bench.concurrency.work import WorkItem
from plait.types import FinishReason, GenerateRequest, SamplingParams

MS = 1_000_000


def turn(
    begin_ms: int,
    arrivals_ms: list[int],
    *,
    reason: FinishReason = FinishReason.LENGTH,
    abort_after: int | None = None,
    prompt: int = 10,
) -> Turn:
    item = WorkItem(
        GenerateRequest(tuple(range(prompt)), SamplingParams(max_tokens=len(arrivals_ms))),
        abort_after_tokens=abort_after,
    )
    made = Turn(item, 0, queue.SimpleQueue())
    made.begin_ns = begin_ms * MS
    made.submitted_ns = made.begin_ns + MS // 10
    made.arrivals_ns = [at * MS for at in arrivals_ms]
    made.token_ids = [7 + i for i in range(len(arrivals_ms))]
    made.end_ns = made.arrivals_ns[-1]
    made.finish_reason = reason
    made.callback_ns = MS
    return made


def counters(**values: float) -> dict[str, float]:
    return {"steps_total": 0.0, "step_seconds_total": 0.0, "preemptions_total": 0.0, **values}


def test_rates_and_latencies() -> None:
    turns = [
        turn(0, [100, 110, 120, 200]),
        turn(0, [50, 60], reason=FinishReason.ABORT, abort_after=2),
        turn(250, [300, 1000]),
    ]
    result = LoopResult(0, 1000 * MS, turns, driver_cpu_ns=7 * MS)
    before = Moment(1.0, counters(steps_total=5, step_seconds_total=1.0, preemptions_total=1))
    after = Moment(
        2.5,
        counters(steps_total=25, step_seconds_total=1.76, preemptions_total=4, cached_tokens_total=48),
    )
    figures = figures_of(result, before, after, num_cores=2, pss_bytes=123, other_cpus=0.3)
    assert (figures.seconds, figures.requests, figures.aborted) == (1.0, 2, 1)
    assert (figures.prompt_tokens, figures.output_tokens) == (30, 8)
    assert figures.requests_per_s == 2.0
    assert figures.output_tokens_per_s == 8.0
    assert figures.total_tokens_per_s == 38.0
    assert figures.latency.mean_s == pytest.approx((0.2 + 0.75) / 2)
    assert figures.first_token.max_s == pytest.approx(0.1)
    assert figures.inter_token.max_s == pytest.approx(0.7)
    assert figures.submit_call.p50_s == pytest.approx(0.0001)
    assert figures.cpu_seconds == 1.5
    assert figures.cpu_share == 0.75
    assert (figures.pss_bytes, figures.other_cpus) == (123, 0.3)
    # Open from 0 to 200 and from 250 to 1000 ms; 760 ms of that in a step.
    assert figures.busy_share == pytest.approx(0.8)
    assert figures.step_mean_s == pytest.approx(0.038)
    assert figures.gap_mean_s == pytest.approx(0.19 / 20)
    assert not figures.is_gap_counted
    assert figures.load_share == pytest.approx(0.010)
    assert (figures.steps, figures.preemptions, figures.cached_tokens) == (20, 3, 48)
    assert len(figures.digests) == 3


def test_the_engines_own_gap_counter_is_used() -> None:
    result = LoopResult(0, 100 * MS, [turn(0, [50, 100])])
    before = Moment(0.0, counters(**{GAP_COUNTER: 1.0}))
    after = Moment(0.1, counters(steps_total=10, step_seconds_total=0.05, **{GAP_COUNTER: 1.002}))
    figures = figures_of(result, before, after, num_cores=1, pss_bytes=0, other_cpus=0.0)
    assert figures.is_gap_counted
    assert figures.gap_mean_s == pytest.approx(0.0002)


def test_open_time_is_a_union() -> None:
    assert open_ns([]) == 0
    assert open_ns([turn(0, [10]), turn(5, [20]), turn(6, [8]), turn(30, [40])]) == 30 * MS


def test_digests_tell_tokens_apart() -> None:
    first, same, other = turn(0, [1, 2, 3]), turn(5, [9, 10, 11]), turn(0, [1, 2, 3])
    other.token_ids[1] += 1
    assert digest(first) == digest(same) != digest(other)
    joined, split = turn(0, [1]), turn(0, [1])
    joined.token_ids, split.token_ids = [12], [1, 2]
    assert digest(joined) != digest(split)


def test_tokens_after_an_abort_do_not_count() -> None:
    early, late = turn(0, [1, 2, 3], abort_after=2), turn(0, [1, 2, 3, 4, 5], abort_after=2)
    assert digest(early) == digest(late)
    late.token_ids[1] += 1
    assert digest(early) != digest(late)


def test_quantiles() -> None:
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([0.0, 10.0], 0.25) == 2.5
    assert quantile([float(i) for i in range(101)], 0.99) == 99.0
    assert Spread.of([]) == Spread()
    assert Spread.of([2e9, 1e9, 3e9]) == Spread(2.0, 2.0, pytest.approx(2.98), 3.0)  # type: ignore[arg-type]


def test_pss(tmp_path: Path) -> None:
    assert read_pss_bytes() > 1 << 20
    rollup = tmp_path / "rollup"
    rollup.write_text("Rss: 20 kB\nPss:     12 kB\nPss_Dirty: 3 kB\n")
    assert read_pss_bytes(rollup) == 12 * 1024
    assert read_pss_bytes(tmp_path / "none") == 0

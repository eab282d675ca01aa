"""Made-up runs of plait bench concurrency, whose medians and ratios are known."""

from __future__ import annotations

from typing import Any

from plait.bench.concurrency.accept import AcceptFigures
from plait.bench.concurrency.disturbance import DisturbanceFigures
from plait.bench.concurrency.figures import Figures, Spread
from plait.bench.concurrency.job import Candidate
from plait.bench.concurrency.report import (
    AcceptRun,
    ConcurrencyReport,
    DisturbanceRun,
    LoadRun,
    build_report,
)


def spread(mean_s: float) -> Spread:
    return Spread(mean_s, mean_s, 2 * mean_s, 3 * mean_s)


def figures(requests_per_s: float = 10.0, digests: tuple[str, ...] = ("aa", "bb"), **changes: Any) -> Figures:
    values: dict[str, Any] = {
        "seconds": 20 / requests_per_s,
        "requests": 20,
        "aborted": 0,
        "prompt_tokens": 2000,
        "output_tokens": 1000,
        "requests_per_s": requests_per_s,
        "output_tokens_per_s": 50 * requests_per_s,
        "total_tokens_per_s": 150 * requests_per_s,
        "latency": spread(1 / requests_per_s),
        "first_token": spread(0.2 / requests_per_s),
        "inter_token": spread(0.01),
        "submit_call": spread(1e-5),
        "cpu_seconds": 3.0,
        "cpu_share": 0.9,
        "pss_bytes": 200 << 20,
        "busy_share": 0.95,
        "step_mean_s": 0.019,
        "gap_mean_s": 0.0005,
        "is_gap_counted": True,
        "other_cpus": 0.02,
        "load_share": 0.01,
        "steps": 1000,
        "preemptions": 3,
        "cached_tokens": 64,
        "digests": digests,
    }
    return Figures(**{**values, **changes})


def load_run(
    mode: str = "threads",
    speed: float = 10.0,
    *,
    round_idx: int = 0,
    clients: int = 32,
    threads: int = 2,
    parallelism: str = "tensor",
    load: str = "chat",
    **changes: Any,
) -> LoadRun:
    candidate = Candidate(mode, parallelism, threads)
    return LoadRun(round_idx, load, clients, candidate, figures(speed, **changes))


def all_runs(rounds: int = 3) -> list[LoadRun]:
    """Every combination of three modes, two parallelisms and two thread counts on two loads."""
    runs = []
    for round_idx in range(rounds):
        for load in ("chat", "mixed"):
            for clients in (1, 8, 32):
                for threads in (1, 2):
                    for parallelism, factor in (("tensor", 1.0), ("pipeline", 0.9)):
                        for mode, speed in (("threads", 9.8), ("coroutine", 7.0), ("native", 10.0)):
                            full = speed * factor * (0.6 if threads == 1 else 1.0) * (1 + round_idx / 1000)
                            runs.append(
                                load_run(
                                    mode,
                                    full * (1 if clients == 1 else 1.5),
                                    round_idx=round_idx,
                                    clients=clients,
                                    threads=threads,
                                    parallelism=parallelism,
                                    load=load,
                                    busy_share=0.99 if mode != "coroutine" else 0.8,
                                )
                            )
    return runs


def accept_run(mode: str, p50_s: float) -> AcceptRun:
    value = AcceptFigures(
        100, 8, 0.02, spread(1e-4), Spread(p50_s, p50_s, 4 * p50_s, 5 * p50_s), True, 0.995, 0.0002
    )
    return AcceptRun(0, Candidate(mode, "tensor", 2), value)


def disturbance_run(*, is_unpaced: bool, first_token_s: float, max_s: float) -> DisturbanceRun:
    before = Spread(0.008, 0.008, 0.016, 0.02)
    undisturbed = Spread(0.01, 0.01, 0.02, 0.03)
    disturbed = Spread(0.1, 0.1, max_s, max_s)
    value = DisturbanceFigures(8, 6000, before, undisturbed, disturbed, first_token_s, 8.0)
    return DisturbanceRun(0, Candidate("threads", "tensor", 2), is_unpaced, value)


def report(runs: list[LoadRun] | None = None, **changes: Any) -> ConcurrencyReport:
    values: dict[str, Any] = {
        "model": "some-model",
        "model_bytes": 5,
        "settings": {"rounds": 3},
        "load_before": 0.1,
        "machine": {
            "cpu": "Some CPU",
            "isa": "avx2",
            "num_usable_cores": 2,
            "num_compute_threads": 2,
        },
        "runs": (
            all_runs() if runs is None else runs,
            [accept_run("threads", 0.0003), accept_run("coroutine", 0.01)],
            [
                disturbance_run(is_unpaced=False, first_token_s=11.0, max_s=0.05),
                disturbance_run(is_unpaced=True, first_token_s=10.0, max_s=0.9),
            ],
        ),
        "not_offered": {},
    }
    return build_report(**{**values, **changes})

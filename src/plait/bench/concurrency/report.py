"""What the runs of a benchmark say together: medians, ratios within the rounds, tokens that differ.

Knows: figures. Must not know: how they were measured, how they are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from plait.bench.concurrency.accept import AcceptFigures
from plait.bench.concurrency.disturbance import DisturbanceFigures
from plait.bench.concurrency.figures import Figures, Spread
from plait.bench.concurrency.job import Candidate
from plait.bench.other_work import MAX_OTHER_CPUS

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Published:
    """Figures that the design of three threads was published with, for a 7B model."""

    mode: str
    requests_per_s: float
    latency_s: float
    cpu_share: float


PUBLISHED = (
    Published("coroutine", 42.0, 0.235, 0.65),
    Published("threads", 128.0, 0.078, 0.92),
    Published("native", 147.0, 0.065, 0.98),
)
PUBLISHED_SOURCE = "published design (7B model)"


@dataclass(frozen=True, slots=True)
class LoadRun:
    round_idx: int
    load: str
    clients: int
    candidate: Candidate
    figures: Figures


@dataclass(frozen=True, slots=True)
class AcceptRun:
    round_idx: int
    candidate: Candidate
    figures: AcceptFigures


@dataclass(frozen=True, slots=True)
class DisturbanceRun:
    round_idx: int
    candidate: Candidate
    is_unpaced: bool
    figures: DisturbanceFigures


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds of one candidate on one load."""

    load: str
    clients: int
    candidate: Candidate
    median: Mapping[str, float]
    """By flat name: "requests_per_s", "latency_p99_s", ..."""
    lowest: Mapping[str, float]
    highest: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two candidates on one load: the median of the ratios within the rounds."""

    load: str
    clients: int
    candidate: Candidate
    reference: Candidate
    values: Mapping[str, float]


RATIO_NAMES = (
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "latency_mean_s",
    "latency_p50_s",
    "latency_p99_s",
    "first_token_p50_s",
    "first_token_p99_s",
    "inter_token_p50_s",
    "inter_token_p99_s",
    "cpu_share",
    "pss_bytes",
)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    threads: int
    requests_per_s: float
    gain: float | None
    """Over the point before, as a share; None for the first."""


@dataclass(frozen=True, slots=True)
class Sweep:
    load: str
    clients: int
    mode: str
    parallelism: str
    points: tuple[SweepPoint, ...]
    pays_up_to: int
    """The number of threads after which another one gives less than WORTH_IT."""


WORTH_IT = 0.05
"""More threads pay when they give this share more requests."""


@dataclass(frozen=True, slots=True)
class ConcurrencyReport:
    model: str
    model_bytes: int
    settings: Mapping[str, object]
    load_before: float
    machine: dict[str, object]
    rows: tuple[Row, ...]
    ratios: tuple[Ratio, ...]
    sweeps: tuple[Sweep, ...]
    accept: tuple[AcceptRun, ...]
    disturbance: tuple[DisturbanceRun, ...]
    differences: tuple[str, ...]
    """Requests whose tokens depend on how they were run; there must be none."""
    not_offered: Mapping[str, str]
    runs: tuple[LoadRun, ...]

    @property
    def other_cpus(self) -> float:
        """What other work took at most during a run."""
        return max((run.figures.other_cpus for run in self.runs), default=0.0)

    def to_json(self) -> dict[str, object]:
        published = {"source": PUBLISHED_SOURCE, "rows": [asdict(row) for row in PUBLISHED]}
        return {
            "bench": "concurrency",
            "level": "engine",
            "schema_version": SCHEMA_VERSION,
            "is_trusted": self.other_cpus <= MAX_OTHER_CPUS,
            **asdict(self),
            "published": published,
        }


def build_report(
    *,
    model: str,
    model_bytes: int,
    settings: Mapping[str, object],
    load_before: float,
    machine: dict[str, object],
    runs: tuple[Sequence[LoadRun], Sequence[AcceptRun], Sequence[DisturbanceRun]],
    not_offered: Mapping[str, str],
) -> ConcurrencyReport:
    loads, accepts, disturbances = runs
    rows = build_rows(loads)
    return ConcurrencyReport(
        model=model,
        model_bytes=model_bytes,
        settings=settings,
        load_before=load_before,
        machine=machine,
        rows=rows,
        ratios=build_ratios(loads),
        sweeps=build_sweeps(rows),
        accept=tuple(accepts),
        disturbance=tuple(disturbances),
        differences=find_differences(loads),
        not_offered=not_offered,
        runs=tuple(loads),
    )


def flat(figures: Figures) -> dict[str, float]:
    """Every number under one name; those of a Spread get its name before theirs."""
    numbers: dict[str, float] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, Spread):
            numbers |= {f"{field.name}_{name}": number for name, number in asdict(value).items()}
        elif isinstance(value, int | float):
            numbers[field.name] = float(value)
    return numbers


Key = tuple[str, int, Candidate]


def _grouped(runs: Iterable[LoadRun]) -> dict[Key, dict[int, dict[str, float]]]:
    """Numbers by (load, clients, candidate) and round."""
    groups: dict[Key, dict[int, dict[str, float]]] = {}
    for run in runs:
        groups.setdefault((run.load, run.clients, run.candidate), {})[run.round_idx] = flat(run.figures)
    return groups


def build_rows(runs: Sequence[LoadRun]) -> tuple[Row, ...]:
    """In the order in which the runs first came."""
    rows = []
    for (load, clients, candidate), rounds in _grouped(runs).items():
        numbers = list(rounds.values())
        values = {name: [row[name] for row in numbers] for name in numbers[0]}
        rows.append(
            Row(
                load,
                clients,
                candidate,
                {name: statistics.median(all_of) for name, all_of in values.items()},
                {name: min(all_of) for name, all_of in values.items()},
                {name: max(all_of) for name, all_of in values.items()},
            )
        )
    return tuple(rows)


def build_ratios(runs: Sequence[LoadRun]) -> tuple[Ratio, ...]:
    """Of every two candidates on the same load that differ in one thing, so of modes, of parallelisms, of threads."""
    groups = _grouped(runs)
    ratios = []
    for load, clients, candidate in groups:
        for other_load, other_clients, reference in groups:
            if (load, clients) != (other_load, other_clients) or not _differ_in_one(candidate, reference):
                continue
            own = groups[load, clients, candidate]
            others = groups[load, clients, reference]
            rounds = sorted(own.keys() & others.keys())
            values = {
                name: statistics.median(own[r][name] / others[r][name] for r in rounds)
                for name in RATIO_NAMES
                if rounds and all(others[r][name] > 0 for r in rounds)
            }
            ratios.append(Ratio(load, clients, candidate, reference, values))
    return tuple(ratios)


def _differ_in_one(a: Candidate, b: Candidate) -> bool:
    return sum((a.mode != b.mode, a.parallelism != b.parallelism, a.threads != b.threads)) == 1


def build_sweeps(rows: Sequence[Row]) -> tuple[Sweep, ...]:
    groups: dict[tuple[str, int, str, str], dict[int, float]] = {}
    for row in rows:
        key = (row.load, row.clients, row.candidate.mode, row.candidate.parallelism)
        groups.setdefault(key, {})[row.candidate.threads] = row.median["requests_per_s"]
    sweeps = []
    for (load, clients, mode, parallelism), speeds in groups.items():
        if len(speeds) < 2:
            continue
        points: list[SweepPoint] = []
        for threads in sorted(speeds):
            before = points[-1].requests_per_s if points else 0.0
            gain = speeds[threads] / before - 1 if before else None
            points.append(SweepPoint(threads, speeds[threads], gain))
        sweeps.append(Sweep(load, clients, mode, parallelism, tuple(points), _pays_up_to(points)))
    return tuple(sweeps)


def _pays_up_to(points: Sequence[SweepPoint]) -> int:
    """The first number of threads that no larger one beats by WORTH_IT."""
    for i, point in enumerate(points):
        if all(later.requests_per_s < point.requests_per_s * (1 + WORTH_IT) for later in points[i + 1 :]):
            return point.threads
    raise AssertionError("the last point has none after it")


def find_differences(runs: Sequence[LoadRun]) -> tuple[str, ...]:
    """One line for each request of a load that did not get the same tokens in every run."""
    first: dict[tuple[str, int], tuple[str, LoadRun]] = {}
    differences: dict[tuple[str, int], str] = {}
    for run in runs:
        for idx, digest in enumerate(run.figures.digests):
            known, origin = first.setdefault((run.load, idx), (digest, run))
            if known != digest and (run.load, idx) not in differences:
                differences[run.load, idx] = (
                    f"{run.load}, request {idx}: {_where(origin)} and {_where(run)} give different tokens"
                )
    return tuple(differences.values())


def _where(run: LoadRun) -> str:
    return f"{run.candidate.label}, {run.clients} clients, round {run.round_idx + 1}"

"""A report of ``plait bench concurrency`` as tables on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from plait.bench.concurrency.disturbance import DisturbanceFigures
from plait.bench.concurrency.job import Candidate
from plait.bench.concurrency.report import (
    PUBLISHED,
    PUBLISHED_SOURCE,
    ConcurrencyReport,
    DisturbanceRun,
    Published,
    Ratio,
    Row,
    Sweep,
)
from plait.bench.concurrency.verdict import clients_text, verdicts
from plait.bench.other_work import warning_of

REFERENCE_MODE = "native"
WIDTH = 132
"""Of the tables where the output is no terminal."""

T = TypeVar("T")


def print_report(report: ConcurrencyReport, console: Console) -> None:
    machine = report.machine
    cores = machine["num_usable_cores"]
    console.print(f"{report.model}: {machine['cpu']}, {machine['isa']}, {cores} cores", markup=False)
    loads = list(dict.fromkeys(row.load for row in report.rows))
    for load in loads:
        rows = [row for row in report.rows if row.load == load]
        console.print(_speed_table(load, rows, report.ratios))
        console.print(_latency_table(load, rows))
        console.print(_machine_table(load, rows))
    if report.sweeps:
        console.print(_sweep_table(report.sweeps))
    console.print(_published_table(report))
    if report.accept:
        console.print(_accept_table(report))
    if report.disturbance:
        console.print(_disturbance_table(report))
    for sentence in verdicts(report):
        console.print(sentence, markup=False, highlight=False)
    for label, reason in report.not_offered.items():
        console.print(f"not measured: {label}: {reason}", markup=False, highlight=False)
    if warning := warning_of(report.other_cpus):
        console.print(warning)
    for difference in report.differences:
        console.print(f"WRONG: {difference}", markup=False, highlight=False)


def _new_table(title: str, columns: Sequence[str], *, first: str = "clients, engine, threads") -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _label(row: Row) -> str:
    candidate = row.candidate
    return f"{row.clients:3} {candidate.mode} {candidate.parallelism} {candidate.threads}"


def _speed_table(load: str, rows: Sequence[Row], ratios: Sequence[Ratio]) -> Table:
    table = _new_table(
        f"{load}: rates, medians of the rounds",
        ("req/s", "lowest", "highest", "out tok/s", "all tok/s", f"of {REFERENCE_MODE}"),
    )
    for row in rows:
        median = row.median
        table.add_row(
            _label(row),
            f"{median['requests_per_s']:.2f}",
            f"{row.lowest['requests_per_s']:.2f}",
            f"{row.highest['requests_per_s']:.2f}",
            f"{median['output_tokens_per_s']:.0f}",
            f"{median['total_tokens_per_s']:.0f}",
            _ratio_text(row, ratios),
        )
    return table


def _ratio_text(row: Row, ratios: Sequence[Ratio]) -> str:
    for ratio in ratios:
        reference = Candidate(REFERENCE_MODE, row.candidate.parallelism, row.candidate.threads)
        is_same = (ratio.load, ratio.clients, ratio.candidate) == (row.load, row.clients, row.candidate)
        if is_same and ratio.reference == reference and "requests_per_s" in ratio.values:
            return f"{ratio.values['requests_per_s']:.3f}"
    return ""


def _latency_table(load: str, rows: Sequence[Row]) -> Table:
    table = _new_table(
        f"{load}: milliseconds",
        (
            "latency mean",
            "p50",
            "p99",
            "first token mean",
            "p50",
            "p99",
            "between tokens p50",
            "p99",
            "max",
        ),
    )
    names = [f"{kind}_{part}_s" for kind in ("latency", "first_token") for part in ("mean", "p50", "p99")]
    names += [f"inter_token_{part}_s" for part in ("p50", "p99", "max")]
    for row in rows:
        table.add_row(_label(row), *(ms(row.median[name]) for name in names))
    return table


def _machine_table(load: str, rows: Sequence[Row]) -> Table:
    table = _new_table(
        f"{load}: use of the machine",
        (
            "CPU",
            "PSS MiB",
            "in a step",
            "gap ms",
            "steps",
            "preempted",
            "cached tok",
            "load's share",
            "others' CPUs",
        ),
    )
    for row in rows:
        median = row.median
        table.add_row(
            _label(row),
            f"{median['cpu_share']:.0%}",
            f"{median['pss_bytes'] / 2**20:.0f}",
            f"{median['busy_share']:.1%}",
            f"{median['gap_mean_s'] * 1e3:.3f}",
            f"{median['steps']:.0f}",
            f"{median['preemptions']:.0f}",
            f"{median['cached_tokens']:.0f}",
            f"{median['load_share']:.2%}",
            f"{median['other_cpus']:.2f}",
        )
    return table


def _sweep_table(sweeps: Sequence[Sweep]) -> Table:
    counts = sorted({point.threads for sweep in sweeps for point in sweep.points})
    table = _new_table(
        "requests/s by compute threads, and the number beyond which more do not pay",
        (*map(str, counts), "pays up to"),
        first="load, clients, engine",
    )
    for sweep in sweeps:
        speeds = {point.threads: f"{point.requests_per_s:.2f}" for point in sweep.points}
        table.add_row(
            f"{sweep.load} {sweep.clients:3} {sweep.mode} {sweep.parallelism}",
            *(speeds.get(count, "") for count in counts),
            str(sweep.pays_up_to),
        )
    return table


def _published_table(report: ConcurrencyReport) -> Table:
    """Ours at the load that comes first, with its most clients and most threads."""
    ours = representative_rows(report)
    what = f"{ours[0].load}, {clients_text(ours[0].clients)}" if ours else "not measured"
    columns = ("req/s", f"of {REFERENCE_MODE}", "latency ms", "CPU")
    table = _new_table(
        f"{PUBLISHED_SOURCE}, and plait ({report.model}, {what}, {_threads_of(ours)})",
        (*columns, *(f"ours: {name}" for name in columns)),
        first="mode",
    )
    native = next(row for row in PUBLISHED if row.mode == REFERENCE_MODE)
    for published in PUBLISHED:
        own = next((row for row in ours if row.candidate.mode == published.mode), None)
        table.add_row(published.mode, *_published_cells(published, native), *_own_cells(own, report.ratios))
    return table


def _published_cells(row: Published, native: Published) -> tuple[str, ...]:
    share = row.requests_per_s / native.requests_per_s
    return f"{row.requests_per_s:.0f}", f"{share:.3f}", ms(row.latency_s), f"{row.cpu_share:.0%}"


def _own_cells(row: Row | None, ratios: Sequence[Ratio]) -> tuple[str, ...]:
    if row is None:
        return "", "", "", ""
    is_reference = row.candidate.mode == REFERENCE_MODE
    return (
        f"{row.median['requests_per_s']:.2f}",
        "1.000" if is_reference else _ratio_text(row, ratios),
        ms(row.median["latency_mean_s"]),
        f"{row.median['cpu_share']:.0%}",
    )


def _threads_of(rows: Sequence[Row]) -> str:
    if not rows:
        return "no threads"
    candidate = rows[0].candidate
    return f"{candidate.parallelism}, {candidate.threads} thread{'s' * (candidate.threads != 1)}"


def representative_rows(report: ConcurrencyReport) -> list[Row]:
    """One for each mode: the first load, its most clients, the first parallelism, the most threads."""
    if not report.rows:
        return []
    load = report.rows[0].load
    rows = [row for row in report.rows if row.load == load]
    clients = max(row.clients for row in rows)
    threads = max(row.candidate.threads for row in rows)
    parallelism = rows[0].candidate.parallelism
    return [
        row
        for row in rows
        if (row.clients, row.candidate.threads, row.candidate.parallelism) == (clients, threads, parallelism)
    ]


def _accept_table(report: ConcurrencyReport) -> Table:
    first = report.accept[0].figures
    table = _new_table(
        f"taking a request in while {first.streams} streams decode, milliseconds ({first.probes} requests a round)",
        ("step mean", "submit p50", "p99", "taken in p50", "p99", "max", "engine: mean", "p99", "in 2 ms"),
    )
    for candidate in dict.fromkeys(run.candidate for run in report.accept):
        runs = [run.figures for run in report.accept if run.candidate == candidate]
        table.add_row(
            candidate.label,
            _median_ms(runs, lambda figures: figures.step_mean_s),
            _median_ms(runs, lambda figures: figures.submit_call.p50_s),
            _median_ms(runs, lambda figures: figures.submit_call.p99_s),
            _median_ms(runs, lambda figures: figures.accepted.p50_s),
            _median_ms(runs, lambda figures: figures.accepted.p99_s),
            _median_ms(runs, lambda figures: figures.accepted.max_s),
            _known([figures.engine_mean_s for figures in runs], ms),
            _known([figures.engine_p99_s for figures in runs], ms),
            _known([figures.within_2ms_share for figures in runs], lambda share: f"{share:.1%}"),
        )
    return table


def _disturbance_table(report: ConcurrencyReport) -> Table:
    first = report.disturbance[0].figures
    table = _new_table(
        f"a prompt of {first.prompt_tokens} tokens among {first.streams} streams: gaps between tokens, milliseconds",
        (
            "before p99",
            "undisturbed p99",
            "max",
            "disturbed p99",
            "max",
            "max / undisturbed p99",
            "/ before p99",
            "first token s",
            "of whole steps",
            "alone s",
        ),
    )
    for candidate in dict.fromkeys(run.candidate for run in report.disturbance):
        runs = [run for run in report.disturbance if run.candidate == candidate]
        for is_unpaced in sorted({run.is_unpaced for run in runs}):
            own = [run.figures for run in runs if run.is_unpaced == is_unpaced]
            table.add_row(
                candidate.label + (", whole steps" if is_unpaced else ""),
                _median_ms(own, lambda figures: figures.before.p99_s),
                _median_ms(own, lambda figures: figures.undisturbed.p99_s),
                _median_ms(own, lambda figures: figures.undisturbed.max_s),
                _median_ms(own, lambda figures: figures.disturbed.p99_s),
                _median_ms(own, lambda figures: figures.disturbed.max_s),
                _median_ratio(own, lambda figures: (figures.disturbed.max_s, figures.undisturbed.p99_s)),
                _median_ratio(own, lambda figures: (figures.disturbed.max_s, figures.before.p99_s)),
                f"{statistics.median(f.first_token_s for f in own):.2f}",
                _first_token_ratio(runs, is_unpaced),
                f"{statistics.median(f.alone_first_token_s for f in own):.2f}",
            )
    return table


def _median_ratio(
    runs: Sequence[DisturbanceFigures], times: Callable[[DisturbanceFigures], tuple[float, float]]
) -> str:
    pairs = [times(figures) for figures in runs]
    return f"{statistics.median(a / max(b, 1e-9) for a, b in pairs):.2f}"


def _first_token_ratio(runs: Sequence[DisturbanceRun], is_unpaced: bool) -> str:
    """Of the paced schedule's first token to that of whole steps, the median of the rounds."""
    whole = {run.round_idx: run.figures.first_token_s for run in runs if run.is_unpaced}
    own = [run for run in runs if run.is_unpaced == is_unpaced and run.round_idx in whole]
    if not own:
        return ""
    return f"{statistics.median(run.figures.first_token_s / whole[run.round_idx] for run in own):.3f}"


def _median_ms(items: Sequence[T], value: Callable[[T], float]) -> str:
    return ms(statistics.median(value(item) for item in items))


def _known(values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    """The median of those that the engine gives."""
    given = [value for value in values if value is not None]
    return shown(statistics.median(given)) if given else ""


def ms(seconds: float) -> str:
    """With three digits that count."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

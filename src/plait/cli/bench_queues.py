"""plait bench queues"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.bench_output import ResultFiles, status

if TYPE_CHECKING:
    from plait.bench.queues import QueueReport


def bench_queues(
    messages: Annotated[int, typer.Option(help="Messages of one run of a native queue.")] = 50_000,
    repeats: Annotated[int, typer.Option(help="Timed runs of it; the fastest counts.")] = 60,
    capacity: Annotated[int, typer.Option(help="Slots of each queue.")] = 256,
    rounds: Annotated[int, typer.Option(help="Round trips of each native queue.")] = 20_000,
    python_messages: Annotated[int, typer.Option(help="Messages between Python threads.")] = 100_000,
    python_rounds: Annotated[int, typer.Option(help="Round trips between Python threads.")] = 400,
    intervals_ms: Annotated[
        str, typer.Option(help="Switch intervals of the interpreter in ms; a list.")
    ] = "5,0.5,0.05",
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result there; - prints it as the last line.")
    ] = None,
) -> None:
    """Messages between threads: lock-free rings, channels and mutexes, native and between Python threads."""
    from plait.bench.queues import QueueSettings, run_queue_bench

    settings = QueueSettings(
        messages=messages,
        repeats=repeats,
        capacity=capacity,
        rounds=rounds,
        python_messages=python_messages,
        python_rounds=python_rounds,
        intervals_s=_parse_intervals(intervals_ms),
    )
    settings.check()
    files = ResultFiles(json_path)
    files.check()
    with status("starting") as tell:
        report = run_queue_bench(settings, tell)
    _print_report(report)
    files.give(report.to_json())
    if report.has_wrong_queues:
        raise typer.Exit(1)


def _parse_intervals(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) / 1e3 for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no list of times such as 5,0.5,0.05", param_hint="--intervals-ms"
        ) from None


def _print_report(report: QueueReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rates = Table(
        title=f"{report.machine['cpu']}, {report.machine['num_cpus']} CPUs; "
        f"{report.line_transfer_s * 1e9:.0f} ns for a cache line",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    rates.add_column("queue", no_wrap=True)
    for name in ("producers", "bytes", "messages/s", "median"):
        rates.add_column(name, justify="right", no_wrap=True)
    wrong = []
    for rate in report.rates:
        size = "object" if rate.message_bytes is None else str(rate.message_bytes)
        if rate.messages_per_s is None or rate.median_messages_per_s is None:
            rates.add_row(rate.queue, str(rate.num_producers), size, "wrong")
            wrong.append(f"{rate.queue}, {rate.num_producers} producers, {size} bytes: {rate.difference}")
            continue
        rates.add_row(
            rate.queue,
            str(rate.num_producers),
            size,
            f"{rate.messages_per_s / 1e6:.2f} M",
            f"{rate.median_messages_per_s / 1e6:.2f} M",
        )
    console.print(rates)
    latencies = Table(box=SIMPLE_HEAD, pad_edge=False)
    latencies.add_column("one at a time", no_wrap=True)
    for name in ("beside", "p50 us", "p99 us", "busy gets"):
        latencies.add_column(name, justify="right", no_wrap=True)
    for row in report.latencies:
        beside = "" if row.busy_interval_s is None else f"busy, {row.busy_interval_s * 1e3:g} ms"
        latencies.add_row(
            f"{row.what}, {row.queue}",
            beside,
            f"{row.p50_s * 1e6:.1f}",
            f"{row.p99_s * 1e6:.1f}",
            "" if row.busy_share is None else f"{row.busy_share:.0%}",
        )
    console.print(latencies)
    for line in wrong:
        console.print(f"wrong, not timed: {line}", markup=False)

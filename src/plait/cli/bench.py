"""plait bench"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from plait.cli.bench_concurrency import bench_concurrency
from plait.cli.bench_input import parse_sizes, parse_words, resolve_or_pull
from plait.cli.bench_output import ResultFiles, status
from plait.cli.bench_queues import bench_queues

if TYPE_CHECKING:
    from plait.bench.kernels import KernelReport
    from plait.bench.step import StepReport
    from plait.config.engine import ComputeParallelism, KvCacheDtype

bench_app = typer.Typer(help="Measure speed.", rich_markup_mode=None, no_args_is_help=True)
bench_app.command("queues")(bench_queues)
bench_app.command("concurrency")(bench_concurrency)


@bench_app.callback()
def bench() -> None:
    """Measure speed."""


@bench_app.command("step")
def bench_step(
    model: Annotated[str | None, typer.Argument(help="GGUF file or catalogue name.")] = None,
    batches: Annotated[str, typer.Option(help="Sequences that decode together; a list.")] = "1,8,32",
    contexts: Annotated[str, typer.Option(help="Tokens before a sequence decodes; a list.")] = "128",
    prompts: Annotated[str, typer.Option(help="Prompt lengths for prefill; a list.")] = "512",
    decode_tokens: Annotated[int, typer.Option(help="Timed tokens of each sequence.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed runs; the median counts.")] = 3,
    num_compute_threads: Annotated[
        int | None, typer.Option("--threads", "--num-compute-threads", help="Default: the core budget.")
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="How the KV cache is stored: f16 or q8.")] = "f16",
    compute_parallelism: Annotated[
        str, typer.Option(help="How a step uses the threads: tensor or pipeline.")
    ] = "tensor",
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result there; - prints it as the last line.")
    ] = None,
) -> None:
    """Prefill and decode speed of one engine, and the share of time outside the forward pass."""
    from plait.bench.step import StepSettings, run_step_bench
    from plait.weights.catalog import damage_explained

    settings = StepSettings(
        batches=parse_sizes("--batches", batches),
        contexts=parse_sizes("--contexts", contexts),
        prompts=parse_sizes("--prompts", prompts),
        decode_tokens=decode_tokens,
        repeats=repeats,
        num_compute_threads=num_compute_threads,
        kv_cache_dtype=cast("KvCacheDtype", kv_cache_dtype),  # check() looks
        compute_parallelism=cast("ComputeParallelism", compute_parallelism),
    )
    settings.check()
    files = ResultFiles(json_path)
    files.check()
    path = resolve_or_pull(model)
    files.check([path])
    with damage_explained(path):
        report = run_step_bench(path, settings)
    _print_table(report)
    files.give(report.to_json())


@bench_app.command("kernels")
def bench_kernels(
    model: Annotated[str | None, typer.Argument(help="GGUF file or catalogue name.")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of each matrix product; a list.")] = "1,8,32,512",
    contexts: Annotated[
        str, typer.Option(help="Positions that attention of one token sees; a list.")
    ] = "128,2048,8000",
    prompts: Annotated[str, typer.Option(help="Prompt lengths for attention; a list.")] = "512",
    repeats: Annotated[int, typer.Option(help="Timed runs; the fastest counts.")] = 15,
    num_compute_threads: Annotated[
        int | None, typer.Option("--threads", "--num-compute-threads", help="Default: the core budget.")
    ] = None,
    isa: Annotated[
        str | None, typer.Option(help="Instruction set. Default: the one that an engine would use.")
    ] = None,
    kernels: Annotated[
        str, typer.Option(help="Only kernels whose name contains one of these; a list such as Q4,attention.")
    ] = "",
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result there; - prints it as the last line.")
    ] = None,
    svg_path: Annotated[str | None, typer.Option("--svg", help="Draw the roofline there.")] = None,
) -> None:
    """Each kernel at the model's shapes, as a share of what the machine can do at best."""
    from plait.bench.kernels import KernelSettings, run_kernel_bench
    from plait.weights.catalog import damage_explained

    settings = KernelSettings(
        tokens=parse_sizes("--tokens", tokens),
        contexts=parse_sizes("--contexts", contexts),
        prompts=parse_sizes("--prompts", prompts),
        repeats=repeats,
        num_compute_threads=num_compute_threads,
        isa=isa,
        kernels=parse_words(kernels),
    )
    settings.check()
    files = ResultFiles(json_path, svg_path)
    files.check()
    path = resolve_or_pull(model)
    files.check([path])
    with damage_explained(path), status("reading the model") as tell:
        report = run_kernel_bench(path, settings, tell)
    _print_kernels(report)
    files.give(report.to_json(), lambda: draw_kernels(report))
    if report.has_wrong_kernels:
        raise typer.Exit(1)


def _print_table(report: StepReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from plait.bench.other_work import warning_of

    machine = report.machine
    table = Table(
        title=f"{report.model}: {machine['cpu']}, {machine['isa']}, {machine['num_compute_threads']} threads",
        title_justify="left",
    )
    table.add_column("work")
    for name in ("batch", "context", "tokens/s", "slowest", "fastest", "outside forward"):
        table.add_column(name, justify="right")
    for row in report.measurements:
        table.add_row(
            row.kind,
            str(row.batch),
            str(row.context),
            f"{row.tokens_per_s:.1f}",
            f"{min(row.runs_tokens_per_s):.1f}",
            f"{max(row.runs_tokens_per_s):.1f}",
            f"{row.outside_share:.1%}",
        )
    console = Console()
    console.print(table)
    if warning := warning_of(report.other_cpus):
        console.print(warning)


def _print_kernels(report: KernelReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from plait.bench.other_work import warning_of

    machine = report.machine
    console = Console()
    ceilings = Table(
        title=f"{report.model}: {machine['cpu']}, {machine['isa']}, {machine['num_compute_threads']} threads",
        title_justify="left",
    )
    ceilings.add_column("ceiling")
    for name in ("1 thread", "all threads"):
        ceilings.add_column(name, justify="right")
    for ceiling in report.ceilings.values():
        unit = "G" + ceiling.unit
        ceilings.add_row(
            ceiling.name, f"{ceiling.alone / 1e9:.1f} {unit}", f"{ceiling.together / 1e9:.1f} {unit}"
        )
    console.print(ceilings)
    # One that fits a terminal of 80 columns.
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    for name in ("GMAC/s", "median", "GB/s", "compute", "read", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    wrong = []
    for row in report.measurements:
        if row.gmacs_per_s is None or row.gbytes_per_s is None or row.median_s is None:
            table.add_row(row.label, "wrong")
            wrong.append(f"{row.label}: {row.difference}")
            continue
        table.add_row(
            row.label,
            f"{row.gmacs_per_s:.1f}",
            f"{row.macs / row.median_s / 1e9:.1f}",
            f"{row.gbytes_per_s:.2f}",
            f"{row.compute_share:.0%}",
            f"{row.read_share:.0%}",
            "read" if row.bound == "memory" else row.ceiling,
        )
    console.print(table)
    for line in wrong:
        console.print(f"wrong result, not timed: {line}", markup=False)
    for line in report.not_offered:
        console.print(f"not timed: {line}", markup=False, highlight=False)
    if warning := warning_of(report.other_cpus):
        console.print(warning)


def draw_kernels(report: KernelReport) -> str:
    """The roofline of a report, as SVG. A kernel with a wrong result has no point."""
    from plait.bench.roofline import ComputeCeiling, Point, draw_roofline

    points = [
        Point(row.label, row.kernel, row.macs / row.num_bytes, row.gmacs_per_s)
        for row in report.measurements
        if row.gmacs_per_s is not None
    ]
    used = {row.ceiling for row in report.measurements}
    levels = [
        ComputeCeiling(name, ceiling.together / 1e9)
        for name, ceiling in report.ceilings.items()
        if name in used
    ]
    if not points:
        levels = [ComputeCeiling("f32", report.ceilings["f32"].together / 1e9)]
    machine = report.machine
    title = f"{report.model}: {machine['cpu']}, {machine['isa']}, {machine['num_compute_threads']} threads"
    return draw_roofline(title, report.ceilings["read"].together / 1e9, levels, points)

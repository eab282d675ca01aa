"""plait bench concurrency"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.bench_input import parse_sizes, parse_words, resolve_or_pull
from plait.cli.bench_output import ResultFiles, status

if TYPE_CHECKING:
    from plait.bench.concurrency.report import ConcurrencyReport


def bench_concurrency(
    model: Annotated[str | None, typer.Argument(help="GGUF file or catalogue name.")] = None,
    level: Annotated[str, typer.Option(help="What runs in each process: engine.")] = "engine",
    loads: Annotated[str, typer.Option(help="Loads by name or .json file; a list.")] = "chat,mixed,io",
    modes: Annotated[str, typer.Option(help="Engine modes; a list. Default: all.")] = "",
    parallelism: Annotated[str, typer.Option(help="Compute parallelisms; a list. Default: all.")] = "",
    threads: Annotated[
        str, typer.Option(help="Numbers of compute threads; a list. Default: 1 to all cores.")
    ] = "",
    clients: Annotated[str, typer.Option(help="Numbers of clients; a list. Default: the load's.")] = "",
    rounds: Annotated[int, typer.Option(help="Runs of each, in turns; the median counts.")] = 3,
    probes: Annotated[
        bool, typer.Option(help="Measure how requests are taken in and what a long prompt does, too.")
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny loads, one round: does it all run?")] = False,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result there; - prints it as the last line.")
    ] = None,
    svg_path: Annotated[str | None, typer.Option("--svg", help="Draw the result there.")] = None,
) -> None:
    """Every engine mode, compute parallelism and number of threads on the same load, each in its own process."""
    from plait.bench.concurrency.picture import draw_report
    from plait.bench.concurrency.runner import ConcurrencySettings, run_concurrency_bench
    from plait.bench.concurrency.scenario import load_scenario
    from plait.weights.catalog import damage_explained

    if level != "engine":
        raise typer.BadParameter(f"{level!r} is none; use engine", param_hint="--level")
    settings = ConcurrencySettings(
        loads=tuple(load_scenario(name) for name in parse_words(loads)),
        modes=parse_words(modes),
        parallelisms=parse_words(parallelism),
        threads=parse_sizes("--threads", threads) if threads else (),
        clients=parse_sizes("--clients", clients) if clients else (),
        rounds=rounds,
        has_probes=probes,
        is_quick=quick,
    )
    settings.check()
    inputs = [Path(name) for name in parse_words(loads) if name.endswith(".json")]
    files = ResultFiles(json_path, svg_path)
    files.check(inputs)
    path = resolve_or_pull(model)
    files.check([*inputs, path])
    with damage_explained(path), status("reading the model") as tell:
        report = run_concurrency_bench(path, settings, tell)
    _print_concurrency(report)
    files.give(report.to_json(), lambda: draw_report(report))
    if report.differences:
        raise typer.Exit(1)


def _print_concurrency(report: ConcurrencyReport) -> None:
    from rich.console import Console

    from plait.bench.concurrency.table import WIDTH, print_report

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    print_report(report, console)

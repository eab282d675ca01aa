"""plait bench"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(help="Measure speed.", rich_markup_mode=None, no_args_is_help=True)

_Sizes = Annotated[str, typer.Option(help="Comma-separated list.")]


@bench_app.callback()
def bench() -> None:
    """Measure speed."""


@bench_app.command("step")
def bench_step(
    model: Annotated[str | None, typer.Argument(help="GGUF file or catalogue name.")] = None,
    batches: _Sizes = "1,8,32",
    contexts: _Sizes = "128",
    prompts: _Sizes = "512",
    decode_tokens: Annotated[int, typer.Option(help="Tokens that each sequence produces.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs; the median counts.")] = 3,
    num_compute_threads: Annotated[int | None, typer.Option(help="Default: the core budget.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
) -> None:
    """Prefill and decode speed of one engine, by batch size."""
    from plait.bench.step import run_step_bench
    from plait.cli.progress import PullBar
    from plait.weights.catalog import DEFAULT_MODEL, resolve_model

    with PullBar() as bar:
        path = resolve_model(model or DEFAULT_MODEL, bar.update)
    result = run_step_bench(
        path,
        batches=_parse_sizes("--batches", batches),
        contexts=_parse_sizes("--contexts", contexts),
        prompts=_parse_sizes("--prompts", prompts),
        decode_tokens=decode_tokens,
        repeats=repeats,
        num_compute_threads=num_compute_threads,
    )
    typer.echo(f"{result.model}, {result.isa}, {result.num_compute_threads} threads")
    typer.echo(f"{'':8} {'batch':>5} {'context':>7} {'tok/s':>10} {'outside forward':>16}")
    for row in result.measurements:
        share = f"{row.outside_share:.1%}"
        typer.echo(f"{row.kind:8} {row.batch:5} {row.context:7} {row.tokens_per_s:10.1f} {share:>16}")
    if json_path is not None:
        json_path.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")


def _parse_sizes(flag: str, text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32", param_hint=flag) from None

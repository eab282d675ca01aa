"""plait bench"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from plait.bench.step import StepReport
    from plait.config.engine import KvCacheDtype

bench_app = typer.Typer(help="Measure speed.", rich_markup_mode=None, no_args_is_help=True)

_STDOUT = "-"


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
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result there; - prints it as the last line.")
    ] = None,
) -> None:
    """Prefill and decode speed of one engine, and the share of time outside the forward pass."""
    from plait.bench.step import StepSettings, run_step_bench
    from plait.cli.progress import PullBar
    from plait.weights.catalog import DEFAULT_MODEL, damage_explained, resolve_model

    settings = StepSettings(
        batches=_parse_sizes("--batches", batches),
        contexts=_parse_sizes("--contexts", contexts),
        prompts=_parse_sizes("--prompts", prompts),
        decode_tokens=decode_tokens,
        repeats=repeats,
        num_compute_threads=num_compute_threads,
        kv_cache_dtype=cast("KvCacheDtype", kv_cache_dtype),  # check() looks
    )
    settings.check()
    with PullBar() as bar:
        path = resolve_model(model or DEFAULT_MODEL, bar.update)
    with damage_explained(path):
        report = run_step_bench(path, settings)
    _print_table(report)
    if json_path == _STDOUT:
        print(json.dumps(report.to_json()))
    elif json_path is not None:
        _write(Path(json_path), json.dumps(report.to_json(), indent=1) + "\n")


def _parse_sizes(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32", param_hint=flag) from None


def _print_table(report: StepReport) -> None:
    from rich.console import Console
    from rich.table import Table

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
    Console().print(table)


def _write(path: Path, text: str) -> None:
    from plait.errors import ConfigError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json: {path}: {error.strerror}") from None

"""The same work on plait and on llama.cpp, in turns on the same machine; prints the ratios.

usage: .venv/bin/python benchmarks/peer_llamacpp.py [MODEL] [--rounds 5] [--threads N] [--peer DIR] [--json PATH]

Every round runs llama-bench, llama-batched-bench and `plait bench step`, each as a process of its own, with the same
file and the same number of threads; odd and even rounds go in opposite order, so that a machine that gets slower or
faster favours nobody. Reported are the median of each side and the median of the ratios within the rounds.

What is compared:
- prefill: one prompt of --prompt tokens. llama-bench "pp"; plait until the first token has reached the client.
- decode of one sequence: llama-bench "tg", which starts from an empty context; plait after --context tokens.
- decode by batch: llama-batched-bench "tg", all sequences after --context tokens, as in plait.
The peer's tools neither sample nor schedule; plait's numbers include both.

Decode of one sequence reads all weights for each token, so that it goes with what memory gives. Virtual machines share
it with strangers: the same file can be half as fast a minute later. So each round measures, before and after plait's
part, how fast all threads together read memory, and the result shows it.

The machine must be idle: the peer's threads spin, and lose much more than their share to other work. What others did
meanwhile is measured, and the result says so when it was too much.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench_arguments import positive, positives, run_main
from peer_llamacpp_build import BenchmarkError, find_peer, shorten

from plait.bench.other_work import MAX_OTHER_CPUS, OtherWork
from plait.cli.bench_output import ResultFiles


class Work(NamedTuple):
    kind: str
    """"prefill" or "decode"."""
    batch: int
    tool: str
    """The peer's tool that measures it."""


@dataclass(frozen=True)  # no slots: the defaults are read from the class
class Settings:
    model: Path
    num_threads: int
    rounds: int = 5
    repeats: int = 1
    """Runs of each measurement within a round."""
    prompt: int = 512
    context: int = 128
    decode_tokens: int = 64
    batches: tuple[int, ...] = (1, 8, 32)
    timeout_s: float = 1800.0
    """Of each process."""

    def works(self) -> list[Work]:
        singles = [Work("prefill", 1, "llama-bench"), Work("decode", 1, "llama-bench")]
        return [*singles, *(Work("decode", batch, "llama-batched-bench") for batch in self.batches)]


@dataclass(frozen=True, slots=True)
class Row:
    """Speeds are tokens per second, medians over the rounds; a ratio is plait's speed over the peer's."""

    kind: str
    batch: int
    tool: str
    plait: float
    peer: float
    ratio: float
    ratio_min: float
    ratio_max: float


# ---- commands and their output


def llama_bench_command(tools: Path, settings: Settings) -> list[str]:
    return [
        str(tools / "llama-bench"),
        *("-m", str(settings.model), "-t", str(settings.num_threads), "-r", str(settings.repeats)),
        *("-p", str(settings.prompt), "-n", str(settings.decode_tokens), "-o", "json"),
    ]


def batched_bench_command(tools: Path, settings: Settings) -> list[str]:
    threads = str(settings.num_threads)
    # One context for all, large enough for the largest batch. A batch named twice runs twice.
    num_kv_tokens = max(settings.batches) * (settings.context + settings.decode_tokens)
    batches = ",".join(str(batch) for batch in settings.batches * settings.repeats)
    return [
        str(tools / "llama-batched-bench"),
        *("-m", str(settings.model), "-t", threads, "-tb", threads, "-c", str(num_kv_tokens)),
        *("-npp", str(settings.context), "-ntg", str(settings.decode_tokens), "-npl", batches),
        *("--output-format", "jsonl"),
    ]


def plait_command(settings: Settings) -> list[str]:
    batches = ",".join(str(batch) for batch in plait_batches(settings))
    return [
        *(sys.executable, "-c", "from plait.cli import main; main()", "bench", "step", str(settings.model)),
        *("--prompts", str(settings.prompt), "--contexts", str(settings.context), "--batches", batches),
        *("--decode-tokens", str(settings.decode_tokens), "--repeats", str(settings.repeats)),
        *("--threads", str(settings.num_threads), "--json", "-"),
    ]


def plait_batches(settings: Settings) -> list[int]:
    """Those of the peer, and 1 for llama-bench."""
    return sorted({1, *settings.batches})


def parse_llama_bench(text: str) -> dict[Work, float]:
    """Speeds by work from the output of ``llama-bench -o json``."""
    try:
        tests = json.loads(text[text.index("[") :])
        speeds = {}
        for test in tests:
            num_prompt, num_generated = int(test["n_prompt"]), int(test["n_gen"])
            if (num_prompt > 0) == (num_generated > 0):
                raise ValueError("a test is neither prefill nor decode")
            seconds = statistics.median(float(ns) for ns in test["samples_ns"]) / 1e9
            work = Work("prefill" if num_prompt else "decode", 1, "llama-bench")
            speeds[work] = (num_prompt or num_generated) / seconds
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BenchmarkError(
            f"llama-bench: its output is not understood ({error}): {shorten(text)}"
        ) from None
    return speeds


def parse_batched_bench(text: str) -> dict[Work, float]:
    """Decode speeds by work from the output of ``llama-batched-bench --output-format jsonl``."""
    runs: dict[int, list[float]] = {}
    try:
        for line in text.splitlines():
            if line.startswith("{"):
                test = json.loads(line)
                runs.setdefault(int(test["pl"]), []).append(float(test["speed_tg"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"llama-batched-bench: its output is not understood ({error})") from None
    return {Work("decode", batch, "llama-batched-bench"): statistics.median(r) for batch, r in runs.items()}


def parse_plait(text: str) -> tuple[dict[tuple[str, int], float], dict[str, Any]]:
    """Speeds by (kind, batch) from the last line of ``plait bench step --json -``, and its machine block."""
    try:
        result = json.loads(text.strip().rpartition("\n")[2])
        speeds = {(m["kind"], m["batch"]): float(m["tokens_per_s"]) for m in result["measurements"]}
        return speeds, result["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"plait bench step: its output is not understood ({error})") from None


def run_tool(command: Sequence[str], timeout_s: float) -> str:
    """What a process writes to stdout.

    Raises:
        BenchmarkError: it cannot be started, fails, or takes too long.
    """
    name = "plait bench step" if command[0] == sys.executable else Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except OSError as error:
        raise BenchmarkError(f"{name}: {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BenchmarkError(
            f"{name}: not done after {timeout_s:.0f} s; is the machine busy? (the limit is --timeout)"
        ) from None
    if done.returncode != 0:
        raise BenchmarkError(f"{name}: exit code {done.returncode}: {shorten(done.stderr or done.stdout)}")
    return done.stdout


def measure_read_rate(num_threads: int) -> float:
    """Bytes per second that all threads together read from memory."""
    from plait.bench import kernels

    return kernels.measure_read_rate(num_threads)


# ---- rounds and ratios


class Round(NamedTuple):
    plait: dict[tuple[str, int], float]
    peer: dict[Work, float]
    machine: dict[str, Any]
    read_bytes_per_s: tuple[float, ...]
    """By all threads, before and after plait's part."""


class Hands(NamedTuple):
    """What a round does things with; tests have others."""

    run: Callable[[Sequence[str], float], str] = run_tool
    read_rate: Callable[[int], float] = measure_read_rate


HANDS = Hands()


def run_round(index: int, tools: Path, settings: Settings, hands: Hands = HANDS) -> Round:
    """One run of each side; even rounds begin with the peer, odd ones with plait."""
    run = hands.run

    def run_peer() -> dict[Work, float]:
        single = parse_llama_bench(run(llama_bench_command(tools, settings), settings.timeout_s))
        return single | parse_batched_bench(run(batched_bench_command(tools, settings), settings.timeout_s))

    def run_plait() -> tuple[dict[tuple[str, int], float], dict[str, Any], tuple[float, ...]]:
        before = hands.read_rate(settings.num_threads)
        plait, machine = parse_plait(run(plait_command(settings), settings.timeout_s))
        return plait, machine, (before, hands.read_rate(settings.num_threads))

    if index % 2 == 0:
        peer = run_peer()
        plait, machine, read_rates = run_plait()
    else:
        plait, machine, read_rates = run_plait()
        peer = run_peer()
    for work in settings.works():
        if work not in peer:
            raise BenchmarkError(f"{work.tool} reported nothing for {work.kind}, batch {work.batch}")
        if (work.kind, work.batch) not in plait:
            raise BenchmarkError(f"plait bench step reported nothing for {work.kind}, batch {work.batch}")
    return Round(plait, peer, machine, read_rates)


def compare(rounds: Sequence[Round], works: Sequence[Work]) -> list[Row]:
    rows = []
    for work in works:
        plait = [a.plait[work.kind, work.batch] for a in rounds]
        peer = [a.peer[work] for a in rounds]
        ratios = [a / b for a, b in zip(plait, peer, strict=True)]
        medians = (statistics.median(plait), statistics.median(peer), statistics.median(ratios))
        rows.append(Row(*work, *medians, min(ratios), max(ratios)))
    return rows


def format_table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'work':8} {'batch':>5}  {'peer tool':20} {'peer':>9} {'plait':>9} {'ratio':>6}   range of ratios"
    ]
    for row in rows:
        lines.append(
            f"{row.kind:8} {row.batch:5}  {row.tool:20} {row.peer:9.1f} {row.plait:9.1f} {row.ratio:5.2f}x"
            f"   {row.ratio_min:.2f} to {row.ratio_max:.2f}"
        )
    return "\n".join(
        [*lines, "tokens/s, medians over the rounds; ratio = plait / peer, median of the rounds"]
    )


def format_read_rates(rounds: Sequence[Round]) -> str:
    by_round = [statistics.mean(r.read_bytes_per_s) / 1e9 for r in rounds]
    return (
        f"memory is read at {statistics.median(by_round):.1f} GB/s by all threads, median of the rounds "
        f"({', '.join(f'{rate:.1f}' for rate in by_round)})"
    )


def to_json(
    rounds: Sequence[Round], others: Sequence[float], rows: Sequence[Row], settings: Settings
) -> dict[str, Any]:
    """``others``: what each round lost to other work, see ``OtherWork``."""
    return {
        "bench": "peer_llamacpp",
        "schema_version": 1,
        "machine": rounds[-1].machine,
        "settings": asdict(settings) | {"model": settings.model.name},
        "is_trusted": max(others) <= MAX_OTHER_CPUS,
        "rows": [asdict(row) for row in rows],
        "rounds": [
            {
                "other_work_cpus": other,
                "read_bytes_per_s": list(r.read_bytes_per_s),
                "plait": [
                    {"kind": kind, "batch": batch, "tokens_per_s": v} for (kind, batch), v in r.plait.items()
                ],
                "peer": [{**work._asdict(), "tokens_per_s": v} for work, v in r.peer.items()],
            }
            for r, other in zip(rounds, others, strict=True)
        ],
    }


# ---- command line


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="plait and llama.cpp on the same work, in turns.")
    parser.add_argument("model", nargs="?", help="GGUF file or catalogue name; default: the default model")
    parser.add_argument("--rounds", type=positive, default=Settings.rounds)
    parser.add_argument("--repeats", type=positive, default=Settings.repeats, help="runs within a round")
    parser.add_argument("--threads", type=positive, help="of both sides; default: the core budget")
    parser.add_argument("--prompt", type=positive, default=Settings.prompt, help="prompt length for prefill")
    parser.add_argument("--context", type=positive, default=Settings.context, help="tokens before decode")
    parser.add_argument("--decode-tokens", type=positive, default=Settings.decode_tokens)
    parser.add_argument("--batches", type=positives, default=Settings.batches, help="e.g. 1,8,32")
    parser.add_argument("--timeout", type=float, default=Settings.timeout_s, help="seconds of one process")
    parser.add_argument("--peer", type=Path, help="folder with bin/llama-bench and bin/llama-batched-bench")
    parser.add_argument("--json", help="write the result there; - prints it as the last line")
    return parser.parse_args(arguments)


def make_settings(arguments: argparse.Namespace) -> Settings:
    try:
        from plait.config import read_machine
        from plait.weights.catalog import DEFAULT_MODEL, resolve_model
    except ImportError as error:
        raise BenchmarkError(f"{error}: make build, then use .venv/bin/python") from None

    return Settings(
        model=resolve_model(arguments.model or DEFAULT_MODEL),
        num_threads=arguments.threads or read_machine().num_usable_cores,
        rounds=arguments.rounds,
        repeats=arguments.repeats,
        prompt=arguments.prompt,
        context=arguments.context,
        decode_tokens=arguments.decode_tokens,
        batches=arguments.batches,
        timeout_s=arguments.timeout,
    )


def run(arguments: argparse.Namespace) -> None:
    settings = make_settings(arguments)
    files = ResultFiles(arguments.json)
    files.check([settings.model])
    tools = find_peer(arguments.peer)
    rounds, others = [], []
    for index in range(settings.rounds):
        print(f"round {index + 1} of {settings.rounds}", file=sys.stderr)
        other_work = OtherWork()
        rounds.append(run_round(index, tools, settings))
        others.append(other_work.num_cpus())
    rows = compare(rounds, settings.works())
    print(f"{settings.model.name}, {settings.num_threads} threads, {settings.rounds} rounds")
    print(format_table(rows))
    print(format_read_rates(rounds))
    if max(others) > MAX_OTHER_CPUS:
        print(f"NOT TO BE TRUSTED: other work kept up to {max(others):.1f} CPUs busy during a round")
    result = to_json(rounds, others, rows, settings)
    files.give(result)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_main("peer_llamacpp", lambda: run(parse_arguments(arguments)))


if __name__ == "__main__":
    sys.exit(main())

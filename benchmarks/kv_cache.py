"""Decode of one sequence with an f16 and with a q8 KV cache, in turns in one process.

Both engines hold the same prompt in their prefix caches, so that a turn costs a few decoded tokens and not a
prefill of thousands: many short turns even out what other guests of the machine do. Prints a table of medians and,
as the last line, JSON.

    .venv/bin/python benchmarks/kv_cache.py smollm2-135m-instruct --contexts 100,8000 --rounds 15
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import get_args

from bench_arguments import positive, positives, run_main

from plait.bench.machine import describe_machine
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.config.engine import KvCacheDtype
from plait.engine import start_engine
from plait.types import GenerateRequest, SamplingParams, TokenOutput
from plait.weights.catalog import resolve_model

_TIMEOUT_S = 300.0


@dataclass
class Turn:
    """Times of one request's outputs; ``take`` runs on the engine's I/O thread."""

    times: list[float] = field(default_factory=list)
    error: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, output: TokenOutput) -> None:
        self.times += [time.perf_counter()] * len(output.token_ids)
        if output.finish_reason is not None:
            self.error = output.error
            self.ended.set()


def token_s(client: EngineClient, prompt: tuple[int, ...], num_tokens: int) -> float:
    """Seconds per token after the first."""
    turn = Turn()
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens + 1, ignore_eos=True)
    client.submit(GenerateRequest(prompt, sampling), turn.take)
    if not turn.ended.wait(_TIMEOUT_S) or turn.error:
        raise SystemExit(f"kv_cache: no answer: {turn.error or 'timed out'}")
    return (turn.times[-1] - turn.times[0]) / num_tokens


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path or catalogue name")
    parser.add_argument(
        "--contexts", type=positives, default=(100, 8000), help="prompt tokens, separated by commas"
    )
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--decode-tokens", type=positive, default=32)
    parser.add_argument("--threads", type=positive, default=None)
    args = parser.parse_args(arguments)
    model = resolve_model(args.model)
    clients = {
        dtype: start_engine(model, EngineConfig(kv_cache_dtype=dtype, num_compute_threads=args.threads))
        for dtype in get_args(KvCacheDtype)
    }
    result: dict[str, object] = {"bench": "kv_cache", "model": model.name, "rounds": args.rounds}
    try:
        info = clients["f16"].info
        result["machine"] = describe_machine(isa=info.isa, num_compute_threads=info.num_compute_threads)
        print(
            f"{'context':>8}"
            + "".join(f"{dtype:>10} tok/s" for dtype in clients)
            + "   q8 / f16 (of each turn)"
        )
        rows = []
        for context in args.contexts:
            draw = random.Random(context)
            prompt = tuple(draw.choices(range(info.vocab_size), k=context))
            for client in clients.values():
                token_s(client, prompt, 1)
            times: dict[str, list[float]] = {dtype: [] for dtype in clients}
            for _ in range(args.rounds):
                for dtype, client in clients.items():
                    times[dtype].append(token_s(client, prompt, args.decode_tokens))
            medians = {dtype: 1.0 / statistics.median(values) for dtype, values in times.items()}
            ratios = sorted(f / q for f, q in zip(times["f16"], times["q8"], strict=True))
            ratio = statistics.median(ratios)
            rows.append({"context": context, "tokens_per_s": medians, "q8_over_f16": ratio, "token_s": times})
            print(
                f"{context:>8}"
                + "".join(f"{value:>16.1f}" for value in medians.values())
                + f"   {ratio:.2f} ({ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})",
                flush=True,
            )
        result["rows"] = rows
        print(json.dumps(result))
    finally:
        for client in clients.values():
            client.close()


if __name__ == "__main__":
    raise SystemExit(run_main("kv_cache", main))

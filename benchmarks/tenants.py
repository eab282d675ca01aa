"""How long a tenant with one request at a time waits beside another that floods the engine, in each engine mode.

The light tenant sends ``--requests`` requests, one after the other: first on an idle engine, then while the crowd
keeps ``--flood`` requests open, each of which is followed by another. Prompts are random tokens and the prefix cache
is off. Prints a table and, as the last line, JSON.

    .venv/bin/python benchmarks/tenants.py smollm2-135m-instruct --flood 200 --requests 20
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from typing import get_args

from bench_arguments import positive, run_main, words

from plait.bench.machine import describe_machine
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.config.engine import EngineMode
from plait.engine import start_engine
from plait.errors import PlaitError
from plait.types import GenerateRequest, SamplingParams, TokenOutput
from plait.weights.catalog import resolve_model

_TIMEOUT_S = 300.0


class Tenant:
    """Requests of one size; outputs arrive on the engine's I/O thread."""

    def __init__(self, client: EngineClient, name: str, prompt_tokens: int, output_tokens: int) -> None:
        self._client = client
        self._name = name
        self._draw = random.Random(name)
        self._prompt_tokens = prompt_tokens
        self._sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        self._changed = threading.Condition()
        self._open: set[int] = set()
        self._num_ended = 0
        self._is_kept_up = False
        self._error: str | None = None
        self.num_tokens = 0

    def send(self) -> None:
        prompt = tuple(self._draw.choices(range(self._client.info.vocab_size), k=self._prompt_tokens))
        with self._changed:
            request = GenerateRequest(prompt, self._sampling, tenant=self._name)
            self._open.add(self._client.submit(request, self._take))

    def flood(self, num_open: int) -> None:
        """From now on so many are open until abort_all.

        Whoever takes the end of one sends the next: a thread of its own would wait for a CPU on a busy machine, and
        what is measured meanwhile would stand beside no crowd.
        """
        self._is_kept_up = True
        for _ in range(num_open):
            self.send()

    def wait_ended(self) -> None:
        """Until one more has ended than was waited for."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_ended or self._error, _TIMEOUT_S):
                self._error = "timed out"
            self.check()
            self._num_ended -= 1

    def check(self) -> None:
        if self._error:
            raise SystemExit(f"tenants: a request failed: {self._error}")

    def abort_all(self) -> None:
        with self._changed:
            self._is_kept_up = False
            requests = list(self._open)
        for request_id in requests:
            self._client.abort(request_id)
        with self._changed:
            self._changed.wait_for(lambda: not self._open, _TIMEOUT_S)

    def _take(self, output: TokenOutput) -> None:
        with self._changed:
            self.num_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self._error = self._error or output.error
                self._open.discard(output.request_id)
                self._num_ended += 1
                if self._is_kept_up and not self._error:
                    self._send_next()
                self._changed.notify_all()

    def _send_next(self) -> None:
        try:
            self.send()
        except PlaitError as error:
            self._error = str(error)


def latencies_s(light: Tenant, count: int) -> list[float]:
    latencies = []
    for _ in range(count):
        begin = time.perf_counter()
        light.send()
        light.wait_ended()
        latencies.append(time.perf_counter() - begin)
    return latencies


def measure(client: EngineClient, args: argparse.Namespace) -> dict[str, object]:
    light = Tenant(client, "light", args.prompt_tokens, args.output_tokens)
    latencies_s(light, 2)
    alone = latencies_s(light, args.requests)
    crowd = Tenant(client, "crowd", args.prompt_tokens, args.output_tokens)
    try:
        crowd.flood(args.flood)
        latencies_s(light, 2)
        begin, num_before = time.perf_counter(), crowd.num_tokens
        beside = latencies_s(light, args.requests)
        crowd_tokens_s = (crowd.num_tokens - num_before) / (time.perf_counter() - begin)
        crowd.check()  # an error ended what keeps it up: it was no crowd any more
    finally:
        crowd.abort_all()
    return {"alone_s": alone, "beside_s": beside, "crowd_tokens_per_s": crowd_tokens_s}


def main(arguments: list[str] | None = None) -> None:
    modes = get_args(EngineMode)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path or catalogue name")
    parser.add_argument("--flood", type=positive, default=200, help="requests that the crowd keeps open")
    parser.add_argument("--requests", type=positive, default=20, help="requests of the light tenant")
    parser.add_argument("--prompt-tokens", type=positive, default=100)
    parser.add_argument("--output-tokens", type=positive, default=64)
    parser.add_argument("--modes", type=words(modes), default=modes, help="separated by commas")
    parser.add_argument("--threads", type=positive, default=None)
    args = parser.parse_args(arguments)
    model = resolve_model(args.model)
    result: dict[str, object] = {"bench": "tenants", "model": model.name, "flood": args.flood}
    rows = []
    print(f"{'mode':<10} {'alone':>9} {'beside':>9} {'longest':>9} {'ratio':>6}   crowd")
    for mode in args.modes:
        config = EngineConfig(engine_mode=mode, num_compute_threads=args.threads, enable_prefix_cache=False)
        client = start_engine(model, config)
        try:
            info = client.info
            result["machine"] = describe_machine(isa=info.isa, num_compute_threads=info.num_compute_threads)
            row = {"mode": mode, **measure(client, args)}
        finally:
            client.close()
        alone_s = statistics.median(row["alone_s"])
        beside_s = statistics.median(row["beside_s"])
        row["ratio"] = beside_s / alone_s
        rows.append(row)
        print(
            f"{mode:<10} {alone_s * 1e3:>6.0f} ms {beside_s * 1e3:>6.0f} ms {max(row['beside_s']) * 1e3:>6.0f} ms "
            f"{row['ratio']:>6.2f}   {row['crowd_tokens_per_s']:.0f} tokens/s",
            flush=True,
        )
    result["rows"] = rows
    print(json.dumps(result))


if __name__ == "__main__":
    raise SystemExit(run_main("tenants", main))

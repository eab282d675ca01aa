"""Load on an engine for as long as wanted, a third of it aborted at random moments; and what must not grow meanwhile.

Every request is one of a fixed set; whatever comes for it, whole or cut off, must be what came for it before.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from plait.client import EngineClient
from plait.errors import OverloadedError
from plait.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput

NUM_KINDS = 96
ABORT_SHARE = 1 / 3
_WAIT_S = 120.0


def make_kinds(vocab_size: int, longest: int, seed: int = 1) -> list[GenerateRequest]:
    """Requests of every sort: short and long, greedy and sampled, with several choices, shared beginnings, tenants."""
    draw = random.Random(seed)
    beginnings = [tuple(draw.choices(range(vocab_size), k=40)) for _ in range(4)]
    kinds = []
    for i in range(NUM_KINDS):
        begin = draw.choice(beginnings) if i % 2 else ()
        prompt = (*begin, *draw.choices(range(vocab_size), k=draw.randint(1, longest // 2 - len(begin))))
        sampling = SamplingParams(
            n=draw.choice((1, 1, 1, 2, 3)),
            temperature=draw.choice((0.0, 0.9)),
            max_tokens=draw.randint(1, longest // 2),
            ignore_eos=True,
            seed=i,
        )
        kinds.append(GenerateRequest(prompt, sampling, tenant=f"tenant {i % 3}", priority=i % 2))
    return kinds


@dataclass(slots=True)
class SoakResult:
    num_whole: int = 0
    num_aborted: int = 0
    """That ended before their last token."""
    num_abort_calls: int = 0
    failures: list[str] = field(default_factory=list)
    private_bytes: list[int] = field(default_factory=list)
    """Memory that is this process's alone, at even intervals: what it shares with others depends on them."""


class _Answer:
    """Collects one request; ``take`` runs on the engine's thread."""

    def __init__(self, n: int) -> None:
        self.token_ids: list[list[int]] = [[] for _ in range(n)]
        self.reasons: list[FinishReason | None] = [None] * n
        self.error: str | None = None
        self.ended = threading.Event()

    def take(self, output: TokenOutput) -> None:
        self.token_ids[output.index].extend(output.token_ids)
        if output.finish_reason is not None:
            if self.reasons[output.index] is not None:
                self.error = f"choice {output.index} ended twice"
            self.reasons[output.index] = output.finish_reason
            self.error = self.error or output.error
            if all(reason is not None for reason in self.reasons):
                self.ended.set()


class Soak:
    def __init__(self, client: EngineClient, kinds: Sequence[GenerateRequest], num_clients: int) -> None:
        self._client = client
        self._kinds = kinds
        self._num_clients = num_clients
        self._known: list[list[list[int]]] = [[[] for _ in range(kind.sampling.n)] for kind in kinds]
        """The longest that any choice of each kind has given so far."""
        self._lock = threading.Lock()
        self._answer_s = 0.05
        """How long answers take at the moment: aborts fall evenly into that time."""
        self.result = SoakResult()

    def run(self, seconds: float, num_samples: int = 80) -> SoakResult:
        """Blocks for ``seconds`` and until what was asked for has ended."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._ask_until, args=(until, seed), name=f"soak-{seed}")
            for seed in range(self._num_clients)
        ]
        for thread in threads:
            thread.start()
        for _ in range(num_samples):
            time.sleep(seconds / num_samples)
            self.result.private_bytes.append(read_private_bytes())
        for thread in threads:
            thread.join(_WAIT_S)
        if any(thread.is_alive() for thread in threads):
            self.result.failures.append("a client still waits for its answer")
        return self.result

    def _ask_until(self, until: float, seed: int) -> None:
        draw = random.Random(f"soak {seed}")
        while time.monotonic() < until and not self.result.failures:
            idx = draw.randrange(len(self._kinds))
            answer = _Answer(self._kinds[idx].sampling.n)
            begin = time.monotonic()
            try:
                request_id = self._client.submit(self._kinds[idx], answer.take)
            except OverloadedError:
                time.sleep(0.01)
                continue
            is_aborted = draw.random() < ABORT_SHARE
            if is_aborted:
                answer.ended.wait(draw.uniform(0.0, self._answer_s))
                self._client.abort(request_id)
            if not answer.ended.wait(_WAIT_S):
                self.result.failures.append(f"request {request_id} never ends")
                return
            self._check(idx, answer, is_aborted=is_aborted)
            if not is_aborted:
                self._answer_s += 0.1 * (time.monotonic() - begin - self._answer_s)

    def _check(self, idx: int, answer: _Answer, *, is_aborted: bool) -> None:
        allowed = {FinishReason.LENGTH, FinishReason.ABORT} if is_aborted else {FinishReason.LENGTH}
        most = self._kinds[idx].sampling.max_tokens
        with self._lock:
            result = self.result
            result.num_abort_calls += is_aborted
            is_whole = all(reason is FinishReason.LENGTH for reason in answer.reasons)
            result.num_whole += is_whole
            result.num_aborted += not is_whole
            if answer.error is not None or not set(answer.reasons) <= allowed:
                result.failures.append(f"kind {idx} ended with {answer.reasons}: {answer.error}")
            for choice, (ids, reason) in enumerate(zip(answer.token_ids, answer.reasons, strict=True)):
                known = self._known[idx][choice]
                common = min(len(ids), len(known))
                if ids[:common] != known[:common]:
                    result.failures.append(f"kind {idx}, choice {choice}: other tokens than before")
                if reason is FinishReason.LENGTH and len(ids) != most:
                    result.failures.append(f"kind {idx}, choice {choice}: {len(ids)} tokens, not {most}")
                if len(ids) > len(known):
                    self._known[idx][choice] = ids


def read_private_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell")


def growth(samples: Sequence[float]) -> float:
    """How much a series with even intervals rises over its length: the median slope between all its pairs, so that
    single spikes and steps of noise do not count."""
    slopes = [
        (samples[j] - samples[i]) / (j - i) for i in range(len(samples)) for j in range(i + 1, len(samples))
    ]
    return statistics.median(slopes) * (len(samples) - 1)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds of what the system counts."""

    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        # The folder that is read has a descriptor itself.
        return cls(len(os.listdir("/proc/self/fd")) - 1, len(list(Path("/proc/self/task").iterdir())))

    def is_within(self, other: Holdings) -> bool:
        return self.descriptors <= other.descriptors and self.threads <= other.threads

    @staticmethod
    def thread_names() -> list[str]:
        """As the system knows them."""
        names = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                names.append((task / "comm").read_text(encoding="utf-8").strip())
        return names

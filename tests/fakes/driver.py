"""Runs a native Scheduler over FakeModel and a native KvManager on a fake clock, without threads."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from plait import _native
from plait.engine.scheduling import new_request, token_output
from plait.types import FinishReason, GenerateRequest, TokenLogprob, TokenOutput
from tests.fakes.fake_executor import FakeModel, FakeStepInput, FakeStepResult

VOCAB = 50
StepTime = float | Callable[[FakeStepInput], float]
"""Seconds that a step takes."""
_LIMIT_NAMES = (
    "num_blocks",
    "block_tokens",
    "max_batch_size",
    "max_batch_tokens",
    "prefill_chunk_tokens",
    "batch_timeout_s",
    "enable_prefix_cache",
    "target_step_s",
    "vocab_size",
    "eos_token_ids",
)


def replace_limits(limits: _native.SchedulerLimits, **changes: object) -> _native.SchedulerLimits:
    fields = {name: getattr(limits, name) for name in _LIMIT_NAMES}
    return _native.SchedulerLimits(**(fields | changes))


@dataclass(frozen=True)
class Plan:
    """A planned step: what compute gets, and whose it is."""

    step: FakeStepInput
    names: _native.PlannedStep

    @property
    def step_id(self) -> int:
        return self.step.step_id

    @property
    def rows(self) -> list[int]:
        """Request ids by row."""
        return [request_id for request_id, _ in self.names.rows]

    @property
    def slices(self) -> list[int]:
        """Tokens by row."""
        starts = self.step.query_starts
        return [end - begin for begin, end in itertools.pairwise(starts)]

    @property
    def num_prefill_tokens(self) -> int:
        return self.names.num_prefill_tokens


class Driver:
    """``depth`` steps are planned before the first result is taken, as in the engine."""

    def __init__(self, limits: _native.SchedulerLimits, *, depth: int = 2, step_s: StepTime = 0.01) -> None:
        self.limits = limits
        self.depth = depth
        self.step_s = step_s
        self.now = 100.0
        self.kv = _native.KvManager(limits.num_blocks, limits.block_tokens, b"fake")
        self.model = FakeModel(
            limits.num_blocks,
            limits.block_tokens,
            VOCAB,
            max_slots=limits.num_slots,
            max_tokens=limits.max_batch_tokens,
        )
        self.scheduler = _native.Scheduler(limits, self.kv)
        self.plans: list[Plan] = []
        self.fail_steps: set[int] = set()
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.finished: dict[tuple[int, int], TokenOutput] = {}
        self.first: dict[tuple[int, int], TokenOutput] = {}
        self._in_flight: deque[FakeStepResult] = deque()

    @property
    def now_ns(self) -> int:
        return round(self.now * 1e9)

    @property
    def next_wakeup(self) -> float | None:
        """Seconds on the driver's clock."""
        wakeup_ns = self.scheduler.next_wakeup_ns()
        return None if wakeup_ns is None else wakeup_ns * 1e-9

    def add(self, request_id: int, request: GenerateRequest, *, seed: int = 7) -> None:
        max_tokens = request.sampling.max_tokens
        assert max_tokens is not None
        native = new_request(request_id, request, max_tokens=max_tokens, seed=seed, now_ns=self.now_ns)
        self.scheduler.add(native)

    def plan(self) -> Plan | None:
        """Plan one step and run it; its result stays in flight."""
        step = self.scheduler.schedule(self.now_ns)
        if step is None:
            return None
        names = self.scheduler.planned_step()
        assert names is not None
        assert names.step_id == step.step_id
        plan = Plan(FakeStepInput.of(step), names)
        self.plans.append(plan)
        if plan.step_id in self.fail_steps:
            result = FakeStepResult(plan.step_id, error="injected failure")
        else:
            result = self.model.run(plan.step)
        result.begin_ns = self.now_ns
        self.now += self.step_s(plan.step) if callable(self.step_s) else self.step_s
        result.end_ns = self.now_ns
        self._in_flight.append(result)
        return plan

    def take_result(self) -> bool:
        if not self._in_flight:
            return False
        self.scheduler.finish_step(self._in_flight.popleft().to_native())
        self.collect()
        return True

    def collect(self) -> None:
        for output in map(token_output, self.scheduler.take_outputs().take()):
            key = (output.request_id, output.index)
            assert key not in self.finished, f"an output after the last of {key}"
            self.first.setdefault(key, output)
            self.tokens[key] += output.token_ids
            self.logprobs[key] += output.logprobs
            if output.finish_reason is not None:
                self.finished[key] = output

    def turn(self) -> bool:
        """One turn of the engine's loop. False: nothing was done and nothing will be."""
        is_busy = False
        while len(self._in_flight) < self.depth and self.plan() is not None:
            is_busy = True
        is_busy |= self.take_result()
        self.collect()
        if not is_busy:
            wakeup = self.next_wakeup
            if wakeup is None:
                return False
            self.now = max(self.now, wakeup)
        return True

    def run(self, max_turns: int = 20_000) -> None:
        for _ in range(max_turns):
            if not self.turn():
                break
        assert not self.scheduler.has_work, "work is left and nothing runs"

    def check_clean(self) -> None:
        self.kv.check_consistency()
        self.scheduler.check_idle()
        assert self.kv.num_sequences == 0
        assert self.kv.num_free_blocks == self.scheduler.num_free_blocks == self.limits.num_blocks
        assert self.scheduler.num_running == self.scheduler.num_waiting == self.scheduler.num_requests == 0

    def reasons(self, request_id: int) -> list[FinishReason | None]:
        keys = sorted(key for key in self.finished if key[0] == request_id)
        return [self.finished[key].finish_reason for key in keys]

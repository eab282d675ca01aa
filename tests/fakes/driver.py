"""Runs a Scheduler over FakeModel and FakeKvManager on a fake clock, without threads."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from plait.engine.steps import build_step
from plait.scheduler import Scheduler, SchedulerLimits, StepPlan
from plait.types import FinishReason, GenerateRequest, TokenLogprob, TokenOutput
from tests.fakes.fake_executor import FakeModel, FakeSlotStart, FakeStepInput, FakeStepResult
from tests.fakes.fake_kv import FakeKvManager

VOCAB = 50


class _Factories:
    new_step = FakeStepInput
    new_slot_start = FakeSlotStart


class Driver:
    """``depth`` steps are planned before the first result is taken, as in the engine."""

    def __init__(self, limits: SchedulerLimits, *, depth: int = 2, step_s: float = 0.01) -> None:
        self.limits = limits
        self.depth = depth
        self.step_s = step_s
        self.now = 100.0
        self.kv = FakeKvManager(limits.num_blocks, limits.block_tokens)
        self.model = FakeModel(
            limits.num_blocks,
            limits.block_tokens,
            VOCAB,
            max_slots=limits.num_slots,
            max_tokens=limits.max_batch_tokens,
        )
        self.scheduler = Scheduler(limits, self.kv)
        self.plans: list[StepPlan] = []
        self.fail_steps: set[int] = set()
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.finished: dict[tuple[int, int], TokenOutput] = {}
        self.first: dict[tuple[int, int], TokenOutput] = {}
        self._in_flight: deque[tuple[StepPlan, FakeStepResult]] = deque()
        self._parts: Any = _Factories()

    def add(self, request_id: int, request: GenerateRequest, *, seed: int = 7) -> None:
        max_tokens = request.sampling.max_tokens
        assert max_tokens is not None
        self.scheduler.add(request_id, request, max_tokens=max_tokens, seed=seed, now=self.now)

    def plan(self) -> StepPlan | None:
        """Plan one step and run it; its result stays in flight."""
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            return None
        self.plans.append(plan)
        step = build_step(self._parts, plan)
        if plan.step_id in self.fail_steps:
            result = FakeStepResult(plan.step_id, error="injected failure")
        else:
            result = self.model.run(step)
        result.begin_ns = int(self.now * 1e9)
        self.now += self.step_s
        result.end_ns = int(self.now * 1e9)
        self._in_flight.append((plan, result))
        return plan

    def take_result(self) -> bool:
        if not self._in_flight:
            return False
        self.scheduler.finish_step(*self._in_flight.popleft())
        self.collect()
        return True

    def collect(self) -> None:
        for output in self.scheduler.take_outputs():
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
            wakeup = self.scheduler.next_wakeup()
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
        assert self.kv.num_sequences == 0
        assert self.kv.num_free_blocks == self.limits.num_blocks
        assert self.scheduler.num_running == self.scheduler.num_waiting == self.scheduler.num_requests == 0
        assert self.scheduler._running.num_free_slots == self.limits.num_slots
        assert not self.scheduler._waiting._lanes
        assert not len(self.scheduler._endings.tenants)

    def reasons(self, request_id: int) -> list[FinishReason | None]:
        keys = sorted(key for key in self.finished if key[0] == request_id)
        return [self.finished[key].finish_reason for key in keys]

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
from tests.fakes.fake_swap import FakeSwap

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
    "kv_block_bytes",
    "vocab_size",
    "eos_token_ids",
    "tenant_weights",
)


def replace_limits(limits: _native.SchedulerLimits, **changes: object) -> _native.SchedulerLimits:
    fields = {name: getattr(limits, name) for name in _LIMIT_NAMES}
    return _native.SchedulerLimits(**(fields | changes))


@dataclass(frozen=True)
class Plan:
    """A planned step: what compute gets, and whose it is."""

    step: FakeStepInput
    names: _native.PlannedStep
    native: _native.StepInput

    @property
    def is_unwanted(self) -> bool:
        return self.native.is_unwanted

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
    """``depth`` steps are planned before the first result is taken, as in the engine, the later ones when that is
    due; a step runs when its result is taken. Where limits say that KV blocks may be saved, a FakeSwap does so:
    ``swap_seed`` and ``swap_failures`` are its arguments. ``skips_unwanted``: steps that nobody waits for do nothing
    at all."""

    def __init__(
        self,
        limits: _native.SchedulerLimits,
        *,
        depth: int = 2,
        step_s: StepTime = 0.01,
        swap_seed: int = 0,
        swap_failures: float = 0.0,
        skips_unwanted: bool = False,
    ) -> None:
        self.limits = limits
        self.depth = depth
        self.step_s = step_s
        self.skips_unwanted = skips_unwanted
        self.is_skipping_all = False
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
        self.swap = FakeSwap(self.model, seed=swap_seed, fail_share=swap_failures)
        self.is_swap_stuck = False
        """Transfers end only when nothing else happens."""
        self.given: set[int] = set()
        """Ids of the requests that were added."""
        self.plans: list[Plan] = []
        self.fail_steps: set[int] = set()
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.finished: dict[tuple[int, int], TokenOutput] = {}
        self.first: dict[tuple[int, int], TokenOutput] = {}
        self._in_flight: deque[Plan] = deque()
        self._begun = self.now
        """When the oldest step in flight began."""

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
        self.given.add(request_id)

    def plan(self) -> Plan | None:
        """Plan one step; it stays in flight. While another one runs, time passes until that is due."""
        while (step := self.scheduler.schedule(self.now_ns)) is None:
            self.ask_swap()
            wakeup = self.next_wakeup
            if (
                wakeup is None
                or not self._in_flight
                or not self.now < wakeup < self._end_of(self._in_flight[0])
            ):
                return None
            self.now = wakeup
        self.ask_swap()
        names = self.scheduler.planned_step()
        assert names is not None
        assert names.step_id == step.step_id
        plan = Plan(FakeStepInput.of(step), names, step)
        self.plans.append(plan)
        if not self._in_flight:
            self._begun = self.now
        self._in_flight.append(plan)
        return plan

    def take_result(self) -> bool:
        if not self._in_flight:
            return False
        self.scheduler.finish_step(self._run(self._in_flight.popleft()).to_native())
        self._begun = self.now
        self.ask_swap()
        self.collect()
        return True

    def _run(self, plan: Plan) -> FakeStepResult:
        if self.is_skipping_all or (self.skips_unwanted and plan.is_unwanted):
            return FakeStepResult(plan.step_id, begin_ns=self.now_ns, end_ns=self.now_ns, was_skipped=True)
        if plan.step_id in self.fail_steps:
            result = FakeStepResult(plan.step_id, error="injected failure")
        else:
            result = self.model.run(plan.step)
        self.now = max(self.now, self._end_of(plan))
        result.begin_ns = round(self._begun * 1e9)
        result.end_ns = self.now_ns
        return result

    def _end_of(self, plan: Plan) -> float:
        return self._begun + (self.step_s(plan.step) if callable(self.step_s) else self.step_s)

    def ask_swap(self) -> None:
        """Hand what the scheduler wants of the swap to it."""
        while requests := self.scheduler.take_swap_requests():
            for request in requests:
                self.swap.ask(request)

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
        if not self.is_swap_stuck:
            is_busy |= self.swap.finish_some(self.scheduler)
        if not is_busy:
            is_busy = self.swap.finish_one(self.scheduler)
        self.ask_swap()
        self.collect()
        if not is_busy:
            wakeup = self.next_wakeup
            if wakeup is None:
                return False
            self.now = max(self.now, wakeup)
        return True

    def turn_a_little(self) -> bool:
        """One plan, or else one result, or else one transfer. False: there is none."""
        is_busy = (
            (len(self._in_flight) < self.depth and self.plan() is not None)
            or self.take_result()
            or self.swap.finish_one(self.scheduler)
        )
        self.ask_swap()
        self.collect()
        return is_busy

    def run(self, max_turns: int = 20_000) -> None:
        for _ in range(max_turns):
            if not self.turn():
                break
        assert not self.scheduler.has_work, "work is left and nothing runs"

    def check_clean(self) -> None:
        self.kv.check_consistency()
        self.scheduler.check_idle()
        assert self.swap.is_idle
        assert not self.swap.num_kept
        assert self.kv.num_sequences == 0
        assert self.kv.num_free_blocks == self.scheduler.num_free_blocks == self.limits.num_blocks
        assert self.scheduler.num_running == self.scheduler.num_waiting == self.scheduler.num_requests == 0

    def reasons(self, request_id: int) -> list[FinishReason | None]:
        keys = sorted(key for key in self.finished if key[0] == request_id)
        return [self.finished[key].finish_reason for key in keys]

"""Continuous batching: the parts of this package put together.

A step may be planned while the one before it runs: tokens that are still being sampled are named by reference
(-1), a max_tokens end is known ahead, and an EOS that shows late costs one dropped token.
"""

from __future__ import annotations

import heapq

from plait.scheduler.admission import Admission
from plait.scheduler.blocks import KvBlocks
from plait.scheduler.budget import PrefillPacer
from plait.scheduler.builder import StepBuilder
from plait.scheduler.endings import Endings
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.preemption import Growth
from plait.scheduler.request import RequestState, derive_seed
from plait.scheduler.results import Results
from plait.scheduler.running import RunningSet
from plait.scheduler.sequence import WAITING, Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.step import StepOutcome, StepPlan
from plait.scheduler.waiting import WaitingQueue
from plait.types import FinishReason, GenerateRequest, TokenOutput


class Scheduler:
    def __init__(self, limits: SchedulerLimits, kv: KvBlocks) -> None:
        self.limits = limits
        self.stats = SchedulerStats()
        self._kv = kv
        self._waiting = WaitingQueue()
        self._running = RunningSet(limits.num_slots, kv)
        self._endings = Endings(self._waiting, self._running, self.stats)
        self._growth = Growth(kv, limits, self._waiting, self._running, self._endings, self.stats)
        self._admission = Admission(
            kv, limits, self._waiting, self._running, self._growth, self._endings, self.stats
        )
        self._builder = StepBuilder(
            kv, limits, self._waiting, self._running, self._growth, self._endings, self.stats
        )
        self._results = Results(kv, limits, self._endings, self.stats)
        self._pacer = PrefillPacer(limits.max_batch_tokens, limits.target_step_s)
        self._deadlines: list[tuple[float, int]] = []
        self._num_arrivals = 0
        self._num_steps = 0
        self._num_sequences = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without slot and blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold slot and blocks."""
        return len(self._running)

    @property
    def num_requests(self) -> int:
        return len(self._endings.requests)

    @property
    def prefill_token_s(self) -> float:
        """Measured seconds per prompt token, 0 before the first measurement."""
        return self._pacer.token_s

    @property
    def has_work(self) -> bool:
        """A request has not ended."""
        return bool(self._endings.requests)

    @property
    def hold_until(self) -> float:
        """When the last wait for a fuller batch ended, or will end at the latest."""
        return self._admission.hold_until

    def next_wakeup(self) -> float | None:
        """When schedule() should be called again even if nothing happens, or None."""
        self._drop_stale_deadlines()
        times = [self._deadlines[0][0]] if self._deadlines else []
        held_until = self._admission.held_until()
        if held_until is not None:
            times.append(held_until)
        return min(times, default=None)

    def add(
        self,
        request_id: int,
        request: GenerateRequest,
        *,
        max_tokens: int,
        seed: int,
        now: float,
        may_hold: bool = True,
    ) -> RequestState:
        """Queue a request that validation has passed; ``max_tokens`` and ``seed`` are resolved.

        Without ``may_hold`` it does not wait for company (``batch_timeout_s``).
        """
        if request_id in self._endings.requests:
            raise ValueError(f"request {request_id} is already here")
        sampling = request.sampling
        state = RequestState(
            request_id,
            request,
            max_tokens=max_tokens,
            arrival=self._num_arrivals,
            now=now,
            tenant=self._endings.tenants.enter(request.tenant),
        )
        self._num_arrivals += 1
        eos = () if sampling.ignore_eos else self.limits.eos_token_ids
        state.stop_ids = frozenset((*eos, *sampling.stop_token_ids))
        for index in range(sampling.n):
            state.choices.append(Sequence(state, index, self._num_sequences, derive_seed(seed, index)))
            self._num_sequences += 1
        self._endings.requests[request_id] = state
        if may_hold:
            self._admission.on_arrival(now)
        first = state.choices[0]
        first.state = WAITING
        self._waiting.push(first)
        if state.deadline is not None:
            heapq.heappush(self._deadlines, (state.deadline, request_id))
        self.stats.requests_total += 1
        self.stats.prompt_tokens_total += state.num_prompt
        return state

    def abort(self, request_id: int) -> None:
        """End a request with FinishReason.ABORT. Unknown and ended ones are ignored."""
        self.end(request_id, FinishReason.ABORT)

    def end(self, request_id: int, reason: FinishReason, error: str | None = None) -> None:
        """End what has not ended of a request."""
        state = self._endings.requests.get(request_id)
        if state is not None:
            self._endings.finish_request(state, reason, error)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for state in tuple(self._endings.requests.values()):
            self._endings.finish_request(state, reason, error)

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can run before a result, an arrival or next_wakeup()."""
        if self._deadlines:
            self._expire(now)
        if not self._running and not self._waiting:
            return None
        if self._waiting:
            self._admission.make_room()
        plan = StepPlan(self._num_steps)
        num_preemptions = self.stats.preemptions_total
        prompts = self._builder.add_decodes(plan)
        # Blocks that a preemption freed are for those that run; but an idle engine must take something.
        has_preempted = self.stats.preemptions_total != num_preemptions
        if self._waiting and (not has_preempted or self._running.is_empty):
            admitted = self._admission.admit(now)
            plan.starts += admitted
            prompts += admitted
        if prompts:
            prompts.sort(key=lambda seq: seq.rank)
            self._builder.add_prompts(plan, prompts, self._pacer)
        if not plan.rows:
            return None
        plan.copies = self._kv.take_copies()
        self._num_steps += 1
        return plan

    def finish_step(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Take in the result of a planned step. Results come in the order of the plans."""
        self._results.apply(plan, outcome)
        if self._running.draining:
            self._growth.resume_drained()
        num_decodes = len(plan.token_ids) - plan.num_prefill_tokens
        self._pacer.observe(plan.num_prefill_tokens, num_decodes, (outcome.end_ns - outcome.begin_ns) * 1e-9)

    def take_outputs(self) -> list[TokenOutput]:
        """Outputs since the last call, in order."""
        outputs = self._endings.outputs
        if outputs:
            self._endings.outputs = []
        return outputs

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            self.abort(heapq.heappop(self._deadlines)[1])

    def _drop_stale_deadlines(self) -> None:
        """Ended requests leave their deadline behind; it must not wake an idle engine."""
        while self._deadlines and self._deadlines[0][1] not in self._endings.requests:
            heapq.heappop(self._deadlines)

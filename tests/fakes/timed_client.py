"""An EngineClient with a clock of its own: every step takes the same time, so that speeds are known exactly.

It does one step each time its health is asked for, which is what a waiting benchmark does; no thread, no sleep.
A step gives a token to each sequence that has begun, and spends what is left of its tokens on prompts, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plait.client import EngineClient, OutputCallback
from plait.types import EngineInfo, FinishReason, GenerateRequest, Health, TokenOutput

FORWARD_NS = 2_000_000
OUTSIDE_NS = 500_000


@dataclass
class TimedRun:
    request: GenerateRequest
    on_output: OutputCallback
    num_prefilled: int = 0
    num_tokens: int = 0


class TimedClient(EngineClient):
    def __init__(self, *, max_model_len: int = 512, num_kv_blocks: int = 256, step_tokens: int = 64) -> None:
        self.info_ = EngineInfo(
            model_name="timed",
            architecture="none",
            vocab_size=100,
            max_model_len=max_model_len,
            eos_token_ids=(0,),
            num_kv_blocks=num_kv_blocks,
            block_tokens=16,
            num_compute_threads=2,
            isa="none",
        )
        self.step_tokens = step_tokens
        self.is_stuck = False
        self.max_tokens_cap = 1 << 30
        """Sequences end after this many tokens, whatever was asked."""
        self.error: str | None = None
        self.requests: list[GenerateRequest] = []
        self.num_aborted = 0
        self.num_steps = 0
        self.is_closed = False
        self.num_metrics_calls = 0
        self.steps_ahead: Callable[[int], int] = lambda call: 0
        """By how many steps the metrics of a call are ahead of the outputs."""
        self.step_extra_ns: Callable[[], int] = lambda: 0
        self._now_ns = 1_000
        self._runs: dict[int, TimedRun] = {}

    def clock(self) -> int:
        return self._now_ns

    @property
    def info(self) -> EngineInfo:
        return self.info_

    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        self.requests.append(request)
        self._runs[len(self.requests)] = TimedRun(request, on_output)
        return len(self.requests)

    def abort(self, request_id: int) -> None:
        run = self._runs.pop(request_id, None)
        if run is not None:
            self.num_aborted += 1
            run.on_output(TokenOutput(request_id, 0, (), finish_reason=FinishReason.ABORT))

    def health(self) -> Health:
        if self._runs and not self.is_stuck:
            self._step()
        return Health(True, True, not self.is_stuck, "stuck" if self.is_stuck else "ok")

    def metrics(self) -> dict[str, float]:
        self.num_metrics_calls += 1
        num_steps = self.num_steps + self.steps_ahead(self.num_metrics_calls)
        return {"steps_total": num_steps, "forward_seconds_total": num_steps * FORWARD_NS / 1e9}

    def close(self) -> None:
        self.is_closed = True

    def _step(self) -> None:
        self.num_steps += 1
        self._now_ns += FORWARD_NS + OUTSIDE_NS + self.step_extra_ns()
        budget = self.step_tokens
        ready = []
        for request_id, run in self._runs.items():
            left = len(run.request.prompt_token_ids) - run.num_prefilled
            taken = min(left, budget) if left else 1
            run.num_prefilled += taken if left else 0
            budget -= taken
            if taken == left or not left:
                ready.append(request_id)
        for request_id in ready:
            self._emit(request_id)

    def _emit(self, request_id: int) -> None:
        run = self._runs[request_id]
        if self.error is not None:
            del self._runs[request_id]
            run.on_output(TokenOutput(request_id, 0, (), finish_reason=FinishReason.ERROR, error=self.error))
            return
        run.num_tokens += 1
        limit = min(run.request.sampling.max_tokens or 1, self.max_tokens_cap)
        reason = FinishReason.LENGTH if run.num_tokens >= limit else None
        if reason is not None:
            del self._runs[request_id]
        run.on_output(TokenOutput(request_id, 0, (7,), finish_reason=reason))

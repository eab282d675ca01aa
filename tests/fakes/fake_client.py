"""A deterministic EngineClient: one thread that gives every running choice one token per step.

What it writes follows from the prompt alone: it repeats ``REPLY``, unless the prompt holds ``say:<text>;``, then it
writes that text and EOS. Knobs (attributes, may be set while it runs): ``step_s`` the length of a step, ``is_stuck``
no step ends, ``max_queued``, and ``fail_after`` tokens a request ends with an error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from plait.client import EngineClient, OutputCallback
from plait.errors import EngineDeadError, InvalidRequestError, OverloadedError
from plait.types import EngineInfo, FinishReason, GenerateRequest, Health, TokenLogprob, TokenOutput
from tests.fakes.fake_tokenizer import EOS, MULTI_BYTE, FakeTokenizer

REPLY = b"The quick brown fox jumps over the lazy dog. "


def reply_tokens(prompt_ids: tuple[int, ...]) -> list[int] | None:
    """The tokens that a prompt asks for with ``say:<text>;``; None: the endless reply."""
    text = bytes(i for i in prompt_ids if i < 256)
    begin = text.rfind(b"say:")
    if begin < 0:
        return None
    return [*text[begin + 4 :].partition(b";")[0], EOS]


@dataclass
class FakeRun:
    request_id: int
    request: GenerateRequest
    on_output: OutputCallback
    reply: list[int] | None
    num_done: int = 0
    running: set[int] = field(default_factory=set)
    is_aborted: bool = False

    def token(self, index: int) -> int:
        """Choice ``index`` starts ``index`` tokens later in the endless reply."""
        if self.reply is None:
            return REPLY[(self.num_done + index) % len(REPLY)]
        return self.reply[min(self.num_done, len(self.reply) - 1)]


class FakeClient(EngineClient):
    def __init__(self, *, step_s: float = 0.0005, max_model_len: int = 512, max_queued: int = 64) -> None:
        self.step_s = step_s
        self.max_queued = max_queued
        self.fail_after: int | None = None
        self.is_stuck = False
        self.is_dead = False
        self.is_ready = True
        self.requests: list[GenerateRequest] = []
        self.aborted: list[int] = []
        self.num_tokens = 0
        self._info = EngineInfo(
            model_name="fake",
            architecture="fake",
            vocab_size=FakeTokenizer.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=(EOS,),
            num_kv_blocks=max(64, -(-max_model_len // 16)),
            block_tokens=16,
            num_compute_threads=1,
            isa="none",
        )
        self._runs: dict[int, FakeRun] = {}
        self._num_submitted = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="fake-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_running(self) -> int:
        return len(self._runs)

    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        with self._changed:
            if self.is_dead or self._is_closed:
                raise EngineDeadError("the engine is gone")
            if len(self._runs) >= self.max_queued:
                raise OverloadedError("the queue is full", retry_after_s=2.0)
            if not request.prompt_token_ids:
                raise InvalidRequestError("no tokens", param="prompt_token_ids")
            self._num_submitted += 1
            run = FakeRun(self._num_submitted, request, on_output, reply_tokens(request.prompt_token_ids))
            run.running = set(range(request.sampling.n))
            self._runs[run.request_id] = run
            self.requests.append(request)
            self._changed.notify()
            return run.request_id

    def abort(self, request_id: int) -> None:
        with self._changed:
            self.aborted.append(request_id)
            if request_id in self._runs:
                self._runs[request_id].is_aborted = True
                self._changed.notify()

    def health(self) -> Health:
        is_alive = not (self.is_dead or self._is_closed)
        return Health(is_alive, is_alive and self.is_ready, not (self.is_stuck and self._runs))

    def metrics(self) -> dict[str, float]:
        return {"num_running_requests": len(self._runs), "generated_tokens_total": self.num_tokens}

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(5)

    def die(self) -> None:
        """The engine stops: running requests end with an error, later ones are refused."""
        with self._changed:
            self.is_dead = True
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._runs or self._is_closed)
                if self._is_closed or self.is_dead:
                    reason = FinishReason.ERROR if self.is_dead else FinishReason.ABORT
                    for run in self._runs.values():
                        self._end(run, reason)
                    self._runs.clear()
                    if self._is_closed:
                        return
                runs = list(self._runs.values())
            for run in runs:
                if run.is_aborted:
                    self._end(run, FinishReason.ABORT)
                elif not self.is_stuck:
                    self._step(run)
            with self._changed:
                self._runs = {key: run for key, run in self._runs.items() if run.running}
            time.sleep(max(self.step_s, 0.001) if self.is_stuck else self.step_s)

    def _end(self, run: FakeRun, reason: FinishReason) -> None:
        error = "the engine stopped" if reason is FinishReason.ERROR else None
        for index in sorted(run.running):
            run.on_output(TokenOutput(run.request_id, index, (), finish_reason=reason, error=error))
        run.running.clear()

    def _step(self, run: FakeRun) -> None:
        if self.fail_after is not None and run.num_done >= self.fail_after:
            self._end(run, FinishReason.ERROR)
            return
        for index in sorted(run.running):
            self._emit(run, index)
        run.num_done += 1

    def _emit(self, run: FakeRun, index: int) -> None:
        sampling = run.request.sampling
        token = run.token(index)
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
        reason = None
        stop_token = None
        if token in stops and run.num_done + 1 > sampling.min_tokens:
            reason, stop_token = FinishReason.STOP, token
        elif run.num_done + 1 >= (sampling.max_tokens or 1):
            reason = FinishReason.LENGTH
        first = run.num_done == 0 and index == 0 and sampling.prompt_logprobs is not None
        self.num_tokens += 1
        output = TokenOutput(
            run.request_id,
            index,
            (token,),
            logprobs=() if sampling.logprobs is None else (logprob_of(token, sampling.logprobs),),
            finish_reason=reason,
            stop_token_id=stop_token,
            num_cached_tokens=len(run.request.prompt_token_ids) // 16 * 16,
            prompt_logprobs=prompt_logprobs_of(run.request) if first else (),
        )
        if reason is not None:
            run.running.discard(index)
        run.on_output(output)


def logprob_of(token: int, num_top: int) -> TokenLogprob:
    """The chosen token has logprob -0.5; the others of the top follow it in the vocabulary."""
    others = [t for t in (*MULTI_BYTE, *range(97, 123)) if t != token]
    top = [(token, -0.5), *((t, -1.0 - i) for i, t in enumerate(others))]
    return TokenLogprob(token, -0.5, 1, tuple(top[:num_top]))


def prompt_logprobs_of(request: GenerateRequest) -> tuple[TokenLogprob | None, ...]:
    num_top = request.sampling.prompt_logprobs or 0
    return (None, *(logprob_of(t, num_top) for t in request.prompt_token_ids[1:]))

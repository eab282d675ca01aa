"""EngineCore: what an engine is to its clients, whoever runs it (see driver.py): requests, health, metrics.

Every method may be called from any thread, and none waits for a step.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping

from plait import _native
from plait.client import OutputCallback
from plait.config import EngineConfig
from plait.engine.driver import Driver
from plait.engine.mail import Abort, LiveRequest, Stop
from plait.engine.modes import new_driver
from plait.engine.parts import EngineParts
from plait.engine.scheduling import new_request, scheduler_limits
from plait.engine.tracing import Trace, new_span
from plait.engine.watch import SwapWatch, Watch
from plait.errors import EngineDeadError, OverloadedError, PlaitError, ShuttingDownError, check_process
from plait.types import (
    EngineInfo,
    GenerateRequest,
    Health,
    SamplingParams,
    TokenOutput,
)
from plait.validation import resolve_max_tokens, validate_request

_log = logging.getLogger(__name__)

# A Python thread that wakes beside a busy one (tokenizing, JSON) waits for this interval and 0.1 ms more: with
# Python's default, 5 ms, a step's result or a request would wait as long as a decode step takes. Two hand-overs,
# to main and from it to I/O, stay well below 2 ms. `plait bench queues` measures it; see docs/lab-log.md.
SWITCH_INTERVAL_S = 0.0005
DEFAULT_STALL_AFTER_S = 30.0
_CLOSE_TIMEOUT_S = 30.0
_WARM_UP_TIMEOUT_S = 300.0
_MAX_RETRY_AFTER_S = 60.0
_WARM_UP_TENANT = "plait.warm-up"


class _Death:
    """Why an engine is dead, if it is: the first reason that was told. Any thread.

    No part of the core, so that its driver does not refer back to it: a closed engine is then gone, with its weights
    and its KV cache, when its last user drops it, and need not wait for the garbage collector.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason


class EngineCore:
    """Thread-safe. start() before the first submit(), close() at the end."""

    def __init__(
        self,
        parts: EngineParts,
        info: EngineInfo,
        config: EngineConfig,
        *,
        stall_after_s: float = DEFAULT_STALL_AFTER_S,
        constant_metrics: Mapping[str, float] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """``trace``: the one that runs, if it is to end with this engine."""
        self.info = info
        self._config = config
        self._stall_after_s = stall_after_s
        self._constants = dict(constant_metrics or {})
        self._trace = trace
        self._live: dict[int, LiveRequest] = {}
        # Taken by submit and close only, never by main or I/O.
        self._submit_lock = threading.Lock()
        self._request_ids = itertools.count(1)
        self._num_submitted = 0
        self._num_submitted_choices = 0
        self._num_submitted_tokens = 0
        self._num_overloaded = 0
        self._work_began_at = 0.0
        self._started_at = time.monotonic()
        self._pid = os.getpid()
        self._is_closing = False
        self._is_ready = False
        self._death = _Death()
        self._metrics_base: dict[str, float] = {}
        self._kv = parts.kv
        self._swap = parts.swap
        self._scheduler = _native.Scheduler(scheduler_limits(info, config, parts.kv_block_bytes), parts.kv)
        looks = [] if trace is None else [trace.look]
        self._watch = Watch([*looks, *([] if parts.swap is None else [SwapWatch(parts.swap).look])])
        # Room for every request that may be live, its abort, and the stop.
        num_messages = 2 * (config.max_queued_requests + config.max_batch_size) + 16
        self._driver: Driver = new_driver(
            config.engine_mode, parts, self._scheduler, self._live, num_messages, self._death
        )

    def start(self) -> None:
        """Start the threads and run one prefill and one decode step through all of them.

        Raises:
            EngineDeadError: the warm-up failed.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # A daemon thread that wakes from a native wait while the interpreter ends would abort the process.
        atexit.register(self.close)
        self._driver.start()
        self._watch.start()
        self._warm_up()
        self._metrics_base = self._counters()
        self._started_at = time.monotonic()
        new_span("ready", "engine").mark()
        self._is_ready = True

    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        """See EngineClient.submit."""
        return self._submit(request, on_output)

    def _submit(
        self, request: GenerateRequest, on_output: OutputCallback, *, is_warm_up: bool = False
    ) -> int:
        self._check_open()
        validate_request(request, self.info)
        num_tokens = len(request.prompt_token_ids)
        request_id = next(self._request_ids)
        native = new_request(
            request_id,
            request,
            max_tokens=resolve_max_tokens(request, self.info),
            seed=self._seed_of(request),
            now_ns=time.monotonic_ns(),
            is_warm_up=is_warm_up,
        )
        live = LiveRequest(request_id, request.sampling.n, on_output)
        with self._submit_lock:
            self._check_open()
            self._check_queue(num_tokens)
            if not self._live:
                self._work_began_at = time.monotonic()
            self._live[request_id] = live
            if not self._driver.try_send(native):
                del self._live[request_id]
                raise OverloadedError("the request ring is full", retry_after_s=1.0)
            self._num_submitted += 1
            self._num_submitted_choices += request.sampling.n
            self._num_submitted_tokens += num_tokens
        # A death between the check and the insertion has not seen this request.
        if self._death.reason is not None and self._live.pop(request_id, None) is not None:
            raise EngineDeadError(self._death.reason)
        return request_id

    def abort(self, request_id: int) -> None:
        """See EngineClient.abort. The ring has room for one abort of each live request."""
        live = self._live.get(request_id)
        if live is None or live.is_aborted:
            return
        live.is_aborted = True
        while not self._driver.try_send(Abort(request_id)):
            if self._death.reason is not None or self._is_closing:
                return
            time.sleep(0.001)

    def health(self) -> Health:
        if self._death.reason is not None:
            return Health(False, False, False, self._death.reason)
        if self._is_closing:
            return Health(True, False, True, "shutting down")
        if not self._is_ready:
            return Health(True, False, True, "warming up")
        if self._live:
            since = max(
                self._driver.gauges.last_progress_at, self._work_began_at, self._scheduler.hold_until_s
            )
            idle_s = time.monotonic() - since
            if idle_s > self._stall_after_s:
                return Health(True, True, False, f"work waits and no step ended for {idle_s:.0f} s")
        return Health(True, True, True, "ok")

    def metrics(self) -> dict[str, float]:
        """Counters since the engine was ready, and gauges of this moment (right when idle, too)."""
        counters = self._counters()
        for name, base in self._metrics_base.items():
            counters[name] -= base
        gauges = self._driver.gauges
        uptime_s = max(time.monotonic() - self._started_at, 1e-9)
        num_queued, num_queued_tokens = self._queued()
        return {
            **counters,
            "uptime_seconds": uptime_s,
            "compute_busy_share": min(counters["step_seconds_total"] / uptime_s, 1.0),
            "accept_p50_seconds": self._driver.accepts.quantile_s(0.5),
            "accept_p99_seconds": self._driver.accepts.quantile_s(0.99),
            "requests_live": len(self._live),
            "requests_running": self._scheduler.num_running,
            "requests_waiting": self._scheduler.num_waiting,
            "queue_depth_requests": num_queued,
            "queue_depth_tokens": num_queued_tokens,
            "queue_depth_submissions": self._driver.num_messages,
            "queue_depth_steps": gauges.num_steps_in_flight,
            **{f"queue_depth_{name}": depth for name, depth in self._driver.ring_depths().items()},
            "step_gap_max_seconds": gauges.step_gap_max_seconds,
            "kv_blocks": self.info.num_kv_blocks,
            "kv_blocks_free": self._scheduler.num_free_blocks,
            "kv_blocks_cached": self._kv.num_cached_blocks,
            **self._swap_gauges(),
            **(self._trace.metrics() if self._trace is not None else {}),
            **self._constants,
        }

    def _swap_gauges(self) -> dict[str, float]:
        if self._swap is None:
            return {}
        totals = self._swap.counters()
        return {
            "kv_swap_used_bytes": totals["ram_bytes_used"],
            "kv_swap_file_used_bytes": totals["file_bytes_used"],
        }

    def _counters(self) -> dict[str, float]:
        stats = self._scheduler.stats
        gauges = self._driver.gauges
        accepts = self._driver.accepts
        kv = self._kv.counters()
        return {
            "requests_total": self._num_submitted,
            "requests_accepted_total": accepts.count,
            "accept_seconds_total": accepts.total_s,
            "accepted_within_2ms_total": accepts.count_within(0.002),
            "requests_overloaded_total": self._num_overloaded,
            "requests_finished_total": stats.requests_finished_total,
            "aborted_total": stats.choices_aborted_total,
            "failed_total": stats.choices_failed_total,
            "prompt_tokens_total": stats.prompt_tokens_total,
            "cached_tokens_total": stats.cached_tokens_total,
            "prefill_tokens_total": stats.prefill_tokens_total,
            "generated_tokens_total": stats.generated_tokens_total,
            "dropped_tokens_total": stats.dropped_tokens_total,
            "skipped_steps_total": stats.skipped_steps_total,
            "preemptions_total": stats.preemptions_total,
            "saved_sequences_total": stats.saved_sequences_total,
            "fetched_sequences_total": stats.fetched_sequences_total,
            "fetched_tokens_total": stats.fetched_tokens_total,
            "failed_transfers_total": stats.failed_transfers_total,
            "steps_total": gauges.steps_total,
            "failed_steps_total": gauges.failed_steps_total,
            "step_seconds_total": gauges.step_seconds_total,
            "forward_seconds_total": gauges.forward_seconds_total,
            "step_gap_seconds_total": gauges.step_gap_seconds_total,
            "kv_lookup_tokens_total": kv["num_lookup_tokens"],
            "kv_hit_tokens_total": kv["num_hit_tokens"],
            "kv_versions_total": kv["num_versions"],
            "kv_copies_total": kv["num_copies"],
            "kv_evictions_total": kv["num_evictions"],
            "kv_merged_blocks_total": kv["num_merged_blocks"],
        }

    def close(self) -> None:
        """See EngineClient.close. Waits for the steps in flight.

        Raises:
            PlaitError: all is closed, but the trace could not be written.
        """
        if os.getpid() != self._pid:
            self._leave_to_parent()
            return
        with self._submit_lock:
            is_first = not self._is_closing
            self._is_closing = True
        if is_first:
            atexit.unregister(self.close)
            while not self._driver.try_send(Stop()) and self._death.reason is None:
                time.sleep(0.001)
        try:
            if not self._driver.join(_CLOSE_TIMEOUT_S):
                self._die(f"the engine did not stop within {_CLOSE_TIMEOUT_S:.0f} s")
        except BaseException:  # a signal: there is no time to write a whole file
            atexit.register(self.close)  # the threads still have to be gone before the interpreter is
            if is_first and self._trace is not None:
                self._trace.discard()
            raise
        try:
            if is_first and self._trace is not None:
                self._trace.close() if self._is_ready else self._trace.discard()
        finally:
            self._watch.stop()

    def _leave_to_parent(self) -> None:
        """In a fork: the threads are the parent's. Native destructors would wait for them, so none may run."""
        _native.keep_forever(self)

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._death.reason is not None:
            raise EngineDeadError(self._death.reason)
        if self._is_closing:
            raise ShuttingDownError("the engine is shutting down", retry_after_s=1.0)

    def _queued(self) -> tuple[int, int]:
        """Requests and prompt tokens that no step has taken yet."""
        stats = self._scheduler.stats
        return (
            max(self._num_submitted - stats.requests_dequeued_total, 0),
            max(self._num_submitted_tokens - stats.dequeued_prompt_tokens_total, 0),
        )

    def _check_queue(self, num_tokens: int) -> None:
        """A request of n choices takes the room of n: its work is what others wait for."""
        num_queued, num_queued_tokens = self._queued()
        config = self._config
        num_choices = self._num_submitted_choices - self._scheduler.stats.dequeued_choices_total
        if num_choices >= config.max_queued_requests:
            what = f"{num_choices} choices wait, {config.max_queued_requests} may"
        elif num_queued and num_queued_tokens + num_tokens > config.max_queued_tokens:
            what = (
                f"{num_queued_tokens} prompt tokens wait and this request has {num_tokens}; "
                f"{config.max_queued_tokens} may wait"
            )
        else:
            return
        self._num_overloaded += 1
        wait_s = num_queued_tokens * self._scheduler.prefill_token_s
        raise OverloadedError(
            f"the engine's queue is full: {what}", retry_after_s=min(max(wait_s, 1.0), _MAX_RETRY_AFTER_S)
        )

    def _seed_of(self, request: GenerateRequest) -> int:
        if request.sampling.seed is not None:
            return request.sampling.seed
        if self._config.seed is not None:
            return self._config.seed
        return int.from_bytes(os.urandom(8), "little")

    def _warm_up(self) -> None:
        done = threading.Event()
        failures: list[str] = []

        def on_output(output: TokenOutput) -> None:
            if output.error is not None:
                failures.append(output.error)
            if output.finish_reason is not None:
                done.set()

        num_tokens = max(1, min(self.info.block_tokens + 1, self.info.max_model_len - 2))
        request = GenerateRequest(
            prompt_token_ids=tuple(i % self.info.vocab_size for i in range(num_tokens)),
            sampling=SamplingParams(
                temperature=0.0, max_tokens=None if num_tokens == 1 else 2, ignore_eos=True
            ),
            tenant=_WARM_UP_TENANT,
        )
        try:
            self._submit(request, on_output, is_warm_up=True)
        except PlaitError as error:
            failures.append(str(error))
            done.set()
        if not done.wait(_WARM_UP_TIMEOUT_S):
            failures.append(f"no answer within {_WARM_UP_TIMEOUT_S:.0f} s")
        if failures:
            self._die(f"the warm-up failed: {failures[0]}")
            self.close()
            raise EngineDeadError(f"the warm-up failed: {failures[0]}")

    def _die(self, reason: str) -> None:
        """Nothing more will be served: tell everyone who waits."""
        self._death(reason)
        self._driver.end_live(self._death.reason or reason)

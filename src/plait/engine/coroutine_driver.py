"""The ``coroutine`` mode: scheduling, compute and I/O are coroutines of one thread.

    any thread --submissions--> io --> schedule --steps--> compute --results--> schedule --outputs--> io

While a step runs, its thread runs nothing else: requests wait for its end before anything takes them in, and
no step is planned beside it. That is what the ``threads`` mode is compared with. The step itself holds no GIL
and may use a team of compute threads, whose first member is this thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from plait import _native
from plait.engine.delivery import Delivery
from plait.engine.driver import Message, OnDeath, enter_thread, join_threads, new_thread
from plait.engine.mail import Abort, LiveRequest
from plait.engine.parts import EngineParts
from plait.engine.step_loop import LoopGauges, StepLoop
from plait.types import FinishReason

_log = logging.getLogger(__name__)


_TRANSFER_S = 0.002


def _new_abort(steps: StepLoop, has_news: asyncio.Event) -> Callable[[int], None]:
    """Knows no driver: one that refers to itself outlives its engine until the garbage collector comes."""

    def abort(request_id: int) -> None:
        steps.take(Abort(request_id))
        has_news.set()

    return abort


class CoroutineDriver:
    """See plait.engine.driver.Driver."""

    def __init__(
        self,
        parts: EngineParts,
        scheduler: _native.Scheduler,
        live: dict[int, LiveRequest],
        num_messages: int,
        on_death: OnDeath,
    ) -> None:
        self._has_news = asyncio.Event()
        self._steps = StepLoop(scheduler, parts.executor, max_in_flight=1, swap=parts.swap)
        if parts.run_next is None:
            raise ValueError("this mode needs an executor that runs steps on the calling thread")
        self._run_next = parts.run_next
        # Nobody waits at this bell: the event loop has its own.
        self._submissions = parts.new_mpsc_ring(num_messages, parts.new_bell())
        self._delivery = Delivery(live, _new_abort(self._steps, self._has_news))
        self._on_death = on_death
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = new_thread("plait-engine", self._run)
        self._has_step = asyncio.Event()
        self._has_outputs = asyncio.Event()
        self._outputs: list[_native.OutputBatch] = []

    @property
    def gauges(self) -> LoopGauges:
        return self._steps.gauges

    @property
    def accepts(self) -> _native.LatencyHistogram:
        return self._steps.accepts

    @property
    def num_messages(self) -> int:
        return len(self._submissions)

    def ring_depths(self) -> dict[str, int]:
        return self._steps.ring_depths()

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def try_send(self, message: Message) -> bool:
        if not self._submissions.try_push(message):
            return False
        self._wake()
        return True

    def end_live(self, error: str) -> None:
        self._delivery.end_live(FinishReason.ERROR, error)

    def join(self, timeout_s: float) -> bool:
        return join_threads([self._thread], timeout_s)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._has_news.set)
            except RuntimeError:
                return  # the loop is closed: whoever closed it ended what was live

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        error: str | None = None
        try:
            enter_thread(passes_messages=False)
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._work())
        except BaseException as caught:
            _log.exception("the thread of the engine died")
            error = f"the engine's thread died: {caught!r}"
            self._on_death(error)
        finally:
            self._delivery.end_live(FinishReason.ABORT if error is None else FinishReason.ERROR, error)
            self._steps.stop_executor()
            loop.close()

    async def _work(self) -> None:
        """Until stopped; the first coroutine that fails ends all."""
        tasks = [asyncio.ensure_future(work) for work in (self._schedule(), self._compute(), self._deliver())]
        try:
            # The scheduler's ends first, when all is done.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._deliver_all()

    async def _schedule(self) -> None:
        steps = self._steps
        while True:
            self._has_news.clear()
            steps.take_results()
            for message in self._submissions.pop_all():
                steps.take(message)
            steps.feed()
            if steps.gauges.num_steps_in_flight:
                self._has_step.set()
            outputs = steps.take_outputs()
            if outputs is not None:
                self._outputs.append(outputs)
                self._has_outputs.set()
            if steps.has_ended:
                return
            try:
                # The swap rings no bell that an event loop hears.
                is_swapping = steps.scheduler.has_transfers
                async with asyncio.timeout(min(steps.wait_s, _TRANSFER_S) if is_swapping else steps.wait_s):
                    await self._has_news.wait()
            except TimeoutError:
                continue

    async def _compute(self) -> None:
        while True:
            await self._has_step.wait()
            self._has_step.clear()
            while self._run_next():
                self._has_news.set()
                await asyncio.sleep(0)  # the others' turn

    async def _deliver(self) -> None:
        while True:
            await self._has_outputs.wait()
            self._has_outputs.clear()
            self._deliver_all()

    def _deliver_all(self) -> None:
        outputs, self._outputs = self._outputs, []
        for batch in outputs:
            self._delivery.deliver(batch)

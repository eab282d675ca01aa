"""Runs the server: listening, signals, the drain.

A stop goes through three states: ready -> noticed (not ready, still takes work for drain_notice_s) -> refusing
(503, what runs may take grace_s) -> left. A second stop skips to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import TracebackType

from plait.config.server import ServerConfig
from plait.frontend import Frontend
from plait.server.app import create_app
from plait.server.listener import UvicornServer
from plait.server.ports import Ports
from plait.server.state import ServerState

_log = logging.getLogger(__name__)

# How long clients of ended requests get to take their last events.
ABORT_WAIT_S = 5.0
STOP_NOW_WAIT_S = 0.5
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Serving:
    """One server on one event loop, from bound sockets to the end. All methods belong to the loop's thread."""

    def __init__(self, frontend: Frontend, config: ServerConfig, ports: Ports) -> None:
        self._config = config
        self._app = create_app(frontend, config)
        self.state: ServerState = self._app.state.server
        self.ports = ports
        self._server: UvicornServer | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def num_connections(self) -> int:
        return 0 if self._server is None else self._server.num_connections

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until a stop has come to its end; closes the ports. Raises ConfigError."""
        self._server = UvicornServer(self._app, self.state, self._config)
        with self.ports as ports:
            ports.listen()
            try:
                asyncio.get_running_loop().call_soon(self._when_started, on_ready)
                await self._server.serve(sockets=[ports.listener])
            finally:
                self.state.is_draining = self.state.refuses_work = True

    def _when_started(self, on_ready: Callable[[], None]) -> None:
        assert self._server is not None
        if self._server.started:
            self.ports.tell_health(self.state.health)
            on_ready()
        elif not self._server.should_exit:
            asyncio.get_running_loop().call_later(0.001, self._when_started, on_ready)

    def stop(self) -> None:
        """The first call drains, the second stops now."""
        if self._server is None or self._server.should_exit:
            return
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        elif not self.state.is_stopping_now:
            self.state.is_stopping_now = True
            self._stopping.cancel()
            self._stopping = asyncio.get_running_loop().create_task(self._stop_now())

    async def _drain(self) -> None:
        config, state = self._config, self.state
        state.is_draining = True
        _log.info("draining: not ready, %d requests run", state.num_active)
        await asyncio.sleep(config.drain_notice_s)
        state.refuses_work = True
        if not await state.wait_idle(config.grace_s):
            _log.warning(
                "requests that did not end within %g s: %d; ended now", config.grace_s, state.num_active
            )
            state.abort_all()
            await state.wait_idle(ABORT_WAIT_S)
        self._leave()

    async def _stop_now(self) -> None:
        state = self.state
        state.is_draining = state.refuses_work = True
        state.abort_all()
        if not await state.wait_idle(STOP_NOW_WAIT_S):
            assert self._server is not None
            self._server.config.timeout_graceful_shutdown = 0
        self._leave()

    def _leave(self) -> None:
        assert self._server is not None
        self._server.leave()


class HttpServer:
    """A server on a thread of its own, for programs that do something else meanwhile."""

    def __init__(self, frontend: Frontend, config: ServerConfig) -> None:
        """Binds: ``url`` is known before ``start``. Raises ConfigError."""
        self._serving = Serving(frontend, config, Ports(config))
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="plait-http", daemon=True)

    @property
    def url(self) -> str:
        return self._serving.ports.url

    @property
    def health_url(self) -> str | None:
        return self._serving.ports.health_url

    @property
    def state(self) -> ServerState:
        return self._serving.state

    @property
    def num_connections(self) -> int:
        """Open ones, idle or not."""
        return self._serving.num_connections

    def start(self) -> None:
        """Returns when requests are answered. Raises ConfigError: another server began to listen meanwhile."""
        self._serving.ports.listen()
        self._thread.start()
        self._is_ready.wait()

    def drain(self) -> None:
        """Begin to drain, as after SIGTERM; a second call stops now. Returns at once."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._serving.stop)

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether the server has ended, after at most ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End running requests and return when the server has ended. Idempotent."""
        self.drain()
        self.drain()
        self.join()

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with _new_runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._serving.run(self._is_ready.set))
        finally:
            self._is_ready.set()


def run_server(
    frontend: Frontend,
    config: ServerConfig,
    *,
    ports: Ports | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP and the drain that follows; on the main thread.

    Args:
        ports: bound earlier, so that a taken port is known before the model is loaded. They are closed at the end.
        on_ready: is told the URL as soon as requests are answered.

    Raises:
        ConfigError: the address cannot be had.
    """
    serving = Serving(frontend, config, ports or Ports(config))
    url = serving.ports.url

    def tell() -> None:
        _log.info("ready on %s", url)
        if on_ready is not None:
            on_ready(url)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _STOPPING}
        if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
            del before[signal.SIGHUP]
        for number in before:
            loop.add_signal_handler(number, serving.stop)
        try:
            await serving.run(tell)
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    with _new_runner() as runner:
        runner.run(run())


def _new_runner() -> asyncio.Runner:
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)

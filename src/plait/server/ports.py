"""The addresses of a server, taken before its model is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType

from plait.config.server import ServerConfig
from plait.errors import ConfigError
from plait.server.probes import HealthThread
from plait.types import Health

BACKLOG = 2048
LOADING = Health(is_alive=True, is_ready=False, is_progressing=True, detail="the model is being loaded")


class Ports:
    """Bound sockets. Until ``listen`` clients are refused, not left waiting; the health port answers from ``start`` on.

    Use ``with`` or ``close``. One thread at a time.
    """

    def __init__(self, config: ServerConfig) -> None:
        """Binds. Raises ConfigError: an address cannot be had."""
        self.listener = _bind(config.host, config.port)
        self.url = _url_of(self.listener)
        self.health_url: str | None = None
        self._probes: HealthThread | None = None
        self._health_listener: socket.socket | None = None
        if config.health_port is not None:
            try:
                self._health_listener = _bind(config.host, config.health_port)
            except ConfigError:
                self.listener.close()
                raise
            self.health_url = _url_of(self._health_listener)

    def start(self) -> None:
        """Answer health probes: live, not ready. Idempotent. Raises ConfigError."""
        if self._health_listener is not None and self._probes is None:
            _listen(self._health_listener)
            self._probes = HealthThread(lambda: LOADING, self._health_listener)
            self._probes.start()

    def listen(self) -> None:
        """From here on clients may connect. Raises ConfigError: another server began to listen meanwhile."""
        _listen(self.listener)

    def tell_health(self, source: Callable[[], Health]) -> None:
        """Answer probes from ``source``, which the probes' thread calls."""
        if self._probes is not None:
            self._probes.source = source

    def close(self) -> None:
        """Idempotent."""
        if self._probes is not None:
            self._probes.stop()
        for listener in (self.listener, self._health_listener):
            if listener is not None:
                listener.close()

    def __enter__(self) -> Ports:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; port 0 takes a free one. Raises ConfigError."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _taken(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from None
    return listener


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _taken(host, port, error) from None


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}")


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""Asks a running server for its numbers, over HTTP. Knows nothing of what they mean."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from plait.errors import ConfigError, PlaitError
from plait.metrics.reading import Readings, read_page

TIMEOUT_S = 5.0
MAX_REPLY_BYTES = 16 << 20
PREFIX = "plait_"


class NoAnswerError(PlaitError):
    """Nobody answers, or it is no plait server."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a server said at one moment."""

    at_s: float
    """time.monotonic()"""
    readings: Readings
    """Names without ``plait_``."""
    health: Mapping[str, object] = field(default_factory=dict)
    thread_cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds by name of thread, of a server on this machine whose process may be read."""


def check_url(url: str) -> str:
    """``url`` with a scheme and without a path.

    Raises:
        ConfigError: it is no address of a server.
    """
    given = url
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        has_place = False
    if not has_place or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{given!r} is no address of a server; use for example http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


class Source:
    """One server. Each ``look`` opens connections of its own and takes TIMEOUT_S for each at most."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError."""
        self.url = check_url(url)
        # The server is asked itself: proxies of the environment are for the world outside.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def look(self) -> Look:
        """Raises NoAnswerError."""
        page = self._get("/metrics").decode("utf-8", errors="replace")
        try:
            readings = read_page(page)
        except ValueError:
            raise self._stranger("its /metrics are no Prometheus text") from None
        own = _without_prefix(readings)
        if not own.values:
            raise self._stranger("its /metrics hold nothing of plait")
        return Look(time.monotonic(), own, self._health())

    def _health(self) -> Mapping[str, object]:
        try:
            health = json.loads(self._get("/health", may_fail=True))
        except ValueError:
            health = None
        if not isinstance(health, dict) or "status" not in health:
            raise self._stranger("its /health is not plait's")
        return health

    def _get(self, path: str, *, may_fail: bool = False) -> bytes:
        """The body. ``may_fail``: also that of a 503, which says what is wrong."""
        try:
            with self._opener.open(self.url + path, timeout=TIMEOUT_S) as reply:
                return bytes(reply.read(MAX_REPLY_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                if may_fail and error.code == 503:
                    return bytes(error.read(MAX_REPLY_BYTES))
            raise self._stranger(f"{path} is answered with status {error.code}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise NoAnswerError(f"nobody answers at {self.url}: {text}") from None
        except Exception as error:  # what http.client raises about a reply that is none
            raise self._stranger(f"it does not speak HTTP ({type(error).__name__})") from None

    def _stranger(self, reason: str) -> NoAnswerError:
        return NoAnswerError(f"{self.url} answers, but it is no plait server: {reason}")


def _without_prefix(readings: Readings) -> Readings:
    return Readings(
        {
            name.removeprefix(PREFIX): value
            for name, value in readings.values.items()
            if name.startswith(PREFIX)
        },
        {
            name.removeprefix(PREFIX): buckets
            for name, buckets in readings.histograms.items()
            if name.startswith(PREFIX)
        },
    )

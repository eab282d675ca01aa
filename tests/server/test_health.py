"""Health is told apart: live, ready, progress; on the main port and by a thread of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.fakes.fake_server import COMPLETIONS, Served, serve_fake, wait_until


@pytest.fixture
def probed() -> Iterator[Served]:
    with serve_fake(health_port=0) as talk:
        yield talk


def statuses(url: str) -> dict[str, int]:
    with httpx.Client(base_url=url, trust_env=False) as client:
        return {
            name: client.get(f"/health{name}").status_code for name in ("", "/live", "/ready", "/progress")
        }


def both(talk: Served) -> list[dict[str, int]]:
    assert talk.server.health_url is not None
    return [statuses(talk.url), statuses(talk.server.health_url)]


GOOD = {"": 200, "/live": 200, "/ready": 200, "/progress": 200}


def test_all_is_well(probed: Served) -> None:
    assert both(probed) == [GOOD, GOOD]
    assert probed.http.get("/health").json() == {
        "status": "ok",
        "live": True,
        "ready": True,
        "progress": True,
        "detail": "",
    }


def test_not_ready(probed: Served) -> None:
    probed.client.is_ready = False
    assert both(probed) == [{**GOOD, "": 503, "/ready": 503}] * 2


def test_a_stuck_engine_is_no_progress_but_alive(probed: Served) -> None:
    probed.client.is_stuck = True
    assert both(probed) == [GOOD, GOOD]  # idle
    with probed.http.stream("POST", COMPLETIONS, json={"prompt": "a", "stream": True, "max_tokens": 500}):
        assert wait_until(lambda: probed.client.num_running == 1)
        assert both(probed) == [{**GOOD, "": 503, "/progress": 503}] * 2
        probed.client.is_stuck = False


def test_a_dead_engine(probed: Served) -> None:
    probed.client.die()
    bad = {"": 503, "/live": 503, "/ready": 503}
    assert both(probed) == [{**GOOD, **bad}] * 2


def test_probes_are_answered_while_the_event_loop_is_busy(
    probed: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.server.state.STUCK_AFTER_S", 0.4)
    loop = probed.server._loop
    assert loop is not None
    assert probed.server.health_url is not None
    loop.call_soon_threadsafe(time.sleep, 2.5)
    time.sleep(0.1)
    begin = time.monotonic()
    assert httpx.get(probed.server.health_url + "/health/live").status_code == 200
    assert time.monotonic() - begin < 1
    time.sleep(max(0.0, begin + 1.5 - time.monotonic()))
    assert statuses(probed.server.health_url) == {**GOOD, "": 503, "/progress": 503}
    assert time.monotonic() - begin < 2.3, "the event loop was free again: this showed nothing"
    assert wait_until(lambda: statuses(probed.server.health_url or "")["/progress"] == 200)


def test_the_event_loop_beats_while_idle(probed: Served) -> None:
    before = probed.server.state.heartbeat
    assert wait_until(lambda: probed.server.state.heartbeat > before, 5)


def test_draining_is_not_ready() -> None:
    with serve_fake(health_port=0, drain_notice_s=5) as talk:
        talk.server.drain()
        assert wait_until(lambda: talk.server.state.is_draining)
        assert both(talk) == [{**GOOD, "": 503, "/ready": 503}] * 2


def test_other_paths_and_methods_of_the_probe_port(probed: Served) -> None:
    url = probed.server.health_url
    assert url is not None
    assert httpx.get(url + "/metrics").status_code == 404
    assert httpx.post(url + "/health").status_code == 405
    head = httpx.head(url + "/health")
    assert (head.status_code, head.content) == (200, b"")
    assert httpx.get(url + "/health/ready?x=1").status_code == 200


@pytest.mark.parametrize("garbage", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"x" * 100_000, b""])
def test_garbage_does_not_stop_the_probes(probed: Served, garbage: bytes) -> None:
    assert probed.server.health_url is not None
    parts = urlsplit(probed.server.health_url)
    address: Any = (parts.hostname, parts.port)
    idle = socket.create_connection(address, timeout=10)
    with socket.create_connection(address, timeout=10) as client:
        try:
            client.sendall(garbage)
            client.shutdown(socket.SHUT_WR)
            client.recv(1000)
        except (ConnectionError, BrokenPipeError):
            pass
    assert statuses(probed.server.health_url) == GOOD
    idle.close()


def test_no_second_listener_by_default(fake: Served) -> None:
    assert fake.server.health_url is None

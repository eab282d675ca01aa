"""Stopping: in the same process step by step, and as a real process with signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.fakes.fake_client import REPLY
from tests.fakes.fake_server import COMPLETIONS, Served, read_events, serve_fake, wait_until


class Stream:
    """A streaming request that a thread reads to its end."""

    def __init__(self, url: str, **body: Any) -> None:
        self._url = url
        self._body = {"prompt": "a", "stream": True, "max_tokens": 500, **body}
        self.events: list[Any] = []
        self.is_cut = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert wait_until(lambda: len(self.events) > 2)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url + COMPLETIONS, json=self._body, trust_env=False) as reply:
                for event in read_events(reply.iter_lines()):
                    self.events.append(event)
        except httpx.TransportError:
            self.is_cut = True

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def text(self) -> str:
        return "".join(event["choices"][0]["text"] for event in self.events[:-1] if "choices" in event)


def test_every_state_of_a_drain() -> None:
    with serve_fake(engine={"step_s": 0.01}, drain_notice_s=0.6, grace_s=30, retry_after_s=7) as fake:
        stream = Stream(fake.url, max_tokens=200)
        assert fake.http.get("/health/ready").status_code == 200
        fake.server.drain()
        assert wait_until(lambda: fake.server.state.is_draining)
        # Noticed: not ready, but alive, and new work is taken.
        assert fake.http.get("/health/ready").status_code == 503
        assert fake.http.get("/health/live").status_code == 200
        taken = fake.post(COMPLETIONS, prompt="b", max_tokens=2)
        assert taken.status_code == 200
        assert taken.headers["connection"] == "close"
        assert wait_until(lambda: fake.server.state.refuses_work)
        # Refusing: 503 for new work, on old and on new connections; what runs goes on.
        for client in (fake.http, httpx.Client(base_url=fake.url, trust_env=False)):
            refused = client.post(COMPLETIONS, json={"prompt": "b"})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "7"
            assert refused.json()["error"]["code"] == "shutting_down"
        assert fake.http.get("/v1/models").status_code == 200
        client.close()
        stream.join()
        assert stream.text == (REPLY * 5)[:200].decode()
        assert stream.events[-1] == "[DONE]"
        assert fake.server.join(10)
        with pytest.raises(httpx.ConnectError):
            httpx.get(fake.url + "/health", trust_env=False)


def test_what_does_not_end_in_time_is_ended_properly() -> None:
    with serve_fake(engine={"step_s": 0.02}, grace_s=0.2) as fake:
        stream = Stream(fake.url)
        fake.server.drain()
        assert fake.server.join(10)
        stream.join()
        assert stream.events[-1] == "[DONE]"
        (error,) = [event for event in stream.events if "error" in event]
        assert error["error"]["code"] == "aborted"
        assert stream.events[-2]["choices"][0]["finish_reason"] == "error"
        assert wait_until(lambda: fake.client.num_running == 0)


def test_a_second_stop_does_not_wait() -> None:
    with serve_fake(engine={"step_s": 0.02}, grace_s=60, drain_notice_s=60) as fake:
        stream = Stream(fake.url)
        fake.server.drain()
        assert not fake.server.join(0.2)
        begin = time.monotonic()
        fake.server.drain()
        assert fake.server.join(10)
        assert time.monotonic() - begin < 3
        stream.join()
        assert fake.client.aborted


def test_stop_is_idempotent_and_quick_when_idle() -> None:
    with serve_fake() as fake:
        begin = time.monotonic()
        fake.server.stop()
        fake.server.stop()
        assert time.monotonic() - begin < 3


# As a process.


@contextmanager
def process(server: dict[str, Any], engine: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.fakes.fake_server"]
    arguments = [json.dumps({"port": 0, **server}), json.dumps(engine)]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_drains_a_process(number: signal.Signals) -> None:
    with process({"grace_s": 30}, {"step_s": 0.01}) as (child, url):
        stream = Stream(url, max_tokens=150)
        child.send_signal(number)

        def refused() -> bool:
            return httpx.post(url + COMPLETIONS, json={"prompt": "b", "max_tokens": 1}).status_code == 503

        assert wait_until(refused)
        reply = httpx.post(url + COMPLETIONS, json={"prompt": "b"})
        assert int(reply.headers["retry-after"]) >= 1
        assert httpx.get(url + "/health/ready").status_code == 503
        stream.join()
        assert stream.events[-1] == "[DONE]"
        assert stream.text == (REPLY * 4)[:150].decode()
        assert child.wait(10) == 0
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_second_signal_stops_a_process_now() -> None:
    with process({"grace_s": 60}, {"step_s": 0.05}) as (child, url):
        stream = Stream(url)
        child.send_signal(signal.SIGTERM)
        assert wait_until(lambda: httpx.get(url + "/health/ready").status_code == 503)
        assert child.poll() is None
        begin = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        assert time.monotonic() - begin < 3
        stream.join()


def test_an_idle_process_leaves_at_once() -> None:
    with process({}, {}) as (child, url), httpx.Client(base_url=url) as client:
        assert client.get("/health").status_code == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0


def test_a_taken_port_is_one_line(fake: Served) -> None:
    port = int(fake.url.rpartition(":")[2])
    with process({"port": port}, {}) as (child, url):
        assert url == ""
        assert child.wait(10) == 1
        assert child.stderr is not None
        assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in child.stderr.read()

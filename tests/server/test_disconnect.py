"""A client that leaves ends its work, whatever state the work is in."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake, wait_until


@contextmanager
def connection(
    talk: Served, path: str, body: bytes, *, length: int | None = None, head: bytes = b""
) -> Iterator[socket.socket]:
    """A bare client that has sent a request."""
    parts = urlsplit(talk.url)
    first = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body) if length is None else length}\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(first.encode() + head + b"\r\n" + body)
        yield client


@pytest.fixture
def slow() -> Iterator[Served]:
    with serve_fake(engine={"step_s": 0.005}, send_timeout_s=0.5, body_timeout_s=0.5) as talk:
        yield talk


def is_idle(talk: Served) -> bool:
    return bool(talk.client.num_running == 0 and talk.server.state.num_active == 0)


BODIES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "a", "max_tokens": 500}),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 3, "max_tokens": 500}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "n": 2}),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_leaving_in_the_middle(slow: Served, path: str, body: dict[str, Any], stream: bool) -> None:
    num_requests = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    with connection(slow, path, json.dumps({**body, "stream": stream}).encode()) as client:
        assert wait_until(lambda: slow.client.num_running == num_requests)
        if stream:
            assert client.recv(100)
    begin = time.monotonic()
    assert wait_until(lambda: is_idle(slow))
    assert time.monotonic() - begin < 1.0  # generating to the end takes 2.5 s
    assert len(set(slow.client.aborted)) == num_requests
    assert slow.metrics()["plait_client_disconnects_total"] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_first_token(slow: Served, stream: bool) -> None:
    """The engine is stuck, as it is for a request that waits in its queue."""
    slow.client.is_stuck = True
    with connection(
        slow, COMPLETIONS, json.dumps({"prompt": "a", "stream": stream, "max_tokens": 500}).encode()
    ):
        assert wait_until(lambda: slow.client.num_running == 1)
    assert wait_until(lambda: is_idle(slow))


def test_leaving_while_the_prompt_is_tokenized(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleepy(text: str, **options: Any) -> list[int]:
        time.sleep(0.3)
        return [1]

    monkeypatch.setattr(slow.server.state.frontend, "encode_text", sleepy)
    with connection(slow, COMPLETIONS, b'{"prompt": "a"}'):
        assert wait_until(lambda: slow.server.state.num_active == 1)
    assert wait_until(lambda: slow.server.state.num_active == 0)
    time.sleep(0.4)
    assert slow.client.requests == []


def test_leaving_with_half_a_body(slow: Served) -> None:
    with connection(slow, COMPLETIONS, b'{"prom', length=100):
        assert wait_until(lambda: slow.server.state.num_active == 1)
    assert wait_until(lambda: slow.server.state.num_active == 0)
    assert slow.client.requests == []


def test_half_a_body_is_given_up(slow: Served) -> None:
    with connection(slow, COMPLETIONS, b'{"prom', length=100) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert is_idle(slow)


def test_a_stream_that_is_not_read_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with serve_fake(engine={"step_s": 0.0, "max_model_len": 100_000}, send_timeout_s=0.5) as fake:
        body = {"prompt": "a", "stream": True, "logprobs": 20, "max_tokens": 99_000}
        with connection(fake, COMPLETIONS, json.dumps(body).encode()):
            assert wait_until(lambda: fake.client.num_running == 1)
            assert wait_until(lambda: is_idle(fake), 60)
            assert fake.client.num_tokens < 99_000
            assert wait_until(lambda: fake.server.num_connections == 0)
        assert fake.metrics()["plait_client_disconnects_total"] == 1
    assert "ASGI" not in caplog.text


@pytest.mark.parametrize("head", [b"", b"connection: close\r\n"])
def test_a_whole_reply_that_is_not_read_is_given_up(head: bytes) -> None:
    with serve_fake(engine={"step_s": 0.0, "max_model_len": 8000}, keep_alive_s=1) as fake:
        body = {"prompt": "a", "logprobs": 20, "max_tokens": 7900}
        with connection(fake, COMPLETIONS, json.dumps(body).encode(), head=head):
            assert wait_until(lambda: fake.server.num_connections == 1)
            assert wait_until(lambda: is_idle(fake) and fake.client.num_tokens > 7000)
            assert wait_until(lambda: fake.server.num_connections == 0)


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_a_connection_without_a_request_is_closed(sent: bytes) -> None:
    with serve_fake(keep_alive_s=1) as fake:
        parts = urlsplit(fake.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
            client.sendall(sent)
            assert client.recv(100) == b""


def test_many_leave_and_nothing_stays(slow: Served) -> None:
    body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 500}).encode()
    parts = urlsplit(slow.url)
    clients = []
    for _ in range(50):
        client = socket.create_connection((parts.hostname, parts.port), timeout=10)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        clients.append(client)
    assert wait_until(lambda: slow.client.num_running == 50)
    for client in clients:
        client.close()
    assert wait_until(lambda: is_idle(slow))
    metrics = slow.metrics()
    assert metrics["plait_http_active_requests"] == 0
    assert metrics["plait_num_running_requests"] == 0
    assert metrics["plait_client_disconnects_total"] == 50

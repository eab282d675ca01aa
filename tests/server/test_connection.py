"""What a connection may cost and how it ends: heads, trailers, pipelining, refusals, half-closed clients."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from plait.server.connection import MAX_HEAD_BYTES
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake, wait_until

GET = b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
TOKENIZE = b'{"prompt": "a"}'


@contextmanager
def connect(talk: Served) -> Iterator[socket.socket]:
    parts = urlsplit(talk.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def _short_linger() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plait.server.connection.LINGER_S", 0.4)
        yield


def read_all(client: socket.socket) -> bytes:
    """Until the server closes its side."""
    received = b""
    while data := client.recv(65536):
        received += data
    return received


def replies(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def refusal(received: bytes) -> tuple[int, str]:
    """Status and code of the last reply, which must be an error in the JSON shape that closes the connection."""
    head, _, body = received[received.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head[9:12]), error["code"]


def post(body: bytes, path: str = COMPLETIONS, head: bytes = b"") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nhost: x\r\n" % path.encode() + length + head + b"\r\n" + body


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Flood(threading.Thread):
    """Sends ``data`` again and again until the connection breaks."""

    def __init__(self, client: socket.socket, data: bytes) -> None:
        super().__init__(daemon=True)
        self._client, self._data = client, data
        self.num_bytes = 0
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                self.num_bytes += self._client.send(self._data)


# what comes first, and what follows without end
ENDLESS = {
    "headers": (GET, b"a: b\r\n" * 1000),
    "empty headers": (GET, b"a:\r\n" * 1000),
    "one header": (GET + b"a: ", b"x" * 4000),
    "header name": (GET, b"x" * 4000),
    "url": (b"GET /", b"x" * 4000),
    "method": (b"", b"\r\n" * 1000),
    "trailers": (CHUNKED + b"f\r\n" + TOKENIZE + b"\r\n0\r\n", b"a: b\r\n" * 1000),
    "chunk extension": (CHUNKED + b"f;", b"x" * 4000),
    "trailers nobody waits for": (
        CHUNKED.replace(b"POST /tokenize", b"GET /health") + b"0\r\n",
        b"a:\r\n" * 1000,
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_is_no_body_has_an_end(shared: Served, kind: str) -> None:
    first, more = ENDLESS[kind]
    before = rss_bytes()
    with connect(shared) as client:
        client.sendall(first)
        flood = Flood(client, more)
        received = b""
        with suppress(ConnectionError):
            received = read_all(client)
        flood.join(30)
        assert not flood.is_alive()
    assert rss_bytes() - before < 64 << 20
    assert flood.num_bytes < 400 << 20  # what is thrown away has an end, too
    if received:  # a client that goes on sending may lose it
        # What nobody waits for is refused as well when it is there before the answer.
        assert replies(received)[0] in ((200, 431) if "nobody" in kind else (431, 400))
    assert shared.http.get("/health").status_code == 200


@pytest.mark.parametrize("name", [b"a", b"authorization"])
def test_a_large_head(shared: Served, name: bytes) -> None:
    with connect(shared) as client:
        client.sendall(GET + name + b": " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(GET + name + b": " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n")
        assert refusal(read_all(client)) == (431, "head_too_large")


def test_many_headers(shared: Served) -> None:
    with connect(shared) as client:
        client.sendall(GET + b"".join(b"a%d: b\r\n" % i for i in range(200)) + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(GET + b"a:\r\n" * 10_000)
        assert refusal(read_all(client)) == (431, "head_too_large")


def test_a_long_url(shared: Served) -> None:
    assert shared.http.get("/health?" + "x" * 30_000).status_code == 200
    with connect(shared) as client:
        client.sendall(b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n")
        assert refusal(read_all(client)) == (431, "head_too_large")


def test_trailers_and_chunk_extensions_of_an_honest_size(shared: Served) -> None:
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in TOKENIZE)
    with connect(shared) as client:
        client.sendall(CHUNKED + chunks + b"0\r\nx-sum: 1\r\nauthorization: Bearer x\r\n\r\n" + GET + b"\r\n")
        received = b""
        while received.count(b"HTTP/1.1 ") < 2 or not received.endswith(b"}"):
            received += client.recv(65536)
    assert replies(received) == [200, 200]


def test_a_large_body_in_the_smallest_chunks() -> None:
    with (
        serve_fake(max_body_bytes=100_000, engine={"max_model_len": 100_000}) as talk,
        connect(talk) as client,
    ):
        body = b'{"prompt": "' + b"a" * 50_000 + b'"}'
        client.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        received = client.recv(100)
        assert received.startswith(b"HTTP/1.1 200 ")


def test_an_endless_body_in_small_chunks_is_refused() -> None:
    with serve_fake(max_body_bytes=100_000) as talk, connect(talk) as client:
        client.sendall(CHUNKED)
        flood = Flood(client, b"1\r\na\r\n" * 1000)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        flood.join(20)
        assert not flood.is_alive()


def test_pipelining_without_reading_is_held_up() -> None:
    """Neither unread replies nor requests that wait for them pile up."""
    with serve_fake(keep_alive_s=2) as talk, connect(talk) as client:
        before = rss_bytes()
        flood = Flood(client, b"GET /openapi.json HTTP/1.1\r\n\r\n" * 1000)
        time.sleep(1.5)
        assert flood.num_bytes < 50 << 20
        assert rss_bytes() - before < 64 << 20
        assert talk.http.get("/health").status_code == 200
        client.shutdown(socket.SHUT_RDWR)
        flood.join(20)
        assert wait_until(lambda: talk.server.num_connections == 1)  # the other one is ours


def test_many_pipelined_requests_are_all_answered(shared: Served) -> None:
    count = 3000
    with connect(shared) as client:
        sender = threading.Thread(
            target=client.sendall,
            args=((GET + b"\r\n") * (count - 1) + GET + b"connection: close\r\n\r\n",),
        )
        sender.start()
        received = read_all(client)
        sender.join()
    assert replies(received) == [200] * count


def test_a_pipelining_client_that_leaves_is_noticed() -> None:
    with serve_fake(engine={"step_s": 0.02}) as talk:
        body = post(b'{"prompt": "a", "max_tokens": 400}')
        with connect(talk) as client:
            client.sendall(body + body + GET + b"\r\n" + GET)
            assert wait_until(lambda: talk.client.num_running == 1)
        assert wait_until(lambda: talk.client.num_running == 0 and talk.server.state.num_active == 0, 4)
        assert len(talk.client.requests) == 1


GARBAGE = [
    b"\x16\x03\x01\x02\x00 no http\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    b"{}\r\n\r\n",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"1\r\nabc\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_malformed_http_is_an_error_in_json(shared: Served, garbage: bytes) -> None:
    with connect(shared) as client:
        client.sendall(garbage)
        assert refusal(read_all(client)) == (400, "invalid_http")
    assert wait_until(lambda: shared.server.state.num_active == 0)


def test_garbage_after_a_request_does_not_get_into_its_reply() -> None:
    with serve_fake(engine={"step_s": 0.002}) as talk, connect(talk) as client:
        body = b'{"prompt": "a", "max_tokens": 50, "stream": true}'
        client.sendall(post(body) + b"garbage\r\n\r\n" * 10)
        received = read_all(client)
    assert replies(received) == [200, 400]
    assert received.index(b"[DONE]") < received.index(b"HTTP/1.1 400")
    assert refusal(received) == (400, "invalid_http")


REFUSED = {
    "413": (post(b"", head=b"x-a: b\r\n").replace(b"content-length: 0", b"content-length: 99999999999"), 413),
    "413 chunked": (CHUNKED + b"fffff\r\n" + b"a" * 5000, 413),
    "408": (post(b"").replace(b"content-length: 0", b"content-length: 1000"), 408),
    "401": (post(b"", CHAT).replace(b"content-length: 0", b"content-length: 1000"), 401),
    "404": (post(b"", "/v2").replace(b"content-length: 0", b"content-length: 1000"), 404),
    "405": (post(b"", "/health").replace(b"content-length: 0", b"content-length: 1000"), 405),
    "200": (GET + b"content-length: 1000\r\n\r\n", 200),
    "431": (GET + b"a: " + b"x" * MAX_HEAD_BYTES, 431),
    "400": (b"garbage\r\n\r\n", 400),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_reply_to_an_unread_body_ends_the_connection(kind: str) -> None:
    """Even when the client goes on sending; and it gets the reply, not a reset."""
    request, status = REFUSED[kind]
    if kind in ("413", "413 chunked", "408"):
        request = request.replace(b"host: x\r\n", b"host: x\r\nauthorization: Bearer k\r\n")
    with serve_fake(max_body_bytes=2000, body_timeout_s=0.3, api_key="k") as talk, connect(talk) as client:
        client.sendall(request)
        is_cut = threading.Event()

        def trickle() -> None:
            try:
                while True:
                    client.sendall(b"x" * 1000 if kind.startswith("413") else b"x")
                    time.sleep(0.05)
            except OSError:
                is_cut.set()

        received = b""
        if kind != "408":
            thread = threading.Thread(target=trickle)
            thread.start()
        received = read_all(client)
        if kind == "408":
            thread = threading.Thread(target=trickle)
            thread.start()
        assert replies(received) == [status]
        assert b"\r\nconnection: close\r\n" in received
        assert is_cut.wait(10), "the connection stays open while something comes in"
        thread.join()
        assert wait_until(lambda: talk.server.num_connections == 0)


def test_a_request_whose_body_was_not_needed_keeps_the_connection(shared: Served) -> None:
    with connect(shared) as client:
        for _ in range(3):
            client.sendall(post(b"x" * 100, "/v2"))
            reply = client.recv(65536)
            assert reply.startswith(b"HTTP/1.1 404 ")
            assert b"connection: close" not in reply


def test_bytes_between_requests_do_not_keep_a_connection() -> None:
    with serve_fake(keep_alive_s=1) as talk, connect(talk) as client:
        client.sendall(GET + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(60):
            try:
                client.sendall(b"\r\n")
            except OSError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is kept")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET + b"\r\n", 200),
        (GET + b"\r\n" + GET + b"\r\n", 200),
        (post(b"{}"), 400),
        (post(b"x"), 400),
        (post(b"{}", "/v2"), 404),
        (post(b'{"prompt": "a", "model": "other"}'), 404),
        (b"GET /docs HTTP/1.1\r\nhost: x\r\n\r\n", 200),
    ],
)
def test_a_half_closed_client_gets_what_needs_no_engine(shared: Served, request_: bytes, status: int) -> None:
    with connect(shared) as client:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        assert replies(read_all(client)) == [status] * request_.count(b" HTTP/1.1\r\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_half_closed_client_has_left_what_is_generated(stream: bool) -> None:
    """It cannot be told from one that is gone, whose blocks must come free."""
    with serve_fake(engine={"step_s": 0.02}) as talk, connect(talk) as client:
        client.sendall(post(json.dumps({"prompt": "a", "max_tokens": 400, "stream": stream}).encode()))
        assert wait_until(lambda: talk.client.num_running == 1)
        client.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: talk.client.num_running == 0 and talk.server.state.num_active == 0, 4)
        assert wait_until(lambda: talk.server.num_connections == 0)

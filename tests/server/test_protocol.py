"""HTTP itself: methods, paths, sizes, keys, kept connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake


def test_unknown_path(shared: Served) -> None:
    reply = shared.http.get("/v2/other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "http_404"


def test_wrong_method(shared: Served) -> None:
    reply = shared.http.get(COMPLETIONS)
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_head(shared: Served) -> None:
    reply = shared.http.head("/health")
    assert (reply.status_code, reply.content) == (200, b"")


@pytest.mark.parametrize("chunked", [True, False])
def test_too_large_a_body(chunked: bool) -> None:
    body = json.dumps({"prompt": "a" * 5000}).encode()
    with serve_fake(max_body_bytes=2000) as talk:
        content = iter([body[:1000], body[1000:]]) if chunked else body
        reply = talk.http.post(COMPLETIONS, content=content)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "body_too_large"
        assert talk.post(COMPLETIONS, prompt="a", max_tokens=1).status_code == 200


def test_large_bodies_are_served() -> None:
    with serve_fake(engine={"max_model_len": 300_000}) as talk:
        reply = talk.post(COMPLETIONS, prompt="a" * 200_000, max_tokens=1)
        assert reply.json()["usage"]["prompt_tokens"] == 200_001
        bad = talk.post(COMPLETIONS, prompt=[1] * 100_000 + ["x"], max_tokens=1)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "prompt[100000]")


def test_api_key() -> None:
    with serve_fake(api_key="s3cret") as talk:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
            for reply in (
                talk.http.post(COMPLETIONS, json={"prompt": "a"}, headers=headers),
                talk.http.get("/v1/models", headers=headers),
            ):
                assert reply.status_code == 401
                assert reply.headers["www-authenticate"] == "Bearer"
        assert talk.http.get("/health").status_code == 200
        good = openai.OpenAI(base_url=f"{talk.url}/v1", api_key="s3cret", max_retries=0)
        assert good.completions.create(model="fake", prompt="a", max_tokens=1).choices[0].text == "T"
        good.close()


def test_the_way_out_is_named_for_unknown_fields(shared: Served) -> None:
    for body in ({"other": 1}, {"messages": [{"role": "user", "content": "a", "other": 1}]}):
        messages = {"messages": [{"role": "user", "content": "a"}], **body}
        message = shared.post(CHAT, **messages).json()["error"]["message"]
        assert '"other"' in message
        assert "--allow-unknown-fields" in message


def test_unknown_fields_can_be_allowed() -> None:
    with serve_fake(allow_unknown_fields=True) as talk:
        body = {"messages": [{"role": "user", "content": "a", "extra": 1}], "other": 2, "max_tokens": 1}
        assert talk.post(CHAT, **body).status_code == 200


def test_connections_are_kept(shared: Served) -> None:
    before = shared.server.num_connections
    with httpx.Client(base_url=shared.url, trust_env=False) as client:
        for _ in range(3):
            with client.stream(
                "POST", COMPLETIONS, json={"prompt": "a", "max_tokens": 2, "stream": True}
            ) as reply:
                reply.read()
            assert client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}).status_code == 200
            assert client.post(COMPLETIONS, json={"prompt": 1}).status_code == 400
        assert shared.server.num_connections == before + 1


def test_pipelined_requests_are_answered_in_order(shared: Served) -> None:
    parts = urlsplit(shared.url)
    request = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(request * 2 + last)
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.index(b'"object":"list"') > received.rindex(b'"live":true')


def test_garbage_is_refused_and_nothing_else_happens(shared: Served) -> None:
    parts = urlsplit(shared.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(b"\x16\x03\x01\x02\x00 no http\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    assert shared.http.get("/health").status_code == 200


def test_slow_tokenizing_does_not_stop_the_others(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = fake.server.state.frontend
    encode_text = frontend.encode_text

    def encode(text: str, **options: object) -> list[int]:
        if text == "slow":
            time.sleep(1.0)
        return encode_text(text)

    monkeypatch.setattr(frontend, "encode_text", encode)
    thread = threading.Thread(
        target=fake.post, args=(COMPLETIONS,), kwargs={"prompt": "slow", "max_tokens": 1}
    )
    thread.start()
    time.sleep(0.1)
    begin = time.monotonic()
    assert fake.post(COMPLETIONS, prompt="a", max_tokens=3).status_code == 200
    assert fake.http.get("/health").status_code == 200
    assert time.monotonic() - begin < 0.7
    thread.join()

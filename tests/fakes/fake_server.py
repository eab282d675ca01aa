"""A real HTTP server over the fake engine; as a program (``python -m tests.fakes.fake_server``) a process to signal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from plait.config.server import ServerConfig
from plait.frontend import Frontend
from plait.server import HttpServer, run_server
from tests.fakes.fake_client import FakeClient
from tests.fakes.fake_tokenizer import FakeTemplate, FakeTokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def make_frontend(client: FakeClient) -> Frontend:
    return Frontend(client, FakeTokenizer(), FakeTemplate())  # type: ignore[arg-type]


class Served:
    """A running server with the means to talk to it."""

    def __init__(self, server: HttpServer, client: Any) -> None:
        self.server = server
        self.client = client
        self.url = server.url
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The data of every event of a stream, JSON decoded; the last one is ``"[DONE]"``."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            return list(read_events(reply.iter_lines()))

    def metrics(self) -> dict[str, float]:
        """Samples without labels, by name."""
        page = self.http.get("/metrics")
        assert page.status_code == 200
        lines = (line.split(" ") for line in page.text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines if "{" not in name}

    def close(self) -> None:
        self.http.close()
        self.openai.close()


def wait_until(claim: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether ``claim`` has become true within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def read_events(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if not line:
            continue
        assert line.startswith("data: ")
        data = line.removeprefix("data: ")
        yield data if data == "[DONE]" else json.loads(data)


@contextmanager
def served(frontend: Frontend, **settings: Any) -> Iterator[Served]:
    config = ServerConfig.model_validate({"port": 0, **settings})
    with HttpServer(frontend, config) as server:
        talk = Served(server, frontend.client)
        try:
            yield talk
        finally:
            talk.close()


@contextmanager
def serve_fake(*, engine: dict[str, Any] | None = None, **settings: Any) -> Iterator[Served]:
    """``engine``: arguments of FakeClient; the rest: fields of ServerConfig."""
    client = FakeClient(**(engine or {}))
    frontend = make_frontend(client)
    try:
        with served(frontend, **settings) as talk:
            yield talk
    finally:
        frontend.close()
        client.close()


def main() -> None:
    """Arguments: the ServerConfig and the FakeClient's arguments as JSON. Prints the URL when ready."""
    client = FakeClient(**json.loads(sys.argv[2]))
    frontend = make_frontend(client)
    config = ServerConfig.model_validate_json(sys.argv[1])
    run_server(frontend, config, on_ready=lambda url: print(url, flush=True))
    frontend.close()
    client.close()


if __name__ == "__main__":
    main()

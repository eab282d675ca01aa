"""plait top against running servers: frames, JSON, strangers, silence, and the threads of a server's process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client import generate_latest

import plait.cli.top as top
from plait.cli.watch.source import NoAnswerError, Source, check_url
from plait.cli.watch.threads import find_server, read_threads
from plait.errors import ConfigError
from tests.fakes.fake_server import COMPLETIONS, Served
from tests.fakes.run_cli import run


def test_one_frame_without_a_terminal(fake: Served, capsys: pytest.CaptureFixture[str]) -> None:
    fake.post(COMPLETIONS, prompt="abc", max_tokens=5)
    code, out, err = run(capsys, "top", fake.url, "--once", "--interval", "0.1")
    assert (code, err) == (0, "")
    assert f"plait top  {fake.url}  ok" in out
    assert "first token" in out
    assert "\x1b" not in out


def test_one_frame_as_json(fake: Served, capsys: pytest.CaptureFixture[str]) -> None:
    fake.post(COMPLETIONS, prompt="abc", max_tokens=5)
    code, out, _ = run(capsys, "top", fake.url, "--once", "--json", "--interval", "0.1")
    assert code == 0
    frame = json.loads(out)
    assert (frame["url"], frame["status"]) == (fake.url, "ok")
    assert frame["first_token"]["mean_s"] > 0
    assert frame["generated_per_s"] == 0
    # The server is in this process, whose threads are there to see.
    assert frame["threads"]


def test_rates_while_it_works(fake: Served) -> None:
    source = Source(fake.url)
    before = source.look()
    fake.post(COMPLETIONS, prompt="abc", max_tokens=5)
    now = source.look()
    grown = now.readings.values["generated_tokens_total"] - before.readings.values["generated_tokens_total"]
    assert grown == 5


def test_frames_go_on_until_the_server_is_gone(
    fake: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def ticks(interval_s: float) -> Iterator[None]:
        nonlocal count
        while True:
            count += 1
            if count == 3:
                fake.server.stop()
            yield

    monkeypatch.setattr(top, "_ticks", ticks)
    code, out, err = run(capsys, "top", fake.url, "--json")
    assert code == 1
    assert len(out.splitlines()) == 2
    assert err.startswith(f"plait: nobody answers at {fake.url}: Connection refused")


def test_ctrl_c_is_a_good_end(
    fake: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ticks(interval_s: float) -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "_ticks", ticks)
    code, out, err = run(capsys, "top", fake.url)
    assert (code, err) == (0, "")
    assert out.count("plait top") == 1


def test_a_sick_server_is_shown(fake: Served, capsys: pytest.CaptureFixture[str]) -> None:
    fake.client.is_ready = False
    code, out, _ = run(capsys, "top", fake.url, "--once", "--interval", "0.05")
    assert code == 0
    assert "unavailable" in out


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{bound.getsockname()[1]}"
        code, out, err = run(capsys, "top", url, "--once")
    assert (code, out) == (1, "")
    assert err == f"plait: nobody answers at http://{url}: Connection refused\n"


@contextmanager
def stranger(status: int, metrics: bytes, health: bytes = b"ok") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics if self.path == "/metrics" else health
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "metrics", "health", "message"),
    [
        (404, b"", b"", "/metrics is answered with status 404"),
        (200, b"<html>hello</html>", b"", "no Prometheus text"),
        (200, generate_latest(), b"", "hold nothing of plait"),
        (200, b"plait_steps_total 1\n", b"fine", "its /health is not plait's"),
        (200, b"plait_steps_total 1\n", b"{}", "its /health is not plait's"),
    ],
)
def test_strangers(
    capsys: pytest.CaptureFixture[str], status: int, metrics: bytes, health: bytes, message: str
) -> None:
    with stranger(status, metrics, health) as url:
        code, out, err = run(capsys, "top", url, "--once", "--interval", "0.05")
    assert (code, out) == (1, "")
    assert err.startswith(f"plait: {url} answers, but it is no plait server: ")
    assert message in err


def test_one_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoAnswerError, match="does not speak HTTP"):
            Source(f"127.0.0.1:{listener.getsockname()[1]}").look()
        thread.join()


def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.watch.source.TIMEOUT_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(NoAnswerError, match=r"nobody answers at .*timed out"),
    ):
        Source(f"127.0.0.1:{listener.getsockname()[1]}").look()


def test_proxies_are_not_asked(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert Source(fake.url).look().health["status"] == "ok"


@pytest.mark.parametrize(
    "url", ["", "http://", "foo://x", "http://127.0.0.1:notaport", "http://127.0.0.1:99999", "::"]
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        check_url(url)


def test_good_addresses() -> None:
    assert check_url("127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert check_url("http://localhost:8000/metrics?x=1") == "http://localhost:8000"
    assert check_url("https://host") == "https://host"


@pytest.mark.parametrize("interval", ["0", "-1", "x"])
def test_bad_intervals(capsys: pytest.CaptureFixture[str], interval: str) -> None:
    assert run(capsys, "top", "--interval", interval)[0] == 2


def test_the_process_that_listens_is_found() -> None:
    code = (
        "import socket, sys, threading\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert find_server(f"http://127.0.0.1:{port}") == process.pid
        assert find_server(f"http://localhost:{port}") == process.pid
        assert find_server(f"http://192.0.2.1:{port}") is None, "that is another machine"
        threads = read_threads(process.pid)
        assert len(threads) == 1
        assert next(iter(threads.values())) >= 0
        process.stdin.close()  # type: ignore[union-attr]
    assert find_server(f"http://127.0.0.1:{port}") is None
    assert read_threads(process.pid) == {}


def test_thread_names_may_hold_anything(tmp_path: Path) -> None:
    task = tmp_path / "7/task"
    for number, name, ticks in ((7, "a (b) c", 150), (8, "plait-team", 100), (9, "plait-team", 50)):
        (task / str(number)).mkdir(parents=True)
        fields = " ".join(["S", *["0"] * 10, str(ticks), "50", *["0"] * 30])
        (task / str(number) / "stat").write_text(f"{number} ({name}) {fields}\n")
    hz = os.sysconf("SC_CLK_TCK")
    assert read_threads(7, tmp_path) == {"a (b) c": 200 / hz, "plait-team": 250 / hz}

"""``plait serve`` as a process: ready soon, quiet while idle, gone when told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fakes.fake_server import wait_until

pytestmark = pytest.mark.model


@contextmanager
def plait_serve(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its URL, and the lines that it wrote."""
    program = [sys.executable, "-c", "from plait.cli import main; main()"]
    command = [*program, "serve", str(model), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        lines: list[str] = []

        def read() -> None:
            assert child.stderr is not None
            for line in child.stderr:
                lines.append(line)

        reader = threading.Thread(target=read, daemon=True)

        def url() -> str | None:
            return next((line.split()[-1] for line in list(lines) if "ready on" in line), None)

        reader.start()
        try:
            assert wait_until(lambda: url() is not None or child.poll() is not None, 60)
            assert child.poll() is None, lines
            yield child, url() or "", lines
        finally:
            child.kill()
            reader.join(10)


def test_health_is_answered_while_the_model_is_loaded() -> None:
    slow = "plait.offline.open_frontend = lambda *arguments: time.sleep(60)"
    program = f"import time, plait.offline; {slow}; from plait.cli import main; main()"
    flags = ["serve", "slow.gguf", "--port", "0", "--health-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *flags], stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            assert "health on http" in line
            url = line.split()[-1]
            statuses = {
                name: httpx.get(f"{url}/health{name}").status_code
                for name in ("", "/live", "/ready", "/progress")
            }
            assert statuses == {"": 503, "/live": 200, "/ready": 503, "/progress": 200}
            assert "loaded" in httpx.get(f"{url}/health").json()["detail"]
            assert child.poll() is None
            child.send_signal(signal.SIGTERM)
            assert child.wait(10) != 0
        finally:
            child.kill()


def cpu_s(pid: int) -> float:
    """User and system seconds of a process and of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)


def test_serve_answers_and_drains(smollm2_path: Path) -> None:
    with plait_serve(smollm2_path, "--max-model-len", "512") as (child, url, lines):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        pieces: list[Any] = []

        def stream() -> None:
            for chunk in client.completions.create(
                model=model,
                prompt="Once upon a time",
                stream=True,
                max_tokens=300,
                temperature=0,
                extra_body={"ignore_eos": True},
            ):
                pieces.append(chunk.choices[0])

        thread = threading.Thread(target=stream)
        thread.start()
        assert wait_until(lambda: len(pieces) > 2)
        child.send_signal(signal.SIGTERM)
        assert wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 503)
        assert wait_until(
            lambda: (
                httpx.post(f"{url}/v1/completions", json={"prompt": "b", "max_tokens": 1}).status_code == 503
            )
        )
        assert thread.is_alive(), "the stream ended before the drain was seen: this showed nothing"
        thread.join(60)
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
        assert child.wait(20) == 0
        assert not any("Traceback" in line for line in lines), lines


def test_second_signal_stops_now(smollm2_path: Path) -> None:
    with plait_serve(smollm2_path) as (child, url, _):
        thread = threading.Thread(
            target=lambda: httpx.post(
                f"{url}/v1/completions",
                json={"prompt": "a", "max_tokens": 4000, "ignore_eos": True},
                timeout=60,
            )
        )
        thread.start()
        assert wait_until(lambda: "plait_requests_running 1.0" in httpx.get(f"{url}/metrics").text)
        child.send_signal(signal.SIGINT)
        assert wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 503)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
        assert time.monotonic() - begin < 5
        thread.join(20)


def test_start_costs_little(smollm2_path: Path) -> None:
    """Ready within 2 s on an idle machine; a busy one stretches the time, not the work."""
    with plait_serve(smollm2_path) as (child, url, _):
        assert cpu_s(child.pid) < 2
        assert httpx.get(f"{url}/health/ready").status_code == 200


@pytest.mark.slow
def test_idle_costs_less_than_one_percent_of_a_core(smollm2_path: Path) -> None:
    with plait_serve(smollm2_path, "--health-port", "0") as (child, url, _):
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 5}).status_code == 200
        time.sleep(1)
        before, begin = cpu_s(child.pid), time.monotonic()
        time.sleep(10)
        used_s, passed_s = cpu_s(child.pid) - before, time.monotonic() - begin
        assert used_s / passed_s < 0.01
        assert httpx.get(f"{url}/health").status_code == 200

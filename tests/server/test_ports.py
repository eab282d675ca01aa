"""Addresses are taken before the model is loaded, and nobody is let in before it is."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from plait.config.server import ServerConfig
from plait.errors import ConfigError
from plait.server import Ports
from tests.fakes.fake_server import Served, serve_fake


def config(port: int = 0, health_port: int | None = None) -> ServerConfig:
    return ServerConfig(port=port, health_port=health_port)


def port_of(url: str | None) -> int:
    port = urlsplit(url or "").port
    assert port is not None
    return port


def test_clients_are_refused_and_probes_answered_until_the_server_runs() -> None:
    with Ports(config(health_port=0)) as ports:
        with pytest.raises(httpx.ConnectError):
            httpx.get(ports.url + "/health")
        for path, status in (("", 503), ("/live", 200), ("/ready", 503), ("/progress", 200)):
            assert httpx.get(f"{ports.health_url}/health{path}").status_code == status
        ports.listen()
        socket.create_connection(("127.0.0.1", port_of(ports.url)), timeout=10).close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{ports.health_url}/health/live")


def test_a_taken_port_is_told_at_once(fake: Served) -> None:
    with pytest.raises(ConfigError, match=f"port {port_of(fake.url)}: Address already in use"):
        Ports(config(port_of(fake.url)))


def test_a_taken_health_port_frees_the_other(fake: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="Address already in use"):
        Ports(config(port, port_of(fake.url)))
    Ports(config(port)).close()


def test_the_later_of_two_that_load_at_once_is_told() -> None:
    with Ports(config()) as first, Ports(config(port_of(first.url))) as second:
        second.listen()
        with pytest.raises(ConfigError, match="Address already in use"):
            first.listen()


def test_closing_is_idempotent_and_frees_the_port() -> None:
    ports = Ports(config(health_port=0))
    ports.start()
    ports.start()
    ports.close()
    ports.close()
    with serve_fake(port=port_of(ports.url), health_port=port_of(ports.health_url)) as talk:
        assert talk.http.get("/health").status_code == 200


def serve_nothing(tmp_path: Path, *flags: str) -> str:
    """What ``plait serve`` with wrong flags says, if it says so before it looks for the model."""
    missing = tmp_path / "missing.gguf"
    program = [sys.executable, "-c", "from plait.cli import main; main()", "serve", str(missing)]
    done = subprocess.run([*program, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "missing.gguf" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_serve_looks_at_the_port_before_the_model(fake: Served, tmp_path: Path) -> None:
    assert "Address already in use" in serve_nothing(tmp_path, "--port", str(port_of(fake.url)))


def test_serve_tells_one_port_for_two_listeners_before_the_model(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    said = serve_nothing(tmp_path, "--port", port, "--health-port", port)
    assert f"port and health_port are both {port}; give health_port another number" in said

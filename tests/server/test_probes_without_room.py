"""Probes are answered, and calmly, while the process has no file descriptor left."""

from __future__ import annotations

import subprocess
import sys

import httpx

PROGRAM = """
import logging, os, resource, socket, sys
from plait.server.probes import HealthThread
from plait.types import Health

logging.basicConfig(level=logging.WARNING)
listener = socket.create_server(("127.0.0.1", 0))
probes = HealthThread(lambda: Health(True, True, True), listener)
probes.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
for number in held:
    os.close(number)
print("free", flush=True)
sys.stdin.readline()
probes.stop()
"""


def test_probes_have_a_descriptor_of_their_own() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    url = f"http://127.0.0.1:{int(child.stdout.readline())}/health/live"
    for _ in range(5):
        assert httpx.get(url, timeout=10).status_code == 200
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "free\n"
    assert httpx.get(url, timeout=10).status_code == 200
    _, said = child.communicate("\n", timeout=20)
    assert child.returncode == 0
    assert said.count("raise ulimit -n") == 1
    assert "Traceback" not in said

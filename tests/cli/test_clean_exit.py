"""Every program that ran an engine ends without a word: nothing of the engine outlives the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from plait.config.engine import EngineMode

pytestmark = pytest.mark.model

MODES = get_args(EngineMode)
PROGRAM = [sys.executable, "-c", "from plait.cli import main; main()"]
LLM = """
import sys
from plait import LLM, SamplingParams
params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
"""
SCRIPTS = {
    "forgotten": LLM
    + """
llm = LLM(sys.argv[1], engine_mode=sys.argv[2], max_model_len=256)
print(len(llm.generate("Once upon a time", params)))
""",
    "with": LLM
    + """
with LLM(sys.argv[1], engine_mode=sys.argv[2], max_model_len=256) as llm:
    print(len(llm.generate("Once upon a time", params)))
""",
    "async": LLM.replace("LLM", "AsyncLLM")
    + """
import asyncio
async def main():
    llm = AsyncLLM(sys.argv[1], engine_mode=sys.argv[2], max_model_len=256)
    async for output in llm.generate("Once upon a time", params):
        pass
    print(1)
asyncio.run(main())
""",
}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_server(smollm2_path: Path, mode: str, stop: signal.Signals) -> None:
    flags = ["--port", "0", "--max-model-len", "256", "--engine-mode", mode]
    command = [*PROGRAM, "serve", str(smollm2_path), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            assert any("ready on" in line for line in child.stderr)
            child.send_signal(stop)
            _, rest = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, rest) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_script(smollm2_path: Path, mode: str, script: str) -> None:
    done = run([sys.executable, "-c", SCRIPTS[script], str(smollm2_path), mode])
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize("mode", MODES)
def test_a_chat_without_input(smollm2_path: Path, mode: str) -> None:
    done = run([*PROGRAM, "chat", str(smollm2_path), "--max-model-len", "256", "--engine-mode", mode])
    assert done.returncode == 0
    assert "nanobind" not in done.stderr


def test_a_benchmark(smollm2_path: Path) -> None:
    flags = ["--quick", "--no-probes", "--loads", "chat", "--threads", "1", "--parallelism", "tensor"]
    done = run([*PROGRAM, "bench", "concurrency", str(smollm2_path), *flags])
    assert done.returncode == 0
    assert "nanobind" not in done.stderr

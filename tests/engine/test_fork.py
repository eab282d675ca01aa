"""A program that loads a model and forks: the child is told, and ends; the parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plait.config.engine import EngineMode
from tests.fakes.tiny_gguf import write_tiny_llama

PROGRAM = """
import asyncio, os, sys
from plait import AsyncLLM, LLM, SamplingParams
from plait.errors import EngineDeadError

model, mode = sys.argv[1:]
settings = {"engine_mode": mode, "num_compute_threads": 2, "weight_cache": False, "max_model_len": 64}
greedy = SamplingParams(temperature=0.0, max_tokens=4)
llm = LLM(model, **settings)
streaming = AsyncLLM(model, **settings)
asked = {"prompt_token_ids": [1, 2, 3]}
before = llm.generate(asked, greedy)[0].outputs[0].token_ids


async def stream():
    async for output in streaming.generate("a", greedy):
        return output


if (child := os.fork()) == 0:
    for ask in (lambda: llm.generate(asked, greedy), lambda: asyncio.run(stream())):
        try:
            ask()
        except EngineDeadError as error:
            assert f"process {os.getppid()}" in str(error) and "fork" in str(error), error
        else:
            sys.exit(3)
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert llm.generate(asked, greedy)[0].outputs[0].token_ids == before
streaming.shutdown()
llm.close()
"""


@pytest.mark.parametrize("mode", ["threads", "coroutine", "native"])
def test_a_forked_child_is_told_and_ends(tmp_path: Path, mode: EngineMode) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, mode], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "pre-tokenizer" not in line] == []

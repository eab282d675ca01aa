"""A closed engine gives its memory back when its last user drops it, without help by the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait import LLM, SamplingParams, _native
from plait.config.engine import EngineMode
from plait.engine.core import EngineCore
from tests.fakes.tiny_gguf import write_tiny_llama

HEAVY = (
    EngineCore,
    _native.KvStorage,
    _native.ComputeThread,
    _native.InlineExecutor,
    _native.EngineLoop,
    _native.Weights,
)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def living() -> list[str]:
    # nanobind's objects are not tracked by the collector: whoever refers to them is.
    found = [o for o in gc.get_objects() if isinstance(o, HEAVY)]
    found += [r for o in gc.get_objects() for r in gc.get_referents(o) if isinstance(r, HEAVY)]
    return sorted({type(o).__name__ for o in found})


@pytest.mark.parametrize("mode", ["threads", "coroutine", "native"])
@pytest.mark.usefixtures("no_collector")
def test_nothing_of_a_closed_engine_stays(tmp_path: Path, mode: EngineMode) -> None:
    before = living()
    model = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")
    llm = LLM(model, engine_mode=mode, num_compute_threads=2, weight_cache=False, max_model_len=64)
    llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4))
    assert "EngineCore" in living()
    llm.close()
    del llm
    assert living() == before

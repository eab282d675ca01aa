"""The same tokens and logprobs, bit for bit, for each way in which the compute team shares a step.

A small random llama through whole engines, with one thread, as many as there are CPUs, and more than that.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from plait import _native
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.engine.loading import load_model
from plait.types import GenerateRequest, SamplingParams
from tests.fakes.answers import run
from tests.fakes.tiny_gguf import VOCAB, write_tiny_llama

PROMPTS = (1, 5, 16, 17, 33, 64, 100, 160)
MORE_THAN_CPUS = (os.cpu_count() or 1) + 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", "Q4_1")


def make_requests() -> list[GenerateRequest]:
    rng = np.random.default_rng(3)
    return [
        GenerateRequest(
            tuple(rng.integers(0, VOCAB, length).tolist()),
            SamplingParams(
                n=1 + i % 3,
                temperature=[0.0, 1.0][i % 2],
                seed=i,
                max_tokens=12,
                logprobs=2,
                prompt_logprobs=1 if i % 2 else None,
                ignore_eos=True,
            ),
        )
        for i, length in enumerate(PROMPTS)
    ]


def answers(model: Path, **settings: object) -> list[object]:
    config = EngineConfig.model_validate(
        {
            "max_batch_size": 32,
            "max_batch_tokens": 128,
            "max_model_len": 256,
            "kv_cache_bytes": 32 << 20,
            **settings,
        }
    )
    client = start_engine(model, config)
    try:
        return [answer.content() for choices in run(client, make_requests()) for answer in choices]
    finally:
        client.close()


@pytest.fixture(scope="module")
def expected(model: Path) -> list[object]:
    return answers(model, num_compute_threads=1)


@pytest.mark.parametrize("chunk", [24, 128])
@pytest.mark.parametrize("num_threads", [2, 3, MORE_THAN_CPUS])
@pytest.mark.parametrize("parallelism", ["tensor", "pipeline"])
def test_threads_and_parallelism_change_nothing(
    model: Path, expected: list[object], parallelism: str, num_threads: int, chunk: int
) -> None:
    found = answers(
        model, num_compute_threads=num_threads, compute_parallelism=parallelism, prefill_chunk_tokens=chunk
    )
    assert found == expected


class Steps:
    """Native parts without an engine: steps go straight to an executor."""

    def __init__(self, model: Path) -> None:
        self._model = load_model(model, num_threads=1)

    def compute_thread(self, num_threads: int, parallelism: str) -> _native.ComputeThread:
        bell = _native.Doorbell()
        return _native.ComputeThread(
            self._model.plan,
            self._model.weights,
            _native.KvStorage(self._model.kv_layout, 16),
            bell,
            self._model.isa,
            num_threads,
            [],
            128,
            4,
            parallelism,
        )

    def inline_executor(self, num_threads: int, parallelism: str) -> _native.InlineExecutor:
        return _native.InlineExecutor(
            self._model.plan,
            self._model.weights,
            _native.KvStorage(self._model.kv_layout, 16),
            self._model.isa,
            num_threads,
            [],
            128,
            4,
            parallelism,
        )


@pytest.fixture(scope="module")
def parts(model: Path) -> Steps:
    return Steps(model)


def prefill(num_tokens: int) -> _native.StepInput:
    step = _native.StepInput()
    step.step_id = 1
    step.token_ids = [token % VOCAB for token in range(num_tokens)]
    step.seq_slots = [0]
    step.query_starts = [0, num_tokens]
    step.context_lens = [num_tokens]
    step.block_tables = [list(range(-(-num_tokens // 16)))]
    step.slot_starts = [_native.SlotStart(0, step.token_ids, temperature=1.0, seed=5, num_logprobs=3)]
    step.sample_rows = [num_tokens - 1]
    step.sample_slots = [0]
    step.scores = [(row, 1, 2) for row in range(num_tokens)]
    return step


def decode(context: int) -> _native.StepInput:
    step = _native.StepInput()
    step.step_id = context
    step.token_ids = [-1]
    step.seq_slots = [0]
    step.query_starts = [0, 1]
    step.context_lens = [context]
    step.block_tables = [list(range(-(-context // 16)))]
    step.sample_rows = [0]
    step.sample_slots = [0]
    return step


def content(results: list[_native.StepResult]) -> list[object]:
    assert [result.error for result in results] == [""] * len(results)
    return [(r.step_id, r.slots, r.tokens, r.logprobs, r.ranks, r.tops, r.scores) for r in results]


@pytest.mark.parametrize("parallelism", ["tensor", "pipeline"])
def test_the_inline_executor_gives_what_the_compute_thread_gives(parts: Steps, parallelism: str) -> None:
    threaded = parts.compute_thread(2, parallelism)
    inline = parts.inline_executor(2, parallelism)
    for executor in (threaded, inline):
        assert executor.num_steps == 0
        assert executor.last_step_end_ns == 0
        for step in (prefill(100), decode(101), decode(102)):
            assert executor.submit(step)
    assert inline.num_steps == 0
    assert inline.pop_results() == []
    assert inline.run_next()
    found = inline.pop_results()
    assert len(found) == 1
    assert inline.submit(decode(103))
    assert threaded.submit(decode(103))
    while inline.run_next():
        pass
    found += inline.pop_results()
    threaded.stop()
    assert content(found) == content(threaded.pop_results())
    for executor in (threaded, inline):
        assert executor.num_steps == 4
        assert executor.busy_ns > 0
        assert executor.last_step_end_ns > 0


def test_the_inline_executor_stops_after_what_was_submitted(parts: Steps) -> None:
    inline = parts.inline_executor(1, "tensor")
    assert not inline.run_next()
    for context in range(101, 101 + 3):
        assert inline.submit(prefill(100) if context == 101 else decode(context - 1))
    bad = decode(200)
    bad.token_ids = [VOCAB]
    with pytest.raises(_native.NativeError, match="vocabulary"):
        inline.submit(bad)
    inline.stop()
    inline.stop()
    assert len(inline.pop_results()) == 3
    with pytest.raises(_native.NativeError, match="stopped"):
        inline.submit(decode(103))


def test_a_full_executor_refuses_and_leaves_the_step(parts: Steps) -> None:
    inline = parts.inline_executor(1, "tensor")
    for _ in range(4):
        assert inline.submit(prefill(20))
    step = prefill(20)
    assert not inline.submit(step)
    assert len(step.token_ids) == 20
    assert inline.run_next()
    assert not inline.submit(step), "until its result is taken"
    assert len(inline.pop_results()) == 1
    assert inline.submit(step)


def test_impossible_executors_are_refused(parts: Steps) -> None:
    for make in (parts.compute_thread, parts.inline_executor):
        with pytest.raises(_native.NativeError, match="needs 2 compute threads or more"):
            make(1, "pipeline")
        with pytest.raises(_native.NativeError, match="use tensor or pipeline"):
            make(2, "rows")
        with pytest.raises(_native.NativeError, match="must be positive"):
            make(0, "tensor")

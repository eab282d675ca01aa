"""Every weight format gives one answer: alone, in a batch, in chunks, with any threads and instruction set.

A small random llama of each format through whole engines; every comparison is ``==``.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from plait.config import EngineConfig
from plait.engine import start_engine
from plait.engine.kernels import supported_isas
from plait.types import GenerateRequest, SamplingParams
from tests.fakes.answers import run
from tests.fakes.tiny_gguf import TYPES, VOCAB, write_tiny_llama

PROMPTS = (1, 5, 7, 8, 15, 33, 40, 63)


def make_requests() -> list[GenerateRequest]:
    rng = np.random.default_rng(5)
    return [
        GenerateRequest(
            tuple(rng.integers(0, VOCAB, length).tolist()),
            SamplingParams(
                temperature=[0.0, 1.0][i % 2],
                seed=i,
                max_tokens=6,
                logprobs=3,
                prompt_logprobs=1,
                ignore_eos=True,
            ),
        )
        for i, length in enumerate(PROMPTS)
    ]


def answers(
    path: Path, requests: list[GenerateRequest], *, num_threads: int, chunk: int = 512, is_alone: bool = False
) -> tuple[str, list[tuple[object, ...]]]:
    """(instruction set, answers); alone: one request after the other."""
    config = EngineConfig(
        num_compute_threads=num_threads,
        prefill_chunk_tokens=chunk,
        max_batch_size=8,
        max_batch_tokens=64,
        max_model_len=128,
        kv_cache_bytes=8 << 20,
        enable_prefix_cache=False,
    )
    client = start_engine(path, config)
    try:
        batches = [[request] for request in requests] if is_alone else [requests]
        found = [answer[0] for batch in batches for answer in run(client, batch)]
        return client.info.isa, [answer.content() for answer in found]
    finally:
        client.close()


@pytest.mark.parametrize("type_name", TYPES)
def test_one_answer(type_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", type_name)
    requests = make_requests()
    _, alone = answers(path, requests, num_threads=1, is_alone=True)

    logprobs = [logprob for answer in alone for _, logprob, _, _ in answer[1]]  # type: ignore[attr-defined]
    assert len(logprobs) == 6 * len(PROMPTS)
    assert all(math.isfinite(value) and -20 < value <= 0 for value in logprobs)
    assert min(logprobs) < -0.1, "a model that is sure of everything compares nothing"
    assert len({tuple(answer[0]) for answer in alone}) > 4  # type: ignore[arg-type]

    assert answers(path, requests, num_threads=1)[1] == alone
    for num_threads in (1, 2):
        assert answers(path, requests, num_threads=num_threads, chunk=7)[1] == alone
    for isa in supported_isas():
        monkeypatch.setenv("PLAIT_FORCE_ISA", isa)
        assert answers(path, requests, num_threads=2) == (isa, alone)

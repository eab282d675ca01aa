"""Bit-identical tokens and logprobs: alone, in any batch, chunking, cache state, thread count and pool size.

Real models through whole engines. The promise is exact, so every comparison is ``==``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.types import GenerateRequest, SamplingParams
from tests.fakes.answers import run

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUALITY = Path(__file__).parents[1] / "golden" / "quality"


def make_requests(name: str) -> list[GenerateRequest]:
    """17 prompts of mixed length and sampling; some share a beginning, one is longer than a partition."""
    text = np.load(QUALITY / f"{name}.npz")["windows"].reshape(-1).tolist()
    lengths = [1, 5, 16, 17, 31, 32, 33, 48, 64, 80, 100, 129, 150, 200, 257, 300, 620]
    requests = []
    for i, length in enumerate(lengths):
        start = 0 if i % 3 == 0 else 37 * i
        sampling = SamplingParams(
            temperature=[0.0, 1.0, 0.7][i % 3],
            top_p=[1.0, 0.95, 1.0][i % 3],
            top_k=[0, 0, 40][i % 3],
            repetition_penalty=1.1 if i % 5 == 4 else 1.0,
            frequency_penalty=0.3 if i % 7 == 3 else 0.0,
            seed=1000 + i,
            max_tokens=8 + i % 5,
            logprobs=[0, 3, None][i % 3],
            ignore_eos=True,
        )
        requests.append(GenerateRequest(tuple(text[start : start + length]), sampling))
    return requests


@dataclass(frozen=True)
class Model:
    name: str
    path: Path
    kv_cache_dtype: str


def engine(model: Model, **settings: object) -> EngineClient:
    values: dict[str, object] = {
        "max_model_len": 1024,
        "num_compute_threads": 2,
        "enable_prefix_cache": False,
        "kv_cache_dtype": model.kv_cache_dtype,
    }
    return start_engine(model.path, EngineConfig.model_validate(values | settings))


@pytest.fixture(scope="module", params=["smollm2", "gemma3", "smollm2-q8"])
def case(request: pytest.FixtureRequest) -> tuple[Model, list[GenerateRequest], list[object]]:
    """A model, its requests, and each request's answer when alone, with one thread."""
    name, _, dtype = request.param.partition("-")
    model = Model(name, request.getfixturevalue(f"{name}_path"), dtype or "f16")
    requests = make_requests(name)
    client = engine(model, num_compute_threads=1)
    try:
        alone = [run(client, [r])[0][0].content() for r in requests]
    finally:
        client.close()
    return model, requests, alone


@pytest.mark.parametrize("batch", [2, 3, 8, 17])
def test_batches_of_different_neighbours(case, batch: int) -> None:
    model, requests, alone = case
    if model.kv_cache_dtype == "q8" and batch not in (3, 17):
        pytest.skip("batches differ alike, whatever the cache holds")
    client = engine(model)
    try:
        for first in range(0, len(requests), 5 if model.name == "smollm2" else 9):
            chosen = [(first + 3 * k) % len(requests) for k in range(batch)]
            answers = run(client, [requests[i] for i in chosen])
            assert [answer[0].content() for answer in answers] == [alone[i] for i in chosen]
    finally:
        client.close()


@pytest.mark.parametrize("chunk", [7, 64, 512])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_prefill_chunks_and_threads(case, chunk: int, num_threads: int) -> None:
    model, requests, alone = case
    if model.kv_cache_dtype == "q8" and (chunk, num_threads) not in ((7, 2), (512, 1)):
        pytest.skip("the two that differ most are enough")
    client = engine(model, prefill_chunk_tokens=chunk, num_compute_threads=num_threads)
    try:
        assert [answer[0].content() for answer in run(client, requests)] == alone
    finally:
        client.close()


@pytest.mark.parametrize("num_threads", [2, 3])
def test_pipeline(case, num_threads: int) -> None:
    """Steps that are cut in two between sequences and within a prompt."""
    model, requests, alone = case
    client = engine(
        model, compute_parallelism="pipeline", prefill_chunk_tokens=200, num_compute_threads=num_threads
    )
    try:
        assert [answer[0].content() for answer in run(client, requests)] == alone
    finally:
        client.close()


def test_fresh_and_from_cache(case) -> None:
    model, requests, alone = case
    client = engine(model, enable_prefix_cache=True)
    try:
        first = run(client, requests)
        second = run(client, requests)
        third = [run(client, [request])[0] for request in requests]
    finally:
        client.close()
    for answers in (first, second, third):
        assert [answer[0].content() for answer in answers] == alone
    for answers in (second, third):
        cached = [answer[0].num_cached_tokens for answer in answers]
        expected = [(len(r.prompt_token_ids) - 1) // 16 * 16 for r in requests]
        assert cached == expected


def test_preempted_and_resumed(case) -> None:
    """A pool far too small for all: requests are preempted and computed again, with the same result."""
    model, requests, alone = case
    if model.name != "smollm2":
        pytest.skip("what differs between models has been compared; this compares scheduling")
    probe = engine(model, kv_cache_bytes=1 << 30)
    per_token = (1 << 30) / (probe.info.num_kv_blocks * probe.info.block_tokens)
    probe.close()
    client = engine(model, kv_cache_bytes=int(per_token * 16 * 42), max_model_len=640)
    try:
        assert [answer[0].content() for answer in run(client, requests)] == alone
        # Long answers in parallel: their growth must run out of blocks.
        long = [
            GenerateRequest(
                r.prompt_token_ids[:40], SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
            )
            for r in requests[7:15]
        ]
        together = [answer[0].content() for answer in run(client, long)]
        assert client.metrics()["preemptions_total"] > 0
        assert together == [run(client, [request])[0][0].content() for request in long]
    finally:
        client.close()


def test_choices_share_the_prompt_and_differ(case) -> None:
    model, requests, _ = case
    sampling = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=20, logprobs=2, ignore_eos=True)
    request = GenerateRequest(requests[11].prompt_token_ids, sampling)
    client = engine(model)
    try:
        alone = [answer.content() for answer in run(client, [request])[0]]
        crowded = run(client, [*requests[:6], request])[-1]
    finally:
        client.close()
    assert [answer.content() for answer in crowded] == alone
    assert len({tuple(content[0]) for content in alone}) > 1


def test_prompt_logprobs_do_not_depend_on_chunks(case) -> None:
    model, requests, _ = case
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2, ignore_eos=True)
    request = GenerateRequest(requests[14].prompt_token_ids, sampling)
    results = []
    for chunk in (7, 512):
        client = engine(model, prefill_chunk_tokens=chunk)
        try:
            results.append(run(client, [request])[0][0])
        finally:
            client.close()
    assert results[0].content() == results[1].content()
    assert results[0].prompt_logprobs[0] is None
    assert len(results[0].prompt_logprobs) == len(request.prompt_token_ids)

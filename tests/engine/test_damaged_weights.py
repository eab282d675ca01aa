"""Weights that are not numbers: who meets them is told, everybody else is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.bench.concurrency.job import offered
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.errors import PlaitError
from plait.types import FinishReason, GenerateRequest, SamplingParams
from plait.weights.gguf import GgufFile
from tests.fakes.fake_engine import Collector
from tests.fakes.tiny_gguf import HIDDEN, write_tiny_llama

pytest.importorskip("plait._native")

BAD_TOKEN = 40  # not one of the warm-up
ROW_BYTES = 4 * HIDDEN


def damage(path: Path, begin: int, end: int) -> None:
    """Rows of the embedding table become NaN."""
    table = bytes(GgufFile(path).tensor_bytes("token_embd.weight"))
    content = path.read_bytes()
    at = content.index(table)
    bad = b"\xff" * ((end - begin) * ROW_BYTES)
    first = at + begin * ROW_BYTES
    path.write_bytes(content[:first] + bad + content[first + len(bad) :])


@pytest.fixture(params=offered("engine_mode", "threads"))
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineClient]:
    path = write_tiny_llama(tmp_path / "tiny.gguf", "F32")
    damage(path, BAD_TOKEN, BAD_TOKEN + 1)
    client = start_engine(path, EngineConfig(engine_mode=request.param, weight_cache=False))
    yield client
    client.close()


def ask(prompt: tuple[int, ...], n: int = 1, **sampling: object) -> GenerateRequest:
    params = {"max_tokens": 12, "ignore_eos": True, "seed": 3, "n": n, **sampling}
    return GenerateRequest(prompt, SamplingParams(**params))  # type: ignore[arg-type]


def test_an_answer_that_is_no_number_is_an_error(client: EngineClient) -> None:
    clean = ask((1, 2, 3, 4))
    alone = Collector(1)
    client.submit(clean, alone)
    alone.wait()
    assert alone.reasons == [FinishReason.LENGTH]
    bad = [
        (ask((1, BAD_TOKEN, 3), n=n, temperature=temperature, logprobs=logprobs), Collector(n))
        for n in (1, 3)
        for temperature in (0.0, 1.0)
        for logprobs in (None, 2)
    ]
    beside = Collector(1)
    client.submit(clean, beside)
    for request, collector in bad:
        client.submit(request, collector)
    for _, collector in bad:
        collector.wait()
        assert set(collector.reasons) == {FinishReason.ERROR}
        assert not any(collector.tokens)
        errors = {output.error for output in collector.outputs if output.finish_reason is not None}
        assert errors == {"the model computed no number for any token; its file may be damaged"}
    beside.wait()
    assert (beside.tokens, beside.reasons) == (alone.tokens, alone.reasons)
    assert client.health().is_ready
    metrics = client.metrics()
    assert metrics["failed_total"] == sum(request.sampling.n for request, _ in bad)
    assert metrics["requests_live"] == 0


def test_a_model_without_any_number_does_not_start(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", "F32")
    damage(path, 0, 64)
    with pytest.raises(PlaitError, match="computed no number for any token"):
        start_engine(path, EngineConfig(weight_cache=False))

"""Layers that look back only so far hit the prefix cache like others, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait.config import EngineConfig
from plait.engine import start_engine
from plait.types import GenerateRequest, SamplingParams
from plait.weights.hyperparameters import open_model
from tests.fakes.answers import run

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUALITY = Path(__file__).parents[1] / "golden" / "quality"
BLOCK_TOKENS = 16


@pytest.mark.parametrize("chunk", [64, 512])
def test_a_prefix_longer_than_the_window_is_shared(gemma3_path: Path, chunk: int) -> None:
    """What another request computed is taken; the first of its blocks lie before every window of the second."""
    window = open_model(gemma3_path).metadata["gemma3.attention.sliding_window"]
    assert isinstance(window, int)
    num_shared = window + 6 * BLOCK_TOKENS
    text = np.load(QUALITY / "gemma3.npz")["windows"].reshape(-1).tolist()
    sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=24, logprobs=2, ignore_eos=True)
    first = GenerateRequest(tuple(text[: num_shared + 30]), sampling)
    # Another tail, and one that ends right behind the shared blocks: a single token is computed.
    others = [
        GenerateRequest((*text[:num_shared], *text[2000:2040]), sampling),
        GenerateRequest((*text[:num_shared], text[3000]), sampling),
    ]
    answers = {}
    for is_cached in (False, True):
        config = EngineConfig(
            max_model_len=1024,
            prefill_chunk_tokens=chunk,
            enable_prefix_cache=is_cached,
            num_compute_threads=2,
        )
        client = start_engine(gemma3_path, config)
        try:
            run(client, [first])
            answers[is_cached] = [run(client, [request])[0][0] for request in others]
        finally:
            client.close()
    assert [answer.num_cached_tokens for answer in answers[False]] == [0, 0]
    assert [answer.num_cached_tokens for answer in answers[True]] == [num_shared, num_shared]
    assert [a.content() for a in answers[True]] == [a.content() for a in answers[False]]

"""Perplexity and KL divergence against float32 logits of the transformers library (tools/gen_reference.py).

The references hold the 64 most likely tokens of each position and the rest as one bucket. Merging outcomes only
lowers a divergence; measured over the whole vocabulary it was 17 % to 18 % higher than here, so the limits are the
promised ones (0.004 and 0.006) times 0.8.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait.engine.loading import load_model

HERE = Path(__file__).parent / "quality"
MAX_KL = {"smollm2": 0.8 * 0.004, "gemma3": 0.8 * 0.006}

# What an 8-bit KV cache may add to the divergence.
MAX_KL_OF_Q8 = {"smollm2": 0.002, "gemma3": 0.002}


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """Of each row, [rows, 1]; the exponentials in float32, their sum in float64."""
    highest = logits.max(1, keepdims=True)
    return highest + np.log(np.exp(logits - highest).sum(1, keepdims=True, dtype=np.float64))


def quality_of(path: Path, name: str, dtype: str, num_windows: int | None = None) -> tuple[float, float]:
    """(mean divergence from the reference, perplexity / the reference's) over the first windows."""
    model = load_model(path, num_threads=2, kv_cache_dtype=dtype)
    reference = np.load(HERE / f"{name}.npz")
    windows = reference["windows"][:num_windows]
    divergences: list[float] = []
    next_logprobs: list[np.ndarray] = []
    for i, window in enumerate(windows):
        raw = model.evaluate_logits(window.tolist(), num_threads=2)
        logits = np.frombuffer(raw, np.float32).reshape(len(window), -1)[:-1]
        total = log_sum_exp(logits)
        next_logprobs.append(logits[np.arange(len(window) - 1), window[1:]] - total[:, 0])
        top = reference["top_logprobs"][i].astype(np.float64)
        ours_top = np.take_along_axis(logits, reference["top_ids"][i], 1) - total
        rest = np.clip(1.0 - np.exp(top).sum(1), 1e-9, 1.0)
        ours_rest = np.clip(1.0 - np.exp(ours_top).sum(1), 1e-9, 1.0)
        divergence = (np.exp(top) * (top - ours_top)).sum(1) + rest * np.log(rest / ours_rest)
        divergences.append(float(divergence.mean()))
    expected = reference["next_logprobs"].reshape(len(reference["windows"]), -1)[:num_windows].mean()
    return float(np.mean(divergences)), float(np.exp(expected - np.mean(next_logprobs)))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_quality_against_float32(name: str, request: pytest.FixtureRequest) -> None:
    assert np.load(HERE / f"{name}.npz")["windows"].size >= 5_000
    divergence, perplexity = quality_of(request.getfixturevalue(f"{name}_path"), name, "f16")
    assert abs(perplexity - 1.0) < 0.005
    assert divergence < MAX_KL[name]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_an_8_bit_kv_cache_costs_little(name: str, request: pytest.FixtureRequest) -> None:
    """Measured against the reference, as f16 is. Two runs that differ in the last bit of one number diverge by more
    than an 8-bit cache costs, since each rounds activations to 8 bits in its own way."""
    path = request.getfixturevalue(f"{name}_path")
    f16, _ = quality_of(path, name, "f16", num_windows=4)
    q8, perplexity = quality_of(path, name, "q8", num_windows=4)
    assert q8 != f16
    assert q8 < f16 + MAX_KL_OF_Q8[name]
    assert abs(perplexity - 1.0) < 0.01


@pytest.mark.model
def test_an_8_bit_kv_cache_takes_about_half(smollm2_path: Path) -> None:
    layouts = [
        load_model(smollm2_path, num_threads=2, kv_cache_dtype=dtype).kv_layout for dtype in ("f16", "q8")
    ]
    assert [layout.block_bytes for layout in layouts] == [30 * 3 * 16 * 64 * 4, 30 * 3 * (16 * 64 * 2 + 128)]


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["f16", "q8"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_logits_do_not_depend_on_chunks_or_threads(
    name: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    model = load_model(request.getfixturevalue(f"{name}_path"), num_threads=2, kv_cache_dtype=dtype)
    # Longer than one attention partition (512) and than Gemma's window.
    ids = np.load(HERE / f"{name}.npz")["windows"][:2].reshape(-1).tolist()[:536]
    expected = model.evaluate_logits(ids, chunk_tokens=512, num_threads=1)
    assert (
        model.evaluate_logits(ids[:40], chunk_tokens=1, num_threads=2)
        == expected[: len(expected) // 536 * 40]
    )
    for chunk_tokens, num_threads in [(7, 2), (64, 1), (512, 2), (536, 3)]:
        assert model.evaluate_logits(ids, chunk_tokens=chunk_tokens, num_threads=num_threads) == expected

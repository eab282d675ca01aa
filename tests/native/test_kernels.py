"""The kernels from Python: every instruction set gives the scalar kernels' bits on random ragged shapes, and the
scalar kernels agree with float64 arithmetic of numpy.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plait import _native
from plait.engine.loading import load_model
from plait.errors import ModelFileError
from tests.fakes.tiny_gguf import TYPES, block_elements, random_weights, write_tiny_llama

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

WIDE_ISAS = _native.supported_isas()[1:]
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK, TILE, GROUP = 32, 8, 8
EPS = 2.0**-24

few = settings(max_examples=25, deadline=None)
many = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def floats(data: bytes) -> F32:
    return np.frombuffer(data, np.float32)


def activations(rng: np.random.Generator, *shape: int) -> F32:
    """Of mixed magnitudes: each row's size is its own."""
    sizes = 2.0 ** rng.integers(-6, 4, (*shape[:-1], 1))
    return (rng.normal(size=shape) * sizes).astype(np.float32)


def type_block(type_name: str) -> int:
    return max(BLOCK, block_elements(type_name))


class Product:
    """One matrix, some tokens, and the scalar kernel's product of all of them."""

    def __init__(self, type_name: str, groups: int, blocks: int, num_tokens: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.type_name = type_name
        self.rows = groups * GROUP
        self.cols = blocks * type_block(type_name)
        self.num_tokens = num_tokens
        self.weights = random_weights(type_name, self.rows * self.cols, rng)
        self.x = activations(rng, num_tokens, self.cols)
        self.scalar = self.multiply("scalar", (0, self.rows), (0, num_tokens))

    def multiply(self, isa: str, rows: tuple[int, int], tokens: tuple[int, int]) -> F32:
        out = _native.kernel_matmul(
            isa, self.type_name, self.weights, self.rows, self.x.tobytes(), self.cols, rows, tokens
        )
        return floats(out).reshape(tokens[1] - tokens[0], rows[1] - rows[0])

    def exact_weights(self) -> F64:
        values = floats(_native.kernel_dequantize(self.type_name, self.weights))
        return values.reshape(self.rows, self.cols).astype(np.float64)


def read_q8(data: bytes, num_tokens: int, cols: int) -> tuple[NDArray[np.int8], F32, F32, NDArray[np.int16]]:
    """(q [tokens][blocks][32], scale [tokens][blocks], sum, half sums [..][2]) of the layout of acts.h."""
    blocks = cols // BLOCK
    q = np.empty((num_tokens, blocks, BLOCK), np.int8)
    scale, total = np.empty((num_tokens, blocks), np.float32), np.empty((num_tokens, blocks), np.float32)
    halves = np.empty((num_tokens, blocks, 2), np.int16)
    at = 0
    for t0 in range(0, num_tokens, TILE):
        r = min(TILE, num_tokens - t0)
        for b in range(blocks):
            record = data[at : at + r * 44]
            q[t0 : t0 + r, b] = np.frombuffer(record, np.int8, r * BLOCK).reshape(r, BLOCK)
            scale[t0 : t0 + r, b] = np.frombuffer(record, np.float32, r, r * BLOCK)
            total[t0 : t0 + r, b] = np.frombuffer(record, np.float32, r, r * (BLOCK + 4))
            halves[t0 : t0 + r, b] = np.frombuffer(record, np.int16, 2 * r, r * (BLOCK + 8)).reshape(r, 2)
            at += r * 44
    assert at == len(data)
    return q, scale, total, halves


@pytest.mark.parametrize("type_name", TYPES)
@few
@given(
    groups=st.integers(1, 11),
    blocks=st.integers(1, 5),
    num_tokens=st.integers(1, 70),
    seed=seeds,
    data=st.data(),
)
def test_products_have_the_same_bits_in_every_isa(
    type_name: str, groups: int, blocks: int, num_tokens: int, seed: int, data: st.DataObject
) -> None:
    """The whole and a range that cuts groups of rows and a tile of tokens."""
    product = Product(type_name, groups, blocks, num_tokens, seed)
    first = data.draw(st.integers(0, groups - 1))
    rows = (first * GROUP, data.draw(st.integers(first + 1, groups)) * GROUP)
    t0 = data.draw(st.integers(0, (num_tokens - 1) // TILE)) * TILE
    tokens = (t0, data.draw(st.integers(t0 + 1, num_tokens)))
    expected = product.scalar[slice(*tokens), slice(*rows)].tobytes()
    assert product.multiply("scalar", rows, tokens).tobytes() == expected
    for isa in WIDE_ISAS:
        whole = product.multiply(isa, (0, product.rows), (0, num_tokens))
        assert whole.tobytes() == product.scalar.tobytes(), isa
        assert product.multiply(isa, rows, tokens).tobytes() == expected, isa


@pytest.mark.parametrize("type_name", TYPES)
@few
@given(groups=st.integers(1, 4), blocks=st.integers(1, 6), num_tokens=st.integers(1, 20), seed=seeds)
def test_products_agree_with_exact_ones(
    type_name: str, groups: int, blocks: int, num_tokens: int, seed: int
) -> None:
    """Quantised weights: against the exact product of the dequantised weights with the dequantised activations.

    All that rounds is float32: per block of 32 columns the two scales, their product, the sum and the minimum,
    each at most half an ulp of what a block can hold. A float weight rounds once per column.
    """
    product = Product(type_name, groups, blocks, num_tokens, seed)
    w = product.exact_weights()
    if type_name in FLOAT_TYPES:
        x = product.x.astype(np.float64)
        num_roundings = product.cols
    else:
        q8 = _native.kernel_quantize("scalar", product.x.tobytes(), num_tokens, product.cols)
        q, scale, _, _ = read_q8(q8, num_tokens, product.cols)
        x = (q.astype(np.float64) * scale[:, :, None]).reshape(num_tokens, product.cols)
        num_roundings = 8 + 2 * product.cols // BLOCK
    # What a block can hold: a code's part and the minimum's part may both be as large as the block's range.
    blocks_of = np.abs(w).reshape(product.rows, -1, BLOCK).max(axis=2)
    sums_of = np.abs(x).reshape(num_tokens, -1, BLOCK).sum(axis=2)
    bound = num_roundings * EPS * (sums_of @ blocks_of.T)
    error = np.abs(product.scalar - x @ w.T)
    assert (error <= bound).all(), float((error / np.maximum(bound, 1e-30)).max())


@few
@given(type_name=st.sampled_from(sorted(TYPES)), blocks=st.integers(1, 4), seed=seeds)
def test_quantised_activations_cost_little(type_name: str, blocks: int, seed: int) -> None:
    """Against the product with the activations as they were: half a step of each block times its weights."""
    product = Product(type_name, 2, blocks, 5, seed)
    w = np.abs(product.exact_weights()).reshape(product.rows, -1, BLOCK).sum(axis=2)
    steps = np.abs(product.x.astype(np.float64)).reshape(5, -1, BLOCK).max(axis=2) / 127
    error = np.abs(product.scalar - product.x.astype(np.float64) @ product.exact_weights().T)
    assert (error <= 0.51 * (steps @ w.T)).all()


@many
@given(num_tokens=st.integers(1, 20), blocks=st.integers(1, 9), seed=seeds, data=st.data())
def test_quantisation(num_tokens: int, blocks: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    cols = blocks * BLOCK
    x = activations(rng, num_tokens, cols)
    extremes = st.sampled_from([0.0, -0.0, 1e-31, 1e-29, -3e38, 127.0, 0.5, math.inf, -math.inf, math.nan])
    for value in data.draw(st.lists(extremes, max_size=6)):
        x[rng.integers(num_tokens), rng.integers(cols)] = value
    x[0, :BLOCK] = 0.0
    expected = _native.kernel_quantize("scalar", x.tobytes(), num_tokens, cols)
    for isa in WIDE_ISAS:
        assert _native.kernel_quantize(isa, x.tobytes(), num_tokens, cols) == expected, isa
    q, scale, total, halves = read_q8(expected, num_tokens, cols)
    x_blocks = x.reshape(num_tokens, blocks, BLOCK).astype(np.float64)
    is_finite = np.isfinite(x_blocks).all(axis=2)
    assert np.isnan(scale[~is_finite]).all()
    assert np.isnan(total[~is_finite]).all()
    assert not q[~is_finite].any()
    largest = np.abs(x_blocks[is_finite]).max(axis=1)
    assert (np.abs(scale[is_finite] - np.where(largest < 1e-30, 0, largest / 127)) <= largest * EPS).all()
    error = np.abs(q[is_finite] * scale[is_finite].astype(np.float64)[:, None] - x_blocks[is_finite])
    assert (error <= 0.5001 * np.maximum(largest / 127, 1e-30)[:, None]).all()
    assert (np.abs(q.astype(np.int32)) <= 127).all()
    assert (halves == q.reshape(num_tokens, blocks, 2, 16).sum(axis=3, dtype=np.int16)).all()
    with np.errstate(over="ignore"):  # as the kernel does
        sums = q.sum(axis=2, dtype=np.int32).astype(np.float32) * scale
    assert (total[is_finite] == sums[is_finite]).all()


@many
@given(units=st.integers(1, 60), eps=st.sampled_from([1e-6, 1e-5, 0.1]), seed=seeds)
def test_rms_norm_and_add(units: int, eps: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = activations(rng, 2, 16 * units)
    weight = rng.normal(1.0, 0.3, 16 * units).astype(np.float32)
    expected = _native.kernel_rms_norm("scalar", x.tobytes(), weight.tobytes(), eps)
    summed = _native.kernel_add("scalar", x.tobytes(), y.tobytes())
    for isa in WIDE_ISAS:
        assert _native.kernel_rms_norm(isa, x.tobytes(), weight.tobytes(), eps) == expected, isa
        assert _native.kernel_add(isa, x.tobytes(), y.tobytes()) == summed, isa
    assert summed == (x + y).tobytes()
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean() + eps) * weight
    np.testing.assert_allclose(floats(expected), exact, rtol=2e-6, atol=1e-30)


@many
@given(
    half=st.integers(1, 70),
    rest=st.integers(0, 20),
    style=st.sampled_from(["half", "interleaved"]),
    seed=seeds,
)
def test_rope(half: int, rest: int, style: str, seed: int) -> None:
    """Any even number of dimensions turns; what lies behind them stays."""
    rng = np.random.default_rng(seed)
    x = activations(rng, 2 * half + rest)
    angles = rng.uniform(-9, 9, half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected = _native.kernel_rope("scalar", x.tobytes(), cos.tobytes(), sin.tobytes(), style)
    for isa in WIDE_ISAS:
        assert _native.kernel_rope(isa, x.tobytes(), cos.tobytes(), sin.tobytes(), style) == expected, isa
    out = floats(expected)
    assert (out[2 * half :] == x[2 * half :]).all()
    pairs = slice(0, half) if style == "half" else slice(0, 2 * half, 2)
    others = slice(half, 2 * half) if style == "half" else slice(1, 2 * half, 2)
    a, b = x[pairs].astype(np.float64), x[others].astype(np.float64)
    tolerance = 4 * EPS * float(np.abs(x).max())
    np.testing.assert_allclose(out[pairs], a * cos - b * sin, rtol=0, atol=tolerance)
    np.testing.assert_allclose(out[others], a * sin + b * cos, rtol=0, atol=tolerance)


@many
@given(units=st.integers(1, 40), activation=st.sampled_from(["silu", "gelu_tanh"]), seed=seeds)
def test_gated_activations(units: int, activation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate, up = activations(rng, 2, 8 * units)
    gate[: min(4, units)] = [0.0, -200.0, 200.0, -0.0][: min(4, units)]
    expected = _native.kernel_gated_act("scalar", gate.tobytes(), up.tobytes(), activation)
    for isa in WIDE_ISAS:
        assert _native.kernel_gated_act(isa, gate.tobytes(), up.tobytes(), activation) == expected, isa
    g = gate.astype(np.float64)
    if activation == "silu":
        exact = g / (1 + np.exp(-g))
    else:
        exact = 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    # Where tanh comes close to -1, what is left is a difference of ones: absolute in the size of the gate.
    tolerance = 1e-6 * np.abs(exact * up) + 2e-7 * np.abs(g * up) + 1e-30
    assert (np.abs(floats(expected) - exact * up) <= tolerance).all()


def exact_attention(q: F32, k: F32, v: F32, window: int, scale: float, softcap: float) -> F64:
    """q [queries][kv heads][group][d], k and v [context][kv heads][d] as float16 holds them."""
    context, num_queries = len(k), len(q)
    scores = (
        np.einsum("ihgd,jhd->hgij", q.astype(np.float64), k.astype(np.float16).astype(np.float64)) * scale
    )
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    position = np.arange(context - num_queries, context)[:, None]
    key = np.arange(context)[None, :]
    is_seen = (key <= position) & ((key > position - window) if window else True)
    scores = np.where(is_seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hgij,jhd->ihgd", weights, v.astype(np.float16).astype(np.float64))


@many
@given(
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 128]),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    context=st.one_of(st.integers(1, 100), st.sampled_from([512, 513, 700, 1100])),
    num_queries=st.one_of(st.just(1), st.integers(2, 40)),
    window=st.sampled_from([0, 0, 1, 17, 300]),
    softcap=st.sampled_from([0.0, 5.0]),
    block_tokens=st.sampled_from([16, 32]),
    seed=seeds,
)
def test_attention_over_a_paged_cache(
    head_dim: int,
    heads: tuple[int, int],
    context: int,
    num_queries: int,
    window: int,
    softcap: float,
    block_tokens: int,
    seed: int,
) -> None:
    assume(num_queries <= context)
    num_kv_heads, group = heads
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(num_queries, num_kv_heads, group, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, context, num_kv_heads, head_dim)).astype(np.float32)
    layout = _native.KvLayout(2, num_kv_heads, head_dim, block_tokens)
    num_blocks = -(-context // block_tokens)
    table = rng.permutation(num_blocks + 3)[:num_blocks].tolist()
    scale = head_dim**-0.5

    def attend(isa: str, *, is_split: bool) -> bytes:
        arrays = (q.tobytes(), k.tobytes(), v.tobytes())
        return _native.kernel_attention(isa, layout, *arrays, table, group, window, scale, softcap, is_split)

    expected = attend("scalar", is_split=False)
    for isa in WIDE_ISAS:
        assert attend(isa, is_split=False) == expected, isa
    if num_queries == 1:
        for isa in ["scalar", *WIDE_ISAS]:
            assert attend(isa, is_split=True) == expected, f"{isa}, by partitions"
    exact = exact_attention(q, k, v, window, scale, softcap)
    # Sums of at most 1100 weights in float32, of values of a few units.
    np.testing.assert_allclose(floats(expected).reshape(q.shape), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("type_name", [name for name in TYPES if name not in FLOAT_TYPES])
def test_columns_that_cut_a_block_are_an_error_that_names_the_tensor(type_name: str, tmp_path: Path) -> None:
    ffn = block_elements(type_name) + block_elements(type_name) // 2
    path = write_tiny_llama(tmp_path / "tiny.gguf", type_name, ffn=ffn)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf.*blk\.0\.ffn_down\.weight"):
        load_model(path, num_threads=1)


@pytest.mark.parametrize("type_name", FLOAT_TYPES)
def test_columns_that_are_no_block_of_activations_are_an_error_too(type_name: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", type_name, ffn=72)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf.*blk\.0\.ffn_down\.weight.*32"):
        load_model(path, num_threads=1)


def test_rows_that_are_no_group_are_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0", vocab=63)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf.*token_embd\.weight.*8"):
        load_model(path, num_threads=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"isa": "avx9"}, "avx9"),
        ({"type": "Q9"}, "unknown tensor type Q9"),
        ({"weights": b"123"}, "weights must be"),
        ({"rows": 0}, "rows must be positive"),
        ({"rows": 12}, "rows"),
        ({"cols": 48}, "columns"),
        ({"x": b"12345"}, "whole number of float32"),
        ({"row_range": (0, 12)}, "groups of 8"),
        ({"row_range": (8, 24)}, "groups of 8"),
        ({"token_range": (4, 5)}, "tile of 8"),
        ({"token_range": (0, 4)}, "tile of 8"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "isa": "scalar",
        "type": "Q8_0",
        "weights": bytes(16 * 34),
        "rows": 16,
        "x": bytes(3 * 32 * 4),
        "cols": 32,
        "row_range": (0, 16),
        "token_range": (0, 3),
    }
    assert _native.kernel_matmul(**good) == bytes(3 * 16 * 4)  # type: ignore[arg-type]
    with pytest.raises(_native.NativeError, match=message):
        _native.kernel_matmul(**(good | change))  # type: ignore[arg-type]

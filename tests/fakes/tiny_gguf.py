"""A small llama of any weight type, with random but sane blocks, as a GGUF file that loads and runs."""

from __future__ import annotations

from pathlib import Path

import gguf_builder as build
import numpy as np

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
}
HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, VOCAB = 256, 256, 8, 4, 2, 64

# (elements, bytes, offset of the f16 scale, its size, offset of the f16 minimum, its size); weights become about
# as large as 0.06, which keeps the values of a row of 256 as they are.
_BLOCKS = {
    "Q4_0": (32, 18, 0, 0.012, None, 0.0),
    "Q4_1": (32, 20, 0, 0.012, 2, -0.09),
    "Q5_0": (32, 22, 0, 0.006, None, 0.0),
    "Q5_1": (32, 24, 0, 0.006, 2, -0.09),
    "Q8_0": (32, 34, 0, 0.0008, None, 0.0),
    "Q2_K": (256, 84, 80, 0.006, 82, 0.009),
    "Q3_K": (256, 110, 108, 0.002, None, 0.0),
    "Q4_K": (256, 144, 0, 0.0004, 2, 0.003),
    "Q5_K": (256, 176, 0, 0.0002, 2, 0.003),
    "Q6_K": (256, 210, 208, 0.00006, None, 0.0),
    "IQ4_NL": (32, 18, 0, 0.0008, None, 0.0),
    "IQ4_XS": (256, 136, 0, 0.00006, None, 0.0),
}


def block_elements(type_name: str) -> int:
    return _BLOCKS[type_name][0] if type_name in _BLOCKS else 1


def random_weights(type_name: str, num_elements: int, rng: np.random.Generator) -> bytes:
    """File bytes of so many weights: every code occurs, scales are moderate."""
    if type_name not in _BLOCKS:
        values = rng.normal(0.0, 0.06, num_elements).astype("<f4")
        if type_name == "F32":
            return values.tobytes()
        if type_name == "F16":
            return values.astype("<f2").tobytes()
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    elements, num_bytes, scale_at, scale, min_at, minimum = _BLOCKS[type_name]
    assert num_elements % elements == 0
    num_blocks = num_elements // elements
    blocks = rng.integers(0, 256, (num_blocks, num_bytes), dtype=np.uint8)
    for at, size in ((scale_at, scale), (min_at, minimum)):
        if at is not None:
            halves = (size * rng.uniform(0.5, 1.5, num_blocks)).astype("<f2")
            blocks[:, at : at + 2] = halves.view(np.uint8).reshape(num_blocks, 2)
    return blocks.tobytes()


def tensor_shapes(ffn: int = FFN, vocab: int = VOCAB) -> dict[str, list[int]]:
    """In GGUF's order: columns first."""
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": [HIDDEN, vocab], "output_norm.weight": [HIDDEN]}
    for block in range(LAYERS):
        for name, shape in (
            ("attn_norm", [HIDDEN]),
            ("attn_q", [HIDDEN, HIDDEN]),
            ("attn_k", [HIDDEN, KV_HEADS * head]),
            ("attn_v", [HIDDEN, KV_HEADS * head]),
            ("attn_output", [HIDDEN, HIDDEN]),
            ("ffn_norm", [HIDDEN]),
            ("ffn_gate", [HIDDEN, ffn]),
            ("ffn_up", [HIDDEN, ffn]),
            ("ffn_down", [ffn, HIDDEN]),
        ):
            shapes[f"blk.{block}.{name}.weight"] = shape
    return shapes


def write_tiny_llama(
    path: Path, type_name: str, seed: int = 1, *, ffn: int = FFN, vocab: int = VOCAB
) -> Path:
    """All matrices, the embedding table too, are of ``type_name``; norms are F32."""
    rng = np.random.default_rng(seed)
    tokens = [f"t{i}" for i in range(vocab - 2)] + ["<s>", "</s>"]
    entries = [
        build.scalar("general.architecture", build.STRING, "llama"),
        build.scalar("llama.block_count", build.U32, LAYERS),
        build.scalar("llama.context_length", build.U32, 512),
        build.scalar("llama.embedding_length", build.U32, HIDDEN),
        build.scalar("llama.feed_forward_length", build.U32, ffn),
        build.scalar("llama.attention.head_count", build.U32, HEADS),
        build.scalar("llama.attention.head_count_kv", build.U32, KV_HEADS),
        build.scalar("llama.attention.layer_norm_rms_epsilon", build.F32, 1e-5),
        build.scalar("llama.rope.dimension_count", build.U32, HIDDEN // HEADS),
        build.scalar("llama.rope.freq_base", build.F32, 10000.0),
        build.scalar("llama.vocab_size", build.U32, vocab),
        build.scalar("tokenizer.ggml.model", build.STRING, "gpt2"),
        build.entry("tokenizer.ggml.tokens", build.ARRAY, build.array(build.STRING, tokens)),
        build.entry(
            "tokenizer.ggml.token_type", build.ARRAY, build.array(build.I32, [1] * (vocab - 2) + [3, 3])
        ),
        build.entry("tokenizer.ggml.merges", build.ARRAY, build.array(build.STRING, ["t 1"])),
        build.scalar("tokenizer.ggml.bos_token_id", build.U32, vocab - 2),
        build.scalar("tokenizer.ggml.eos_token_id", build.U32, vocab - 1),
    ]
    infos, data = [], bytearray()
    for name, shape in tensor_shapes(ffn, vocab).items():
        is_norm = len(shape) == 1
        infos.append(build.tensor(name, shape, 0 if is_norm else TYPES[type_name], len(data)))
        if is_norm:
            data += (1 + 0.3 * rng.uniform(-1, 1, shape[0])).astype("<f4").tobytes()
        else:
            data += random_weights(type_name, shape[0] * shape[1], rng)
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(build.container(entries, infos, data=bytes(data)))
    return path

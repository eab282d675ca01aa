"""Hyper-parameters that make sense pass; the senseless ones are in tests/native/test_gguf_hostile.py."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from plait.errors import ModelFileError
from plait.weights.hyperparameters import check_hyperparameters


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]


def llama(num_blocks: int = 1) -> tuple[dict[str, object], dict[str, Shape]]:
    """A model with heads of 8, 4 for queries and 2 for keys, and 5 tokens."""
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": num_blocks,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e"],
    }
    tensors = {"token_embd.weight": Shape((32, 5)), "output_norm.weight": Shape((32,))}
    for block in range(num_blocks):
        for name, shape in {
            "attn_norm": (32,),
            "attn_q": (32, 32),
            "attn_k": (32, 16),
            "attn_v": (32, 16),
            "attn_output": (32, 32),
            "ffn_norm": (32,),
            "ffn_gate": (32, 64),
            "ffn_up": (32, 64),
            "ffn_down": (64, 32),
        }.items():
            tensors[f"blk.{block}.{name}.weight"] = Shape(shape)
    return metadata, tensors


def test_plain_model_passes() -> None:
    check_hyperparameters(*llama(3))


def test_key_value_heads_default_to_heads() -> None:
    metadata, tensors = llama()
    del metadata["llama.attention.head_count_kv"]
    with pytest.raises(ModelFileError, match=r"attn_k\.weight' has the shape \[32, 16\]"):
        check_hyperparameters(metadata, tensors)
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_v.weight"] = Shape((32, 32))
    check_hyperparameters(metadata, tensors)


def test_heads_wider_than_the_embedding() -> None:
    metadata, tensors = llama()
    metadata |= {"llama.attention.key_length": 16, "llama.attention.value_length": 12}
    tensors |= {
        "blk.0.attn_q.weight": Shape((32, 64)),
        "blk.0.attn_k.weight": Shape((32, 32)),
        "blk.0.attn_v.weight": Shape((32, 24)),
        "blk.0.attn_output.weight": Shape((48, 32)),
        "blk.0.attn_q_norm.weight": Shape((16,)),
    }
    check_hyperparameters(metadata, tensors)
    tensors["blk.0.attn_q_norm.weight"] = Shape((8,))
    with pytest.raises(ModelFileError, match="attn_q_norm"):
        check_hyperparameters(metadata, tensors)


def test_sizes_for_each_block() -> None:
    metadata, tensors = llama(2)
    metadata |= {"llama.feed_forward_length": [64, 96], "llama.attention.head_count_kv": [2, 1]}
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_k"):
        check_hyperparameters(metadata, tensors)
    tensors |= {
        "blk.1.attn_k.weight": Shape((32, 8)),
        "blk.1.attn_v.weight": Shape((32, 8)),
        "blk.1.ffn_gate.weight": Shape((32, 96)),
        "blk.1.ffn_up.weight": Shape((32, 96)),
        "blk.1.ffn_down.weight": Shape((96, 32)),
    }
    check_hyperparameters(metadata, tensors)


def test_padded_shape_is_the_same_shape() -> None:
    metadata, tensors = llama()
    tensors["output_norm.weight"] = Shape((32, 1, 1))
    check_hyperparameters(metadata, tensors)
    tensors["output_norm.weight"] = Shape((32, 2))
    with pytest.raises(ModelFileError, match="output_norm"):
        check_hyperparameters(metadata, tensors)


@pytest.mark.parametrize("missing", ["attn_q", "attn_norm", "ffn_down"])
def test_missing_tensor_of_a_block(missing: str) -> None:
    metadata, tensors = llama(2)
    del tensors[f"blk.1.{missing}.weight"]
    with pytest.raises(ModelFileError, match=rf"tensor 'blk\.1\.{missing}\.weight' is missing"):
        check_hyperparameters(metadata, tensors)


def test_unknown_architecture_may_name_its_tensors_differently() -> None:
    metadata, tensors = llama()
    metadata = {key.replace("llama.", "other."): value for key, value in metadata.items()}
    metadata["general.architecture"] = "other"
    del tensors["blk.0.attn_q.weight"]
    check_hyperparameters(metadata, tensors)


def test_separate_output_matrix() -> None:
    metadata, tensors = llama()
    tensors["output.weight"] = Shape((32, 5))
    check_hyperparameters(metadata, tensors)
    tensors["output.weight"] = Shape((32, 4))
    with pytest.raises(ModelFileError, match=r"output\.weight"):
        check_hyperparameters(metadata, tensors)


def test_message_stays_short() -> None:
    metadata, tensors = llama()
    metadata["llama.block_count"] = "x" * 100_000
    with pytest.raises(ModelFileError) as caught:
        check_hyperparameters(metadata, tensors)
    assert len(str(caught.value)) < 200

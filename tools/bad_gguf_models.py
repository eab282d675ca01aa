"""Well-formed GGUF files whose hyper-parameters make no sense; part of gen_bad_gguf.py. Standard library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gguf_builder import ARRAY, BOOL, F32, I32, STRING, U8, U16, U32, BadFile, TinyModel, array


def model_cases() -> Iterator[BadFile]:
    def spoilt(name: str, expected: str, change: Callable[[TinyModel], object]) -> BadFile:
        model = TinyModel()
        change(model)
        return BadFile("model-" + name, model.build(), expected, is_container=False)

    def with_value(name: str, key: str, kind: int, value: object, expected: str) -> BadFile:
        return spoilt(name, expected, lambda model: model.metadata.update({key: (kind, value)}))

    def without(name: str, key: str) -> BadFile:
        return spoilt(name, f"{key}", lambda model: model.metadata.pop(key))

    yield with_value(
        "zero-heads", "llama.attention.head_count", U32, 0, "head_count' must be an integer from 1"
    )
    yield with_value(
        "zero-kv-heads", "llama.attention.head_count_kv", U32, 0, "head_count_kv' must be an integer"
    )
    yield with_value(
        "zero-embedding", "llama.embedding_length", U32, 0, "embedding_length' must be an integer from 1"
    )
    yield with_value("negative-embedding", "llama.embedding_length", I32, -32, "not -32")
    yield with_value("zero-blocks", "llama.block_count", U32, 0, "block_count' must be an integer from 1")
    yield with_value("huge-blocks", "llama.block_count", U32, 0xFFFFFFFF, "not 4294967295")
    yield with_value("more-blocks", "llama.block_count", U32, 3, "tensor 'blk.2.attn_norm.weight' is missing")
    yield with_value("fewer-blocks", "llama.block_count", U32, 1, "but there is a block 1")
    yield with_value(
        "zero-context", "llama.context_length", U32, 0, "context_length' must be an integer from 1"
    )
    yield with_value(
        "heads-no-divisor", "llama.attention.head_count", U32, 6, "'llama.embedding_length' 32 is not a"
    )
    yield with_value("kv-heads-no-divisor", "llama.attention.head_count_kv", U32, 3, "4 is not a multiple of")
    yield with_value("heads-string", "llama.attention.head_count", STRING, "4", "must be an integer from 1")
    yield with_value("heads-bool", "llama.attention.head_count", BOOL, 1, "must be an integer from 1")
    heads = array(U32, [4])
    yield with_value(
        "heads-per-block", "llama.attention.head_count", ARRAY, heads, "has 1 entries for 2 blocks"
    )
    yield with_value("zero-feed-forward", "llama.feed_forward_length", U32, 0, "feed_forward_length' must be")
    yield with_value(
        "nan-epsilon", "llama.attention.layer_norm_rms_epsilon", F32, float("nan"), "must be a number"
    )
    yield with_value(
        "zero-epsilon", "llama.attention.layer_norm_rms_epsilon", F32, 0.0, "must be a number above 0"
    )
    yield with_value("infinite-rope", "llama.rope.freq_base", F32, float("inf"), "must be a number above 0")
    yield with_value("odd-rope", "llama.rope.dimension_count", U32, 7, "must be even and at most")
    yield with_value("wide-rope", "llama.rope.dimension_count", U32, 64, "must be even and at most")
    yield with_value("vocab-size", "llama.vocab_size", U32, 7, "'llama.vocab_size' is 7 but")
    yield with_value(
        "eos-outside", "tokenizer.ggml.eos_token_id", U32, 6, "'tokenizer.ggml.eos_token_id' must be"
    )
    yield with_value(
        "token-types-short", "tokenizer.ggml.token_type", ARRAY, array(I32, [1]), "has 1 entries but"
    )
    yield with_value(
        "scores-long", "tokenizer.ggml.scores", ARRAY, array(F32, [0.0] * 9), "has 9 entries but"
    )
    yield with_value(
        "tokens-numbers", "tokenizer.ggml.tokens", ARRAY, array(U8, [1, 2]), "must be an array of strings"
    )
    yield with_value(
        "tokens-empty", "tokenizer.ggml.tokens", ARRAY, array(STRING, []), "must be an array of strings"
    )
    yield with_value(
        "merges-numbers", "tokenizer.ggml.merges", ARRAY, array(U8, [1]), "merges' must be an array of"
    )
    yield with_value(
        "architecture-number", "general.architecture", U32, 7, "'general.architecture' must be a name"
    )
    yield with_value("split", "split.count", U16, 3, "is one of 3 parts of a split model")
    for key in (
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.context_length",
    ):
        yield without("without-" + key.split(".")[1], key)
    for key in ("llama.attention.head_count", "llama.feed_forward_length", "tokenizer.ggml.tokens"):
        yield without("without-" + key.split(".")[-1], key)
    yield without("without-epsilon", "llama.attention.layer_norm_rms_epsilon")
    yield spoilt(
        "embedding-rows",
        "tensor 'token_embd.weight' has the shape [32, 5]; the metadata needs [32, 6]",
        lambda model: model.shapes.update({"token_embd.weight": [32, 5]}),
    )
    yield spoilt(
        "query-transposed",
        "tensor 'blk.1.ffn_up.weight' has the shape [64, 32]",
        lambda model: model.shapes.update({"blk.1.ffn_up.weight": [64, 32]}),
    )
    yield spoilt(
        "no-embedding", "'token_embd.weight' is missing", lambda model: model.shapes.pop("token_embd.weight")
    )
    yield spoilt("no-tensors", "is missing", lambda model: model.shapes.clear())

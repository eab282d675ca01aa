"""Whether the numbers of a model file make sense together. Knows: GGUF's key and tensor names.

Must not know: how an architecture is computed, which ones this build runs (``plait.models`` says so). A file
that passes describes a model whose sizes agree with its tensors, so building a plan from it cannot run wild.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from plait.errors import ModelFileError
from plait.weights.gguf import GgufFile

MAX_BLOCKS = 1024
MAX_EMBEDDING_LENGTH = 1 << 20
MAX_FEED_FORWARD_LENGTH = 1 << 22
MAX_HEADS = 1 << 14
MAX_HEAD_LENGTH = 1 << 14
MAX_CONTEXT_LENGTH = 1 << 31
MAX_VOCAB_SIZE = 1 << 22

DENSE_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "gemma3"})
"""Of these every block must hold the tensors of a plain transformer block (unless they have experts)."""


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


def open_model(path: str | os.PathLike[str]) -> GgufFile:
    """Opens a file that is to be run: container and hyper-parameters are checked.

    Raises:
        ModelFileError: see ``GgufFile`` and ``check_hyperparameters``; the message starts with the path.
    """
    file = GgufFile(path)
    try:
        check_hyperparameters(file.metadata, file.tensors)
    except ModelFileError as error:
        raise ModelFileError(f"{file.path}: {error}") from None
    return file


def check_hyperparameters(metadata: Mapping[str, object], tensors: Mapping[str, _Shaped]) -> None:
    """Checks the keys that describe the model, the tokenizer's arrays and the shapes of the tensors.

    Raises:
        ModelFileError: a required key or tensor is missing, or a value is out of range or disagrees with
            another; the message names it.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(f"metadata key 'general.architecture' must be a name, not {_show(architecture)}")
    keys = _Keys(metadata, architecture)
    parts = keys.optional_integer("split.count", 0, MAX_BLOCKS, prefix="")
    if parts is not None and parts > 1:
        raise ModelFileError(
            f"the file is one of {parts} parts of a split model; join them into one file first"
        )
    sizes = _Sizes(keys)
    vocab_size = _check_vocabulary(keys)
    _check_global_tensors(tensors, sizes, vocab_size)
    has_experts = bool(keys.optional_integer("expert_count", 0, MAX_HEADS))
    requires_all = architecture in DENSE_ARCHITECTURES and not has_experts
    for block in range(sizes.num_blocks):
        _check_block(tensors, sizes, block, requires_all=requires_all)
    if f"blk.{sizes.num_blocks}.attn_norm.weight" in tensors:
        raise ModelFileError(
            f"'{architecture}.block_count' is {sizes.num_blocks} but there is a block {sizes.num_blocks}"
        )


def _show(value: object) -> str:
    """A value for a message: short whatever the file holds."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Keys:
    """Typed, range-checked reads; names are ``<architecture>.<name>`` unless ``prefix`` says otherwise."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        self.metadata = metadata
        self.prefix = architecture + "."

    def optional_integer(self, name: str, low: int, high: int, *, prefix: str | None = None) -> int | None:
        key = (self.prefix if prefix is None else prefix) + name
        value = self.metadata.get(key)
        return None if value is None else _integer(key, value, low, high)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.optional_integer(name, low, high)
        if value is None:
            raise ModelFileError(f"metadata key '{self.prefix}{name}' is missing")
        return value

    def per_block(self, name: str, num_blocks: int, low: int, high: int) -> list[int] | None:
        """A number for all blocks or an array of one for each."""
        key = self.prefix + name
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            return [_integer(key, value, low, high)] * num_blocks
        if len(value) != num_blocks:
            raise ModelFileError(f"metadata key '{key}' has {len(value)} entries for {num_blocks} blocks")
        return [_integer(key, entry, low, high) for entry in value]

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        """A finite float in ``low < value <= high``."""
        key = self.prefix + name
        value = self.metadata.get(key)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low < value <= high:  # type: ignore[arg-type, operator]
            raise ModelFileError(
                f"metadata key '{key}' must be a number above {low:g}, up to {high:g}, not {_show(value)}"
            )
        return float(value)  # type: ignore[arg-type]


def _integer(key: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ModelFileError(
            f"metadata key '{key}' must be an integer from {low} to {high}, not {_show(value)}"
        )
    return value


class _Sizes:
    """The sizes of the model, each in range and in agreement with the others."""

    def __init__(self, keys: _Keys) -> None:
        prefix = keys.prefix
        self.num_blocks = keys.integer("block_count", 1, MAX_BLOCKS)
        self.embedding = keys.integer("embedding_length", 1, MAX_EMBEDDING_LENGTH)
        keys.integer("context_length", 1, MAX_CONTEXT_LENGTH)
        heads = keys.per_block("attention.head_count", self.num_blocks, 1, MAX_HEADS)
        if heads is None:
            raise ModelFileError(f"metadata key '{prefix}attention.head_count' is missing")
        self.heads = heads
        self.kv_heads = keys.per_block("attention.head_count_kv", self.num_blocks, 1, MAX_HEADS) or heads
        for num_heads, num_kv_heads in zip(heads, self.kv_heads, strict=True):
            if num_heads % num_kv_heads != 0:
                raise ModelFileError(
                    f"'{prefix}attention.head_count' {num_heads} is not a multiple of "
                    f"'{prefix}attention.head_count_kv' {num_kv_heads}"
                )
        self.key_length = self._key_length(keys)
        self.value_length = (
            keys.optional_integer("attention.value_length", 1, MAX_HEAD_LENGTH) or self.key_length
        )
        self.feed_forward = keys.per_block("feed_forward_length", self.num_blocks, 1, MAX_FEED_FORWARD_LENGTH)
        if self.feed_forward is None:
            raise ModelFileError(f"metadata key '{prefix}feed_forward_length' is missing")
        self._check_scalars(keys)

    def _key_length(self, keys: _Keys) -> int:
        key_length = keys.optional_integer("attention.key_length", 1, MAX_HEAD_LENGTH)
        if key_length is None:
            if self.embedding % self.heads[0] != 0:
                raise ModelFileError(
                    f"'{keys.prefix}embedding_length' {self.embedding} is not a multiple of "
                    f"'{keys.prefix}attention.head_count' {self.heads[0]}"
                )
            key_length = self.embedding // self.heads[0]
        rotated = keys.optional_integer("rope.dimension_count", 1, MAX_HEAD_LENGTH)
        if rotated is not None and (rotated > key_length or rotated % 2 != 0):
            raise ModelFileError(
                f"'{keys.prefix}rope.dimension_count' {rotated} must be even and at most "
                f"the head's length {key_length}"
            )
        return key_length

    def _check_scalars(self, keys: _Keys) -> None:
        rms_epsilon = keys.optional_number("attention.layer_norm_rms_epsilon", 0.0, 1.0)
        epsilon = keys.optional_number("attention.layer_norm_epsilon", 0.0, 1.0)
        if rms_epsilon is None and epsilon is None:
            raise ModelFileError(f"metadata key '{keys.prefix}attention.layer_norm_rms_epsilon' is missing")
        for name in ("rope.freq_base", "rope.freq_base_swa", "rope.local.freq_base"):
            keys.optional_number(name, 0.0, 1e12)
        for name in ("rope.scaling.factor", "rope.scale_linear", "attention.scale"):
            keys.optional_number(name, 0.0, 1e6)
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            keys.optional_number(name, 0.0, 1e6)
        keys.optional_integer("attention.sliding_window", 0, MAX_CONTEXT_LENGTH)


def _check_vocabulary(keys: _Keys) -> int:
    """The tokenizer's arrays agree in length and its ids are tokens. Returns the number of tokens."""
    metadata = keys.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelFileError(
            f"metadata key 'tokenizer.ggml.tokens' must be an array of strings, not {_show(tokens)}"
        )
    if len(tokens) > MAX_VOCAB_SIZE:
        raise ModelFileError(
            f"'tokenizer.ggml.tokens' has {len(tokens)} tokens; plait takes {MAX_VOCAB_SIZE}"
        )
    if not isinstance(metadata.get("tokenizer.ggml.model"), str):
        raise ModelFileError("metadata key 'tokenizer.ggml.model' must be a name")
    vocab_size = keys.optional_integer("vocab_size", 1, MAX_VOCAB_SIZE)
    if vocab_size is not None and vocab_size != len(tokens):
        raise ModelFileError(
            f"'{keys.prefix}vocab_size' is {vocab_size} but 'tokenizer.ggml.tokens' has {len(tokens)} tokens"
        )
    for name, kind, wanted in (
        ("scores", float, "floats"),
        ("token_type", int, "integers"),
    ):
        _check_per_token(metadata, f"tokenizer.ggml.{name}", len(tokens), kind, wanted)
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is not None and not (isinstance(merges, list) and (not merges or isinstance(merges[0], str))):
        raise ModelFileError(
            f"metadata key 'tokenizer.ggml.merges' must be an array of strings, not {_show(merges)}"
        )
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            _integer(key, metadata[key], 0, len(tokens) - 1)
    return len(tokens)


def _check_per_token(
    metadata: Mapping[str, object], key: str, num_tokens: int, kind: type, wanted: str
) -> None:
    values = metadata.get(key)
    if values is None:
        return
    if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
        raise ModelFileError(f"metadata key '{key}' must be an array of {wanted}, not {_show(values)}")
    if len(values) != num_tokens:
        raise ModelFileError(
            f"metadata key '{key}' has {len(values)} entries but 'tokenizer.ggml.tokens' has {num_tokens}"
        )


def _check_shape(
    tensors: Mapping[str, _Shaped], name: str, expected: Sequence[int], *, is_required: bool
) -> None:
    tensor = tensors.get(name)
    if tensor is None:
        if is_required:
            raise ModelFileError(f"tensor '{name}' is missing")
        return
    # A trailing 1 says nothing: some writers pad the shape.
    shape = list(tensor.shape)
    while len(shape) > len(expected) and shape[-1] == 1:
        shape.pop()
    if shape != list(expected):
        raise ModelFileError(
            f"tensor '{name}' has the shape {list(tensor.shape)}; the metadata needs {list(expected)}"
        )


def _check_global_tensors(tensors: Mapping[str, _Shaped], sizes: _Sizes, vocab_size: int) -> None:
    _check_shape(tensors, "token_embd.weight", (sizes.embedding, vocab_size), is_required=True)
    _check_shape(tensors, "output_norm.weight", (sizes.embedding,), is_required=True)
    _check_shape(tensors, "output.weight", (sizes.embedding, vocab_size), is_required=False)


def _check_block(tensors: Mapping[str, _Shaped], sizes: _Sizes, block: int, *, requires_all: bool) -> None:
    prefix = f"blk.{block}."
    embedding = sizes.embedding
    queries = sizes.heads[block] * sizes.key_length
    keys = sizes.kv_heads[block] * sizes.key_length
    values = sizes.kv_heads[block] * sizes.value_length
    mixed = sizes.heads[block] * sizes.value_length
    assert sizes.feed_forward is not None
    hidden = sizes.feed_forward[block]
    required: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (embedding,),
        "attn_q.weight": (embedding, queries),
        "attn_k.weight": (embedding, keys),
        "attn_v.weight": (embedding, values),
        "attn_output.weight": (mixed, embedding),
        "ffn_norm.weight": (embedding,),
        "ffn_gate.weight": (embedding, hidden),
        "ffn_up.weight": (embedding, hidden),
        "ffn_down.weight": (hidden, embedding),
    }
    optional: dict[str, tuple[int, ...]] = {
        "attn_q.bias": (queries,),
        "attn_k.bias": (keys,),
        "attn_v.bias": (values,),
        "attn_output.bias": (embedding,),
        "attn_q_norm.weight": (sizes.key_length,),
        "attn_k_norm.weight": (sizes.key_length,),
        "post_attention_norm.weight": (embedding,),
        "post_ffw_norm.weight": (embedding,),
    }
    for name, shape in required.items():
        _check_shape(tensors, prefix + name, shape, is_required=requires_all)
    if requires_all:
        for name, shape in optional.items():
            _check_shape(tensors, prefix + name, shape, is_required=False)

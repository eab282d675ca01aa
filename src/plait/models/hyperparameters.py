"""The numbers of a model, read from GGUF metadata. Knows: keys and their defaults. Must not know: graphs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from plait.errors import ModelFileError
from plait.plan.graph import Shape


class Hyperparameters(msgspec.Struct, frozen=True):
    """What every architecture shares; ``shape`` holds the sizes."""

    architecture: str
    name: str
    shape: Shape
    context_length: int
    """Positions that the model was trained for."""
    rope_base: float
    rope_dim: int
    rope_scaling: float
    """Linear position scaling: frequencies are divided by it."""
    sliding_window: int
    output_matrix: str
    """``output.weight``, or the embedding table when it is shared."""

    def inverse_freqs(
        self, base: float, divisors: tuple[float, ...] | None, *, scaling: float | None = None
    ) -> tuple[float, ...]:
        """base^(-2i/d) for each rotated pair i, over the optional divisors and the linear scaling."""
        half = self.rope_dim // 2
        factor = self.rope_scaling if scaling is None else scaling
        freqs = [base ** (-2.0 * i / self.rope_dim) / factor for i in range(half)]
        if divisors is not None:
            if len(divisors) != half or any(d <= 0 for d in divisors):
                raise ModelFileError(f"rope_freqs.weight must hold {half} positive divisors")
            freqs = [freq / divisor for freq, divisor in zip(freqs, divisors, strict=True)]
        return tuple(freqs)


def read_hyperparameters(
    metadata: Mapping[str, object], tensor_shapes: Mapping[str, tuple[int, ...]]
) -> Hyperparameters:
    """Reads and checks the numbers. ``tensor_shapes`` are in GGUF order, columns first.

    Raises:
        ModelFileError: a key is missing, of the wrong type or out of range; the message names it.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError("the file does not name its architecture (general.architecture)")
    reader = _Reader(architecture, metadata)
    hidden = reader.integer("embedding_length")
    num_heads = reader.integer("attention.head_count")
    num_kv_heads = reader.integer("attention.head_count_kv", default=num_heads)
    if hidden % num_heads and f"{architecture}.attention.key_length" not in metadata:
        raise ModelFileError(f"{architecture}.embedding_length {hidden} is no multiple of {num_heads} heads")
    head_dim = reader.integer("attention.key_length", default=hidden // num_heads)
    if reader.integer("attention.value_length", default=head_dim) != head_dim:
        raise ModelFileError("key and value heads of different size are not supported")
    if num_heads % num_kv_heads:
        raise ModelFileError(f"{num_heads} query heads are no multiple of {num_kv_heads} kv heads")
    table = tensor_shapes.get("token_embd.weight")
    if table is None or len(table) != 2 or table[0] != hidden:
        raise ModelFileError(f"token_embd.weight must have {hidden} columns, but its shape is {table}")
    rope_dim = reader.integer("rope.dimension_count", default=head_dim)
    if rope_dim % 2 or rope_dim > head_dim:
        raise ModelFileError(
            f"{architecture}.rope.dimension_count {rope_dim} must be even and at most {head_dim}"
        )
    return Hyperparameters(
        architecture=architecture,
        name=str(metadata.get("general.name", architecture)),
        shape=Shape(
            num_layers=reader.integer("block_count"),
            hidden=hidden,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            ffn=reader.integer("feed_forward_length"),
            vocab=table[1],
            eps=reader.number("attention.layer_norm_rms_epsilon"),
        ),
        context_length=reader.integer("context_length"),
        rope_base=reader.number("rope.freq_base", default=10_000.0),
        rope_dim=rope_dim,
        rope_scaling=_linear_scaling(reader),
        sliding_window=reader.integer("attention.sliding_window", default=0, minimum=0),
        output_matrix="output.weight" if "output.weight" in tensor_shapes else "token_embd.weight",
    )


def _linear_scaling(reader: _Reader) -> float:
    kind = reader.metadata.get(f"{reader.architecture}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ModelFileError(
            f"rotary scaling of type {kind!r} is not supported; supported are none and linear"
        )
    return reader.number("rope.scaling.factor", default=1.0) if kind == "linear" else 1.0


class _Reader:
    def __init__(self, architecture: str, metadata: Mapping[str, object]) -> None:
        self.architecture = architecture
        self.metadata = metadata

    def integer(self, key: str, *, default: int | None = None, minimum: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(f"{self.architecture}.{key} must be an integer, but is {value!r}")
        if not minimum <= value <= 2**31 - 1:
            raise ModelFileError(f"{self.architecture}.{key} is {value}, but must be at least {minimum}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ModelFileError(f"{self.architecture}.{key} must be a positive number, but is {value!r}")
        return float(value)

    def _value(self, key: str, default: object) -> object:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelFileError(f"the file lacks {self.architecture}.{key}")
        return value

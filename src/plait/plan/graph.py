"""The graph of a model: a list of named operations on named values, in order.

Knows: names and attributes. Must not know: buffers, threads, native code. Models build it (plait.models), passes
fuse it (passes.py), and lowering turns the fused form into the native plan (lower.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

Attr = str | int | float | None


class Node(msgspec.Struct):
    """One operation: ``outputs = op(inputs, weights; attrs)``."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: dict[str, Attr] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        parts = [*self.inputs, *self.weights, *(f"{k}={v}" for k, v in self.attrs.items() if v is not None)]
        left = f"{', '.join(self.outputs)} = " if self.outputs else ""
        return f"{left}{self.op}({', '.join(parts)})"


class Rope(msgspec.Struct, frozen=True):
    """A rotary table: ``style`` is "interleaved" or "half"; one angle per pair of the rotated dimensions."""

    style: str
    inverse_freqs: tuple[float, ...]


class Shape(msgspec.Struct, frozen=True):
    """The sizes that the whole graph shares."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float


class Graph:
    """Builder of the operations of one model; values are named ``%0``, ``%1``, ..."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: list[Node] = []
        self.ropes: list[Rope] = []
        self._num_values = 0

    def __str__(self) -> str:
        return "\n".join(str(node) for node in self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def new_value(self) -> str:
        self._num_values += 1
        return f"%{self._num_values - 1}"

    def _emit(self, op: str, inputs: tuple[str, ...], weights: tuple[str, ...] = (), **attrs: Attr) -> str:
        value = self.new_value()
        self.nodes.append(Node(op, inputs, (value,), weights, attrs))
        return value

    def add_rope(self, rope: Rope) -> int:
        if rope not in self.ropes:
            self.ropes.append(rope)
        return self.ropes.index(rope)

    def embed(self, table: str, scale: float = 1.0) -> str:
        """Rows of the table for the step's tokens: [T, hidden]."""
        return self._emit("embed", (), (table,), scale=scale)

    def rms_norm(self, x: str, weight: str) -> str:
        return self._emit("rms_norm", (x,), (weight,))

    def head_norm(self, x: str, weight: str) -> str:
        """RMSNorm of each head on its own."""
        return self._emit("head_norm", (x,), (weight,))

    def matmul(self, x: str, weight: str) -> str:
        return self._emit("matmul", (x,), (weight,))

    def rope(self, x: str, table: int) -> str:
        return self._emit("rope", (x,), table=table)

    def kv_write(self, k: str, v: str, layer: int) -> None:
        self.nodes.append(Node("kv_write", (k, v), (), (), {"layer": layer}))

    def attention(self, q: str, layer: int, *, scale: float, window: int = 0, softcap: float = 0.0) -> str:
        return self._emit("attention", (q,), layer=layer, scale=scale, window=window, softcap=softcap)

    def add(self, x: str, y: str) -> str:
        """Adds to the residual stream: ``x`` is the stream, ``y`` what a block gave."""
        return self._emit("add", (x, y))

    def gated(self, gate: str, up: str, activation: str) -> str:
        """act(gate) * up, ``activation`` "silu" or "gelu_tanh"."""
        return self._emit("gated", (gate, up), activation=activation)

    def logits(self, x: str, head: str, softcap: float = 0.0) -> None:
        """The output product, for the rows that are sampled or scored."""
        self.nodes.append(Node("logits", (x,), (), (head,), {"softcap": softcap}))

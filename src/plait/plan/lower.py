"""Lowering: a fused graph and its loaded weights become the native plan.

Buffers are shared by role: the residual stream is one buffer, updated in place; everything else lives only from
one operation to the next, so the same few buffers serve every layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plait import _native
from plait.plan.graph import Graph, Node


class PackedWeights(Protocol):
    """Native weights and where each tensor is in them."""

    @property
    def native(self) -> _native.Weights: ...

    @property
    def matrices(self) -> Mapping[str, int]: ...

    @property
    def vectors(self) -> Mapping[str, int]: ...

    @property
    def is_float(self) -> Mapping[str, bool]:
        """By matrix: True when its products read float32 activations."""


def kv_layout(graph: Graph, block_tokens: int, dtype: str) -> _native.KvLayout:
    """How a block of the KV cache holds K and V of the graph's layers; ``dtype`` is "f16" or "q8"."""
    shape = graph.shape
    return _native.KvLayout(shape.num_layers, shape.num_kv_heads, shape.head_dim, block_tokens, dtype)


def lower(graph: Graph, weights: PackedWeights, layout: _native.KvLayout) -> _native.Plan:
    """Builds and verifies the plan.

    Raises:
        ValueError: the graph holds an operation that no pass fused.
        NativeError: an operation does not fit its weights.
    """
    plan = _native.Plan(graph.shape.hidden, graph.shape.vocab, layout)
    for rope in graph.ropes:
        plan.add_rope(rope.style, list(rope.inverse_freqs))
    lowering = _Lowering(graph, weights, plan)
    for node in graph:
        lowering.lower_node(node)
    plan.verify(weights.native)
    return plan


class _Lowering:
    def __init__(self, graph: Graph, weights: PackedWeights, plan: _native.Plan) -> None:
        self.graph = graph
        self.weights = weights
        self.plan = plan
        self.buffers: dict[str, int] = {}  # by value
        self.roles: dict[str, int] = {}
        self.forms = _acts_forms(graph, weights)

    def lower_node(self, node: Node) -> None:
        method = getattr(self, f"_{node.op}", None)
        if method is None:
            raise ValueError(f"no native operation for {node}: a fusion pass did not match this model")
        method(node)

    def _rows(self, value: str, role: str, cols: int) -> int:
        if role not in self.roles:
            self.roles[role] = self.plan.add_buffer(role, cols, False)
        self.buffers[value] = self.roles[role]
        return self.buffers[value]

    def _acts(self, value: str, role: str, cols: int) -> int:
        has_q8, has_f32 = self.forms[value]
        name = role if has_q8 and not has_f32 else f"{role}_{'q8' if has_q8 else ''}f32"
        if name not in self.roles:
            self.roles[name] = self.plan.add_buffer(name, cols, True, has_q8, has_f32)
        self.buffers[value] = self.roles[name]
        return self.buffers[value]

    def _matrix(self, name: str) -> int:
        return self.weights.matrices[name]

    def _vector(self, name: object) -> int:
        return -1 if name is None else self.weights.vectors[str(name)]

    def _embed(self, node: Node) -> None:
        out = self._rows(node.outputs[0], "residual", self.graph.shape.hidden)
        self.plan.add_embed(self._matrix(node.weights[0]), float(node.attrs["scale"] or 1.0), out)

    def _norm_quantize(self, node: Node) -> None:
        shape = self.graph.shape
        out = self._acts(node.outputs[0], "normed", shape.hidden)
        residual = self.buffers[node.inputs[0]]
        self.plan.add_add_norm(residual, -1, -1, self._vector(node.weights[0]), shape.eps, out)

    def _add_norm_quantize(self, node: Node) -> None:
        shape = self.graph.shape
        residual, delta = (self.buffers[value] for value in node.inputs)
        self.buffers[node.outputs[0]] = residual
        out = self._acts(node.outputs[1], "normed", shape.hidden)
        post_norm = self._vector(node.attrs["post_norm"])
        self.plan.add_add_norm(residual, delta, post_norm, self._vector(node.weights[0]), shape.eps, out)

    def _qkv(self, node: Node) -> None:
        shape = self.graph.shape
        out = self._rows(node.outputs[0], "query", shape.num_heads * shape.head_dim)
        wq, wk, wv = (self._matrix(name) for name in node.weights)
        rope = node.attrs["rope"]
        self.plan.add_qkv(
            self.buffers[node.inputs[0]],
            (wq, wk, wv),
            shape.num_heads,
            (self._vector(node.attrs["q_norm"]), self._vector(node.attrs["k_norm"])),
            shape.eps,
            -1 if rope is None else int(rope),
            int(node.attrs["layer"] or 0),
            out,
        )

    def _attention_quantize(self, node: Node) -> None:
        shape = self.graph.shape
        attrs = node.attrs
        self.plan.add_attention(
            self.buffers[node.inputs[0]],
            int(attrs["layer"] or 0),
            shape.num_heads,
            int(attrs["window"] or 0),
            float(attrs["scale"] or 0.0),
            float(attrs["softcap"] or 0.0),
            self._acts(node.outputs[0], "attended", shape.num_heads * shape.head_dim),
        )

    def _matmul(self, node: Node) -> None:
        out = self._rows(node.outputs[0], "delta", self.graph.shape.hidden)
        self.plan.add_matmul(self.buffers[node.inputs[0]], self._matrix(node.weights[0]), out)

    def _gated_quantize(self, node: Node) -> None:
        gate, up = (self._matrix(name) for name in node.weights)
        out = self._acts(node.outputs[0], "gated", self.graph.shape.ffn)
        self.plan.add_gated(self.buffers[node.inputs[0]], gate, up, str(node.attrs["activation"]), out)

    def _norm_logits(self, node: Node) -> None:
        attrs = node.attrs
        delta = self.buffers[node.inputs[1]] if len(node.inputs) > 1 else -1
        self.plan.add_logits(
            self.buffers[node.inputs[0]],
            delta,
            self._vector(attrs["post_norm"]),
            self._vector(attrs["norm"]),
            self.graph.shape.eps,
            self._matrix(node.weights[0]),
            float(attrs["softcap"] or 0.0),
        )


def _acts_forms(graph: Graph, weights: PackedWeights) -> dict[str, tuple[bool, bool]]:
    """For each quantised value: (read as q8, read as float32), by the weights that read it."""
    forms: dict[str, tuple[bool, bool]] = {}
    for node in graph:
        if node.op not in ("qkv", "matmul", "gated_quantize"):
            continue
        for name in node.weights:
            has_q8, has_f32 = forms.get(node.inputs[0], (False, False))
            is_float = weights.is_float[name]
            forms[node.inputs[0]] = (has_q8 or not is_float, has_f32 or is_float)
    return forms

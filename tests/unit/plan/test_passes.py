"""Fusion: the operations that come out, and that nothing is lost on the way."""

from __future__ import annotations

from collections import Counter

import pytest

from plait.models import gemma3, llama
from plait.models.hyperparameters import Hyperparameters
from plait.plan import Graph, Shape, fuse


def hyperparameters(architecture: str, num_layers: int) -> Hyperparameters:
    shape = Shape(num_layers, 64, 4, 2, 32, 128, 256, 1e-5)
    return Hyperparameters(architecture, "tiny", shape, 512, 1_000_000.0, 32, 1.0, 64, "token_embd.weight")


@pytest.mark.parametrize("num_layers", [1, 2, 7])
def test_llama_fuses_to_five_operations_a_layer(num_layers: int) -> None:
    graph = llama.build(hyperparameters("llama", num_layers), {})
    fuse(graph)
    ops = Counter(node.op for node in graph)
    assert ops == {
        "embed": 1,
        "norm_quantize": 1,
        "add_norm_quantize": 2 * num_layers - 1,
        "qkv": num_layers,
        "attention_quantize": num_layers,
        "matmul": 2 * num_layers,
        "gated_quantize": num_layers,
        "norm_logits": 1,
    }


def test_gemma3_keeps_post_norms_head_norms_and_windows() -> None:
    graph = gemma3.build(hyperparameters("gemma3", 7), {})
    fuse(graph)
    qkv = [node for node in graph if node.op == "qkv"]
    assert [node.attrs["rope"] for node in qkv] == [1, 1, 1, 1, 1, 0, 1]
    assert qkv[3].attrs["q_norm"] == "blk.3.attn_q_norm.weight"
    assert qkv[3].attrs["k_norm"] == "blk.3.attn_k_norm.weight"
    attention = [node for node in graph if node.op == "attention_quantize"]
    assert [node.attrs["window"] for node in attention] == [64, 64, 64, 64, 64, 0, 64]
    norms = [node for node in graph if node.op == "add_norm_quantize"]
    assert [node.attrs["post_norm"] for node in norms][:2] == [
        "blk.0.post_attention_norm.weight",
        "blk.0.post_ffw_norm.weight",
    ]
    assert graph.nodes[-1].attrs["post_norm"] == "blk.6.post_ffw_norm.weight"


@pytest.mark.parametrize(("name", "build"), [("llama", llama.build), ("gemma3", gemma3.build)])
def test_fusion_keeps_every_weight_and_every_value_has_a_producer(name: str, build) -> None:
    graph = build(hyperparameters(name, 3), {})
    before = {w for node in graph for w in node.weights}
    fuse(graph)
    attrs = {str(v) for node in graph for v in node.attrs.values()}
    after = {w for node in graph for w in node.weights} | attrs
    assert before <= after
    known: set[str] = set()
    for node in graph:
        assert set(node.inputs) <= known, node
        known |= set(node.outputs)


def test_a_value_read_twice_is_not_fused_away() -> None:
    graph = Graph(Shape(1, 64, 2, 2, 32, 128, 256, 1e-5))
    x = graph.embed("e")
    h = graph.rms_norm(x, "n")
    g = graph.gated(graph.matmul(h, "gate"), graph.matmul(h, "up"), "silu")
    graph.add(graph.matmul(g, "down"), g)
    fuse(graph)
    assert "gated" in [node.op for node in graph]

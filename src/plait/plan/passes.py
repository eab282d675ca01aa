"""Fusion passes: from the operations that a model names to the ones that the native core runs.

Each pass takes a graph and rewrites its node list; ``fuse`` runs them in order. A pattern that is not there is
left alone; lowering refuses what is left unfused, so a model that needs a new pattern fails at load with its name.
"""

from __future__ import annotations

from collections import Counter

from plait.plan.graph import Graph, Node

_READS_QUANTIZED = ("matmul", "logits")


def fuse(graph: Graph) -> None:
    """Rewrites ``graph`` in place into fused operations."""
    insert_quantize(graph)
    fuse_qkv(graph)
    fuse_gated(graph)
    fuse_attention(graph)
    fuse_add_norm(graph)
    fuse_logits(graph)


def insert_quantize(graph: Graph) -> None:
    """Makes the quantisation of activations explicit: once per value, however many products read it."""
    nodes: list[Node] = []
    quantized: dict[str, str] = {}
    for node in graph:
        if node.op in _READS_QUANTIZED:
            source = node.inputs[0]
            if source not in quantized:
                quantized[source] = graph.new_value()
                nodes.append(Node("quantize", (source,), (quantized[source],)))
            node.inputs = (quantized[source], *node.inputs[1:])
        nodes.append(node)
    graph.nodes = nodes


def fuse_qkv(graph: Graph) -> None:
    """Three products of one input, head norms, rotary embedding and the KV write become one ``qkv``."""
    producers = _producers(graph)
    for write in [node for node in graph if node.op == "kv_write"]:
        layer = write.attrs["layer"]
        attention = next(n for n in graph if n.op == "attention" and n.attrs["layer"] == layer)
        q_chain = _chain(producers, attention.inputs[0])
        k_chain = _chain(producers, write.inputs[0])
        v_chain = _chain(producers, write.inputs[1])
        if q_chain is None or k_chain is None or v_chain is None or len(v_chain) != 1:
            continue
        products = (q_chain[0], k_chain[0], v_chain[0])
        if len({product.inputs for product in products}) != 1:
            continue
        fused = Node(
            "qkv",
            products[0].inputs,
            (attention.inputs[0],),
            tuple(product.weights[0] for product in products),
            {
                "layer": layer,
                "q_norm": _weight_in(q_chain, "head_norm"),
                "k_norm": _weight_in(k_chain, "head_norm"),
                "rope": _rope_in(q_chain),
            },
        )
        if _rope_in(k_chain) != fused.attrs["rope"]:
            continue
        _replace(graph, [*q_chain, *k_chain, *v_chain, write], fused, at=write)


def fuse_gated(graph: Graph) -> None:
    """Gate and up products, the gated activation and the quantisation of its result become one."""
    producers = _producers(graph)
    for node in [n for n in graph if n.op == "gated"]:
        gate, up = (producers.get(value) for value in node.inputs)
        quantize = _only_reader(graph, node, "quantize")
        if gate is None or up is None or quantize is None:
            continue
        if gate.op != "matmul" or up.op != "matmul" or gate.inputs != up.inputs:
            continue
        fused = Node("gated_quantize", gate.inputs, quantize.outputs, gate.weights + up.weights, node.attrs)
        _replace(graph, [gate, up, node, quantize], fused, at=quantize)


def fuse_attention(graph: Graph) -> None:
    for node in [n for n in graph if n.op == "attention"]:
        quantize = _only_reader(graph, node, "quantize")
        if quantize is not None:
            fused = Node("attention_quantize", node.inputs, quantize.outputs, (), node.attrs)
            _replace(graph, [node, quantize], fused, at=quantize)


def fuse_add_norm(graph: Graph) -> None:
    """Residual add (after a norm of its own, in some models), RMSNorm and quantisation become one.

    The residual stream is updated in place: the fused node's first output is the stream after the add.
    """
    for node in [n for n in graph if n.op == "rms_norm"]:
        producers = _producers(graph)
        quantize = _only_reader(graph, node, "quantize")
        if quantize is None:
            continue
        add = producers.get(node.inputs[0])
        if add is None or add.op != "add":
            fused = Node("norm_quantize", node.inputs, quantize.outputs, node.weights)
            _replace(graph, [node, quantize], fused, at=quantize)
            continue
        stream, delta = add.inputs
        removed = [add, node, quantize]
        post_norm = None
        before = producers.get(delta)
        if before is not None and before.op == "rms_norm" and _num_readers(graph, delta) == 1:
            post_norm = before.weights[0]
            delta = before.inputs[0]
            removed.append(before)
        fused = Node(
            "add_norm_quantize",
            (stream, delta),
            (add.outputs[0], quantize.outputs[0]),
            node.weights,
            {"post_norm": post_norm},
        )
        _replace(graph, removed, fused, at=quantize)


def fuse_logits(graph: Graph) -> None:
    """The last norm belongs to the logits: it is computed for the rows that are asked for only."""
    producers = _producers(graph)
    for node in [n for n in graph if n.op == "logits"]:
        norm = producers.get(node.inputs[0])
        if norm is None or norm.op not in ("add_norm_quantize", "norm_quantize"):
            continue
        attrs = {**node.attrs, "norm": norm.weights[0], "post_norm": norm.attrs.get("post_norm")}
        _replace(graph, [norm, node], Node("norm_logits", norm.inputs, (), node.weights, attrs), at=node)


def _producers(graph: Graph) -> dict[str, Node]:
    return {value: node for node in graph for value in node.outputs}


def _num_readers(graph: Graph, value: str) -> int:
    return Counter(v for node in graph for v in node.inputs)[value]


def _only_reader(graph: Graph, node: Node, op: str) -> Node | None:
    readers = [n for n in graph if node.outputs[0] in n.inputs]
    return readers[0] if len(readers) == 1 and readers[0].op == op else None


def _chain(producers: dict[str, Node], value: str) -> list[Node] | None:
    """[matmul, head_norm?, rope?] that ends in ``value``, or None."""
    chain: list[Node] = []
    while (node := producers.get(value)) is not None and node.op in ("rope", "head_norm", "matmul"):
        chain.insert(0, node)
        if node.op == "matmul":
            ops = [n.op for n in chain]
            return chain if ops in (["matmul"], ["matmul", "rope"], ["matmul", "head_norm", "rope"]) else None
        value = node.inputs[0]
    return None


def _weight_in(chain: list[Node], op: str) -> str | None:
    return next((node.weights[0] for node in chain if node.op == op), None)


def _rope_in(chain: list[Node]) -> int | None:
    table = next((node.attrs["table"] for node in chain if node.op == "rope"), None)
    return None if table is None else int(table)


def _replace(graph: Graph, removed: list[Node], fused: Node, *, at: Node) -> None:
    """Puts ``fused`` in the place of ``at`` and drops the others."""
    gone = {id(node) for node in removed}
    nodes: list[Node] = []
    for node in graph:
        if node is at:
            nodes.append(fused)
        elif id(node) not in gone:
            nodes.append(node)
    graph.nodes = nodes

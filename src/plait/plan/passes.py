"""Fusion passes: from the operations that a model names to the ones that the native core runs.

Each pass takes a graph and rewrites its node list; ``fuse`` runs them in order. A pattern that is not there is
left alone; lowering refuses what is left unfused, so a model that needs a new pattern fails at load with its name.
"""

from __future__ import annotations

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
    edit = _Edit(graph)
    attentions = {node.attrs["layer"]: node for node in graph if node.op == "attention"}
    for write in edit.nodes("kv_write"):
        layer = write.attrs["layer"]
        attention = attentions[layer]
        q_chain = _chain(edit, attention.inputs[0])
        k_chain = _chain(edit, write.inputs[0])
        v_chain = _chain(edit, write.inputs[1])
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
        edit.replace([*q_chain, *k_chain, *v_chain, write], fused, at=write)
    edit.finish()


def fuse_gated(graph: Graph) -> None:
    """Gate and up products, the gated activation and the quantisation of its result become one."""
    edit = _Edit(graph)
    for node in edit.nodes("gated"):
        gate, up = map(edit.producer, node.inputs)
        quantize = edit.only_reader(node, "quantize")
        if gate is None or up is None or quantize is None:
            continue
        if gate.op != "matmul" or up.op != "matmul" or gate.inputs != up.inputs:
            continue
        fused = Node("gated_quantize", gate.inputs, quantize.outputs, gate.weights + up.weights, node.attrs)
        edit.replace([gate, up, node, quantize], fused, at=quantize)
    edit.finish()


def fuse_attention(graph: Graph) -> None:
    edit = _Edit(graph)
    for node in edit.nodes("attention"):
        quantize = edit.only_reader(node, "quantize")
        if quantize is not None:
            fused = Node("attention_quantize", node.inputs, quantize.outputs, (), node.attrs)
            edit.replace([node, quantize], fused, at=quantize)
    edit.finish()


def fuse_add_norm(graph: Graph) -> None:
    """Residual add (after a norm of its own, in some models), RMSNorm and quantisation become one.

    The residual stream is updated in place: the fused node's first output is the stream after the add.
    """
    edit = _Edit(graph)
    for node in edit.nodes("rms_norm"):
        quantize = edit.only_reader(node, "quantize")
        if quantize is None:
            continue
        add = edit.producer(node.inputs[0])
        if add is None or add.op != "add":
            fused = Node("norm_quantize", node.inputs, quantize.outputs, node.weights)
            edit.replace([node, quantize], fused, at=quantize)
            continue
        stream, delta = add.inputs
        removed = [add, node, quantize]
        post_norm = None
        before = edit.producer(delta)
        if before is not None and before.op == "rms_norm" and edit.num_readers(delta) == 1:
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
        edit.replace(removed, fused, at=quantize)
    edit.finish()


def fuse_logits(graph: Graph) -> None:
    """The last norm belongs to the logits: it is computed for the rows that are asked for only."""
    edit = _Edit(graph)
    for node in edit.nodes("logits"):
        norm = edit.producer(node.inputs[0])
        if norm is None or norm.op not in ("add_norm_quantize", "norm_quantize"):
            continue
        attrs = {**node.attrs, "norm": norm.weights[0], "post_norm": norm.attrs.get("post_norm")}
        edit.replace([norm, node], Node("norm_logits", norm.inputs, (), node.weights, attrs), at=node)
    edit.finish()


class _Edit:
    """A graph while a pass replaces nodes of it: who makes a value and who reads it, as it stands now.

    A start waits for the passes, so each replacement costs what it touches, and the list is written once.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers: dict[str, Node] = {}
        self._readers: dict[str, list[Node]] = {}
        # By id: nodes compare by what they hold. All of them stay in the graph's list until finish().
        self._gone: set[int] = set()
        self._instead: dict[int, Node] = {}
        for node in graph:
            self._enter(node)

    def nodes(self, op: str) -> list[Node]:
        """Those that the graph had at first."""
        return [node for node in self._graph if node.op == op]

    def producer(self, value: str) -> Node | None:
        return self._producers.get(value)

    def num_readers(self, value: str) -> int:
        return len(self._readers.get(value, ()))

    def only_reader(self, node: Node, op: str) -> Node | None:
        """Who alone reads the first output of ``node``, if it is an ``op``."""
        readers = self._readers.get(node.outputs[0], [])
        return readers[0] if len(readers) == 1 and readers[0].op == op else None

    def replace(self, removed: list[Node], fused: Node, *, at: Node) -> None:
        """Puts ``fused`` in the place of ``at``, one of the ``removed``, and drops the others."""
        for node in removed:
            self._gone.add(id(node))
            for value in node.outputs:
                self._producers.pop(value, None)
            for value in node.inputs:
                self._readers[value] = [n for n in self._readers[value] if n is not node]
        self._instead[id(at)] = fused
        self._enter(fused)

    def finish(self) -> None:
        nodes = (self._instead.get(id(node), node) for node in self._graph)
        self._graph.nodes = [node for node in nodes if id(node) not in self._gone]

    def _enter(self, node: Node) -> None:
        for value in node.outputs:
            self._producers[value] = node
        for value in node.inputs:
            self._readers.setdefault(value, []).append(node)


def _chain(edit: _Edit, value: str) -> list[Node] | None:
    """[matmul, head_norm?, rope?] that ends in ``value``, or None."""
    chain: list[Node] = []
    while (node := edit.producer(value)) is not None and node.op in ("rope", "head_norm", "matmul"):
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

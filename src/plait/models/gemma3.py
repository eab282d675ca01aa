"""Architecture ``gemma3``: Gemma 3 text models.

Norms before and after each half of a block, norms of query and key heads, five layers with a sliding window for
each global one, two rotary bases, tanh-GELU gates, scaled embeddings. The norm weights in the file include the +1.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.models.hyperparameters import Hyperparameters
from plait.plan.graph import Graph, Rope

# Every sixth layer is global, and the windowed ones rotate with base 10,000 (Gemma 3 report, arXiv:2503.19786).
GLOBAL_EVERY = 6
LOCAL_ROPE_BASE = 10_000.0


def build(hp: Hyperparameters, vectors: Mapping[str, tuple[float, ...]]) -> Graph:
    shape = hp.shape
    graph = Graph(shape)
    global_rope = graph.add_rope(Rope("half", hp.inverse_freqs(hp.rope_base, None)))
    local_rope = graph.add_rope(Rope("half", hp.inverse_freqs(LOCAL_ROPE_BASE, None, scaling=1.0)))
    # The 27B model scales scores by its width per head; every other size by the head size.
    is_27b = shape.num_layers == 62
    scale = (shape.hidden / shape.num_heads) ** -0.5 if is_27b else shape.head_dim**-0.5
    x = graph.embed("token_embd.weight", scale=shape.hidden**0.5)
    for i in range(shape.num_layers):
        block = f"blk.{i}."
        is_global = (i + 1) % GLOBAL_EVERY == 0
        rope = global_rope if is_global else local_rope
        h = graph.rms_norm(x, block + "attn_norm.weight")
        q = graph.head_norm(graph.matmul(h, block + "attn_q.weight"), block + "attn_q_norm.weight")
        k = graph.head_norm(graph.matmul(h, block + "attn_k.weight"), block + "attn_k_norm.weight")
        v = graph.matmul(h, block + "attn_v.weight")
        graph.kv_write(graph.rope(k, rope), v, layer=i)
        a = graph.attention(
            graph.rope(q, rope), layer=i, scale=scale, window=0 if is_global else hp.sliding_window
        )
        a = graph.matmul(a, block + "attn_output.weight")
        x = graph.add(x, graph.rms_norm(a, block + "post_attention_norm.weight"))
        h = graph.rms_norm(x, block + "ffn_norm.weight")
        gate = graph.matmul(h, block + "ffn_gate.weight")
        up = graph.matmul(h, block + "ffn_up.weight")
        f = graph.matmul(graph.gated(gate, up, "gelu_tanh"), block + "ffn_down.weight")
        x = graph.add(x, graph.rms_norm(f, block + "post_ffw_norm.weight"))
    graph.logits(graph.rms_norm(x, "output_norm.weight"), hp.output_matrix)
    return graph

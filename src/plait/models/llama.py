"""Architecture ``llama``: Llama 2 and 3, SmolLM, TinyLlama and others that GGUF files mark with this name.

Pre-norm blocks, grouped-query attention with interleaved rotary pairs, SiLU-gated feed-forward.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.models.hyperparameters import Hyperparameters
from plait.plan.graph import Graph, Rope


def build(hp: Hyperparameters, vectors: Mapping[str, tuple[float, ...]]) -> Graph:
    """``vectors`` may hold ``rope_freqs.weight``: divisors of the rotary frequencies (Llama 3.1 and later)."""
    graph = Graph(hp.shape)
    freqs = hp.inverse_freqs(hp.rope_base, vectors.get("rope_freqs.weight"))
    rope = graph.add_rope(Rope("interleaved", freqs))
    x = graph.embed("token_embd.weight")
    for i in range(hp.shape.num_layers):
        block = f"blk.{i}."
        h = graph.rms_norm(x, block + "attn_norm.weight")
        q = graph.rope(graph.matmul(h, block + "attn_q.weight"), rope)
        k = graph.rope(graph.matmul(h, block + "attn_k.weight"), rope)
        v = graph.matmul(h, block + "attn_v.weight")
        graph.kv_write(k, v, layer=i)
        a = graph.attention(q, layer=i, scale=hp.shape.head_dim**-0.5)
        x = graph.add(x, graph.matmul(a, block + "attn_output.weight"))
        h = graph.rms_norm(x, block + "ffn_norm.weight")
        gate = graph.matmul(h, block + "ffn_gate.weight")
        up = graph.matmul(h, block + "ffn_up.weight")
        x = graph.add(x, graph.matmul(graph.gated(gate, up, "silu"), block + "ffn_down.weight"))
    graph.logits(graph.rms_norm(x, "output_norm.weight"), hp.output_matrix)
    return graph

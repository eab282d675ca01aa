"""Makes the quality references: float32 logits of the transformers library on the dequantised weights.

Run once, by hand, in an environment of its own; the project does not depend on what it needs:

    pip install torch==2.13.0 "transformers>=5,<6" gguf numpy
    python tools/gen_reference.py --model SMOLLM2.gguf --ids IDS.json --out tests/golden/quality/smollm2.npz

IDS.json holds the token ids of tests/golden/quality/text.txt as llama-server's /tokenize gives them, without BOS.
They are cut into windows of 512; a model that wants BOS gets it as the first token of each window, in place of the
token that stood there (as llama-perplexity does). Stored per predicted position: the log-probability of the token
that follows, and the TOP largest log-probabilities with their ids; the rest of the distribution is one bucket.
With --full, the whole distributions are written too (gigabytes), to measure how much the bucket hides.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

WINDOW = 512
TOP = 64


def field(reader: GGUFReader, key: str) -> object:
    return reader.fields[key].contents()


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes the reordering of rotary pairs that GGUF files of architecture llama have."""
    rows, cols = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def load(path: Path) -> tuple[torch.nn.Module, int | None]:
    reader = GGUFReader(path)
    arch = str(field(reader, "general.architecture"))
    tensors = {
        t.name: dequantize(t.data, t.tensor_type)
        .astype(np.float32)
        .reshape(tuple(reversed(t.shape.tolist())))
        for t in reader.tensors
    }
    get = lambda key: field(reader, f"{arch}.{key}")  # noqa: E731
    heads = get("attention.head_count")
    common = {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": True,
    }
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    if arch == "llama":
        rope = {"rope_type": "default", "rope_theta": get("rope.freq_base")}
        model = LlamaForCausalLM(LlamaConfig(**common, rope_parameters=rope))
    else:
        names |= {
            "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
            "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }  # fmt: skip
        head_dim = get("attention.key_length")
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": get("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        }
        config = Gemma3TextConfig(
            **common, head_dim=head_dim, query_pre_attn_scalar=head_dim,
            sliding_window=get("attention.sliding_window"), hidden_activation="gelu_pytorch_tanh",
            rope_parameters=rope,
        )  # fmt: skip
        model = Gemma3ForCausalLM(config)
    state = {}
    for name, value in tensors.items():
        if name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = torch.from_numpy(value)
            continue
        if name == "output_norm.weight":
            target = "model.norm.weight"
        else:
            _, layer, key, _ = name.split(".")
            target = f"model.layers.{layer}.{names[key]}.weight"
            if arch == "llama" and key in ("attn_q", "attn_k"):
                value = unpermute(value, heads if key == "attn_q" else common["num_key_value_heads"])
        if arch == "gemma3" and "norm" in target:
            value = value - 1.0  # the file holds 1 + weight
        state[target] = torch.from_numpy(np.ascontiguousarray(value))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing, missing
    assert not unexpected, unexpected
    add_bos = bool(field(reader, "tokenizer.ggml.add_bos_token"))
    return model.eval(), int(field(reader, "tokenizer.ggml.bos_token_id")) if add_bos else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--full", type=Path, help="also write float32 log-probabilities [windows, 511, vocab]"
    )
    args = parser.parse_args()
    model, bos = load(args.model)
    ids = json.loads(args.ids.read_text())
    num_windows = len(ids) // WINDOW
    windows = np.array(ids[: num_windows * WINDOW], np.int32).reshape(num_windows, WINDOW)
    if bos is not None:
        windows[:, 0] = bos
    next_logprobs, top_ids, top_logprobs = [], [], []
    full = None
    for i, window in enumerate(windows):
        with torch.inference_mode():
            logits = model(torch.from_numpy(window.astype(np.int64))[None]).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits.double(), -1)
        top = logprobs.topk(TOP)
        next_logprobs.append(
            logprobs.gather(1, torch.from_numpy(window[1:, None].astype(np.int64)))[:, 0].numpy()
        )
        top_ids.append(top.indices.numpy().astype(np.int32))
        top_logprobs.append(top.values.numpy().astype(np.float32))
        if args.full:
            if full is None:
                shape = (num_windows, *logprobs.shape)
                full = np.lib.format.open_memmap(args.full, mode="w+", dtype=np.float32, shape=shape)
            full[i] = logprobs.float().numpy()
        print(f"window {i}: perplexity {np.exp(-np.mean(next_logprobs[-1])):.3f}", flush=True)
    np.savez_compressed(
        args.out,
        windows=windows,
        next_logprobs=np.array(next_logprobs, np.float32),
        top_ids=np.array(top_ids),
        # Half precision near 0 costs 2^-11 of a logprob of the likely tokens: far below what is measured.
        top_logprobs=np.array(top_logprobs, np.float16),
    )
    print(f"perplexity {np.exp(-np.mean(next_logprobs)):.4f} over {num_windows} windows")


if __name__ == "__main__":
    main()

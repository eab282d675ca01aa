"""Builds small GGUF files byte by byte, right or wrong ones. Standard library only."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
VALUE_FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    U64: "Q",
    I64: "q",
    F64: "d",
}
T_F32, T_F16, T_Q4_0, T_Q8_0, T_Q4_K = 0, 1, 2, 8, 12
MAX_U64 = (1 << 64) - 1


@dataclass(frozen=True)
class BadFile:
    """A malformed file and what its refusal must say."""

    name: str
    content: bytes
    expected: str
    is_container: bool = True
    """False: a well-formed GGUF file whose hyper-parameters are wrong."""
    sparse_size: int = 0
    """When larger than the content: the file is extended to this size with a hole."""


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value_of(kind: int, value: object) -> bytes:
    """The value alone, without its type."""
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return text(value)
    if kind == BOOL:
        return bytes([int(value)])  # type: ignore[call-overload]
    return struct.pack("<" + VALUE_FORMATS[kind], value)


def array(kind: int, values: list[object]) -> bytes:
    """An array's type, count and elements."""
    return struct.pack("<IQ", kind, len(values)) + b"".join(value_of(kind, v) for v in values)


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def scalar(key: str | bytes, kind: int, value: object) -> bytes:
    return entry(key, kind, value_of(kind, value))


def tensor(
    name: str | bytes, dims: list[int], kind: int, offset: int, *, num_dims: int | None = None
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def container(
    entries: list[bytes],
    tensors: list[bytes],
    *,
    data: bytes = b"",
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file from its parts; the counts can lie."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_keys is None else num_keys,
    )
    head += b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def nested(depth: int) -> bytes:
    """An array of `depth` levels with one byte at the bottom."""
    payload = array(U8, [7])
    for _ in range(depth - 1):
        payload = struct.pack("<IQ", ARRAY, 1) + payload
    return payload


@dataclass
class TinyModel:
    """A well-formed two-block llama with F32 tensors, to be spoilt in one place."""

    metadata: dict[str, tuple[int, object]] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = {
            "general.architecture": (STRING, "llama"),
            "llama.block_count": (U32, 2),
            "llama.context_length": (U32, 64),
            "llama.embedding_length": (U32, 32),
            "llama.feed_forward_length": (U32, 64),
            "llama.attention.head_count": (U32, 4),
            "llama.attention.head_count_kv": (U32, 2),
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
            "llama.rope.dimension_count": (U32, 8),
            "llama.rope.freq_base": (F32, 10000.0),
            "llama.vocab_size": (U32, 6),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.tokens": (ARRAY, array(STRING, ["a", "b", "c", "ab", "<s>", "</s>"])),
            "tokenizer.ggml.token_type": (ARRAY, array(I32, [1, 1, 1, 1, 3, 3])),
            "tokenizer.ggml.merges": (ARRAY, array(STRING, ["a b"])),
            "tokenizer.ggml.bos_token_id": (U32, 4),
            "tokenizer.ggml.eos_token_id": (U32, 5),
        }
        self.shapes = {"token_embd.weight": [32, 6], "output_norm.weight": [32]}
        for block in range(2):
            for name, shape in (
                ("attn_norm", [32]),
                ("attn_q", [32, 32]),
                ("attn_k", [32, 16]),
                ("attn_v", [32, 16]),
                ("attn_output", [32, 32]),
                ("ffn_norm", [32]),
                ("ffn_gate", [32, 64]),
                ("ffn_up", [32, 64]),
                ("ffn_down", [64, 32]),
            ):
                self.shapes[f"blk.{block}.{name}.weight"] = shape

    def build(self) -> bytes:
        entries = []
        for key, (kind, value) in self.metadata.items():
            if kind == ARRAY:
                assert isinstance(value, bytes)
                entries.append(entry(key, ARRAY, value))
            else:
                entries.append(scalar(key, kind, value))
        infos = []
        offset = 0
        for name, shape in self.shapes.items():
            infos.append(tensor(name, shape, T_F32, offset))
            size = 4
            for dim in shape:
                size *= dim
            offset += size + -size % 32
        return container(entries, infos, data=bytes(offset))

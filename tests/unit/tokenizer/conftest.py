"""Tiny vocabularies in the form in which GGUF files carry them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from plait.tokenizer import Tokenizer
from plait.tokenizer.bpe import CHARACTER_OF_BYTE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_level_metadata(**changes: object) -> dict[str, object]:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    types = [CONTROL, CONTROL, CONTROL, USER_DEFINED]
    tokens += CHARACTER_OF_BYTE.values()
    merges = "h e,l l,he ll,hell o,Ġ w,o r,Ġw or,l d,Ġwor ld,1 2,12 3,Ċ Ċ".split(",")  # noqa: SIM905
    tokens += [merge.replace(" ", "") for merge in merges]
    types += [NORMAL] * (len(tokens) - len(types))
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    return with_changes(metadata, changes)


def sentencepiece_metadata(**changes: object) -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", "<end_of_turn>", "\n\n"]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, USER_DEFINED]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    tokens += ["▁", "ab", "bc", "abc", "▁a", "▁ab", "▁abc", "aa", "aaa", "<e", "end", "tu", "turn", "_t"]
    tokens += "abcdefghijklmnopqrstuvwxyz<>_|é字"
    types += [NORMAL] * (len(tokens) - len(types))
    scores = [-1000.0] * 261 + [-float(i) for i in range(len(tokens) - 261)]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return with_changes(metadata, changes)


def with_changes(metadata: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    """Keyword ``x`` sets ``tokenizer.ggml.x``; None removes it."""
    for name, value in changes.items():
        key = f"tokenizer.ggml.{name}"
        metadata[key] = value
        if value is None:
            del metadata[key]
    return metadata


@pytest.fixture(name="byte_level_metadata")
def byte_level_metadata_fixture() -> dict[str, object]:
    return byte_level_metadata()


@pytest.fixture(name="sentencepiece_metadata")
def sentencepiece_metadata_fixture() -> dict[str, object]:
    return sentencepiece_metadata()


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer.from_metadata(byte_level_metadata())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """With a space prefix and BOS, as files of this kind have by default."""
    return Tokenizer.from_metadata(sentencepiece_metadata())


@pytest.fixture
def cpu_seconds() -> Callable[[], float]:
    """CPU time since the test began: bounds that a busy machine does not break."""
    begin = time.process_time()
    return lambda: time.process_time() - begin

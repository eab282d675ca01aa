"""Token ids equal those that llama.cpp gives for the same file (tools/gen_tokenizer_golden.py made them)."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from plait.tokenizer import Tokenizer
from plait.weights.gguf import GgufFile

HERE = Path(__file__).parent
VARIANTS = [(False, False), (False, True), (True, False), (True, True)]
TEXTS = [
    text if isinstance(text, str) else text[0] * text[1]
    for text in json.loads((HERE / "texts.json").read_text())
]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def name_and_tokenizer(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    path = request.getfixturevalue(f"{request.param}_path")
    return request.param, Tokenizer.from_metadata(GgufFile(path).metadata)


def reference_rows(name: str) -> list[list[list[int]]]:
    rows = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    return [[row[ids] if isinstance(ids, int) else ids for ids in row] for row in rows]


def test_set_is_large_enough() -> None:
    assert len(TEXTS) >= 300


def test_ids_equal_reference(name_and_tokenizer: tuple[str, Tokenizer]) -> None:
    name, tokenizer = name_and_tokenizer
    wrong = []
    for text, row in zip(TEXTS, reference_rows(name), strict=True):
        for (add_special, parse_special), expected in zip(VARIANTS, row, strict=True):
            if tokenizer.adds_bos and expected[:2] == [tokenizer.bos_token_id] * 2:
                expected = expected[1:]  # the reference doubles BOS, plait never does
            ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
            if ids != expected:
                wrong.append((text[:60], add_special, parse_special, ids[:20], expected[:20]))
    assert not wrong


def test_decode_gives_the_text_back(name_and_tokenizer: tuple[str, Tokenizer]) -> None:
    name, tokenizer = name_and_tokenizer
    lossy = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        expected = text if name == "smollm2" else text.replace("\u2581", " ")  # the space mark is a space
        if tokenizer.decode(ids, skip_special_tokens=False) != expected:
            lossy.append(text[:60])
    assert lossy == []


def test_long_runs_are_quick(name_and_tokenizer: tuple[str, Tokenizer]) -> None:
    _, tokenizer = name_and_tokenizer
    begin = time.process_time()
    for piece in ("a", " ", "\n", "0", "字", "Z", "\u0301", "="):
        tokenizer.encode(piece * 40_000)
    assert time.process_time() - begin < 8

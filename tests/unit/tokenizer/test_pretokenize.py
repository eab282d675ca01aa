from __future__ import annotations

from collections.abc import Callable

import pytest

from plait.tokenizer.bpe import BYTE_OF_CHARACTER, BytePairModel
from plait.tokenizer.pretokenize import PRE_TOKENIZERS
from plait.tokenizer.vocab import VocabularyDefaults, read_vocabulary

FAMILIES = {id(family): name for name, family in PRE_TOKENIZERS.items()}.values()


def words(name: str, text: str) -> list[str]:
    tokens = list(BYTE_OF_CHARACTER)
    metadata: dict[str, object] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": []}
    vocabulary = read_vocabulary(metadata, VocabularyDefaults())
    model = BytePairModel(vocabulary, metadata, PRE_TOKENIZERS[name])
    return [bytes(BYTE_OF_CHARACTER[c] for c in word).decode() for word in model.words(text)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'm 12345  ok", "I|'m| 12345| | ok"),
        ("smollm", "I'm 123  ok", "I|'m| |1|2|3| | ok"),
        ("llama-bpe", "I'M 12345\n\n x(y)", "I|'M| |123|45|\n\n| x|(y|)"),
        ("qwen2", "a 123,b", "a| |1|2|3|,b"),
        ("qwen35", "e\u0301a", "e\u0301a"),
        ("falcon", "a 12345!?", "a| |123|45|!?"),
        ("default", "a$1234", "a|$|123|4"),
        ("deepseek-llm", "日本 12 wo\n", "日本| |12| wo|\n"),
        ("deepseek-coder", "日本12 x", "日本|1|2| x"),
        ("deepseek-v3", "a1234 日本x", "a|123|4| |日本|x"),
        ("gpt-4o", "HelloWorld's 12345", "Hello|World's| |123|45"),
        ("tekken", "HelloWorld's 12", "Hello|World|'s| |1|2"),
        ("cohere2moe", "1234567 12a 99,000", "1|234|567| |12|a| |99|,|000"),
        ("superbpe", "of the 1234567 x", "of the |1|234|567| x"),
        ("kimi-k2", "中文テスト", "中文|テスト"),
        ("exaone-moe", "a b c1", "a b c|1"),
        ("bloom", "a, b", "a|,| b"),
        ("viking", "a12", "a|1|2"),
        ("seed-coder", "x!\n\ny", "x|!|\n\n|y"),
        ("laguna", "x!\ny", "x|!|\n|y"),
        ("chameleon", "a<sentinel:12>b", "a|<|sentinel|:|1|2|>|b"),
    ],
)
def test_cuts(name: str, text: str, expected: str) -> None:
    assert "|".join(words(name, text)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_keeps_all_text_in_linear_time(name: str, cpu_seconds: Callable[[], float]) -> None:
    text = "Hello world's 12345 naïve 中文123 한국어\t!!\r\n\n  \u2028x e\u0301 🙂 \x00"
    assert "".join(words(name, text)) == text
    for piece in ("a", "A", " ", "\n", "0", "-", "字", "'", " \n", "\u0301", "Aa", "."):
        assert "".join(words(name, piece * 10_000)) == piece * 10_000
    assert cpu_seconds() < 10

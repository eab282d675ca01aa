"""How byte-level BPE vocabularies cut text into words before merging, by ``tokenizer.ggml.pre``.

Each family is a list of patterns; every pattern cuts the pieces that the one before it left, and both its matches
and the gaps between them are pieces. All patterns consume what they scan, so that the whole is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_APOSTROPHE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{tail}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{tail}"
).format
_O200K_TAIL = _CASED(upper=_UPPER, lower=_LOWER, tail=_APOSTROPHE + "?")
_O200K = rf"{_O200K_TAIL}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED(upper=_UPPER, lower=_LOWER, tail='')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+".encode("utf-16", "surrogatepass").decode("utf-16")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family cuts text."""

    patterns: tuple[str, ...]
    """Oniguruma expressions."""
    ignores_merges: bool = False
    """A whole word that is a token is taken without merging."""
    adds_bos: bool = False
    """What a file that does not say so means."""
    has_bos: bool = True
    """False: the family has no default BOS."""
    cut: Callable[[str], Iterator[str]] | None = None
    """Cuts that no linear expression can make; done before the patterns."""


def _digits_from_the_right(is_whole_word: bool) -> Callable[[str], Iterator[str]]:
    """Isolates runs of digits in threes counted from their right end, in one pass."""

    def cut(text: str) -> Iterator[str]:
        position = 0
        for found in re.finditer(r"\d+", text):
            begin, end = found.span()
            if is_whole_word and re.match(r"\w", text[end : end + 1]):
                continue
            if begin > position:
                yield text[position:begin]
            first = (end - begin) % 3 or 3
            yield text[begin : begin + first]
            for i in range(begin + first, end, 3):
                yield text[i : i + 3]
            position = end
        if position < len(text):
            yield text[position:]

    return cut


DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2_FAMILY = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_FAMILY = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
_LLAMA3_PLAIN = PreTokenizer((_LLAMA3,))
_QWEN2_FAMILY = PreTokenizer((_QWEN2,))
_DEEPSEEK3_FAMILY = PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK3))
_BLOOM_FAMILY = PreTokenizer((_BLOOM,))
_BAILING = PreTokenizer(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_COMMAND_A = PreTokenizer((_O200K,), cut=_digits_from_the_right(is_whole_word=True))

_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", DEFAULT),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en"
        " jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        _GPT2_FAMILY,
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _SINGLE_DIGITS),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3_FAMILY),
    ("dbrx smaug-bpe", _LLAMA3_PLAIN),
    ("chatglm-bpe", PreTokenizer((_LLAMA3,), has_bos=False)),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignores_merges=True, has_bos=False)),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
        _QWEN2_FAMILY,
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                rf"{_APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",))),
    (
        "seed-coder",
        PreTokenizer((rf"{_APOSTROPHE}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_APOSTROPHE}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignores_merges=True
        ),
    ),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING),
    (
        "falcon",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                _CJK_WIDE,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_FAMILY),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_O200K,))),
    ("tekken", PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True)),
    ("tiny_aya cohere2moe", _COMMAND_A),
    ("superbpe", PreTokenizer((), cut=_digits_from_the_right(is_whole_word=False))),
    ("poro-chat bloom gpt3-finnish", _BLOOM_FAMILY),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
    ),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: family for names, family in _FAMILIES for name in names.split()
}
"""Known values of ``tokenizer.ggml.pre``."""

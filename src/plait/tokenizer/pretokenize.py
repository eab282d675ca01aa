"""How byte-level BPE vocabularies cut text into words before merging, by ``tokenizer.ggml.pre``.

Each family is a list of patterns; every pattern cuts the pieces that the one before it left, and both its
matches and the gaps between them are pieces. All patterns consume what they scan, so that the whole is
linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_APOSTROPHE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{tail}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{tail}").format
_O200K_TAIL = _CASED(upper=_UPPER, lower=_LOWER, tail=_APOSTROPHE + "?")
_O200K = rf"{_O200K_TAIL}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED(upper=_UPPER, lower=_LOWER, tail='')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# Cased letters as DeepSeek's first models knew them: hexadecimal code points and ranges.
_DEEPSEEK_LETTERS = """
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c
    38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b
    1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4
    1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113
    2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b
    2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06
    fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
    1e900-1e943
"""


def _character_class(ranges: str) -> str:
    """The inside of ``[...]`` for hexadecimal code points and ranges of them."""
    return "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in ranges.split())


class PreTokenizer(msgspec.Struct, frozen=True):
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

_JAIS2 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|" + "".join(
    rf"\s{{{width}}}(?!\S)|" for width in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
)
_HAN = r"&&[^\p{Han}]]"
_KIMI = _CASED(upper=_UPPER[:-1] + _HAN, lower=_LOWER[:-1] + _HAN, tail=_APOSTROPHE + "?")
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _CJK_KANA
)
_YOUTU = rf"{_O200K_TAIL}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_EXAONE_MOE = (
    _APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SPARK = (
    _ASCII_PUNCTUATION
    + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)

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
                rf"\s?[{_character_class(_DEEPSEEK_LETTERS)}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
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
    ("kimi-k2", PreTokenizer((r"\p{Han}+", rf"{_KIMI}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"))),
    ("youtu", PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignores_merges=True)),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
    ("spark2_5", PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, _SPARK, r"\p{N}"))),
    ("jais-2", PreTokenizer((_JAIS2 + r"\s",))),
    ("granite-embed-multi-97m", PreTokenizer((_O200K,), ignores_merges=True)),
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

"""Vocabulary: the tokens of a GGUF file, what each is, and the ids that matter. Immutable after construction.

Metadata comes from a hostile file: every list is checked for type and length before use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec

from plait.errors import ModelFileError

logger = logging.getLogger("plait.tokenizer")

MAX_VOCAB_SIZE = 4_000_000


def words(text: str) -> frozenset[str]:
    """The words of a list that is easier to read without quotes."""
    return frozenset(text.split())


# End-of-generation tokens by their text: files name one EOS, chat models end a turn with another.
END_TOKENS = words(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s>
    <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
    <｜end▁of▁sentence｜> [e~["""
)
# Control tokens that some converters wrote as ordinary or user-defined ones.
FILL_IN_TOKENS = words(
    """<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>
    <|file_sep|>"""
)


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(msgspec.Struct, frozen=True):
    tokens: Sequence[str]
    ids: Mapping[str, int]
    """Text to id; of equal texts the last id wins."""
    types: Sequence[int]
    """One TokenType value per token, converters' mistakes corrected."""
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """EOS and every other token that ends a generation, EOS first."""
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool
    shown_ids: frozenset[int] = frozenset()
    """Control tokens by their text only: matched like control tokens, decoded like text."""
    strip_after_ids: tuple[int, ...] = ()
    """Special tokens that swallow the white space after them (Phi-3)."""

    @property
    def size(self) -> int:
        return len(self.tokens)

    def is_control(self, token_id: int) -> bool:
        """True for tokens that are structure, never text: control and unknown."""
        return (
            self.types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN) and token_id not in self.shown_ids
        )


class VocabularyDefaults(msgspec.Struct, frozen=True):
    """What a file that says nothing means, by tokenizer model."""

    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    adds_bos: bool = False
    adds_space_prefix: bool = False


def string_list(metadata: Mapping[str, object], key: str) -> list[str] | None:
    """The list of strings at ``key``, or None when absent.

    Raises:
        ModelFileError: something else stands there.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(map(str.__instancecheck__, value)):
        raise ModelFileError(f"{key} is not a list of strings")
    return value


def number_list(metadata: Mapping[str, object], key: str, length: int) -> list[float] | None:
    """The first ``length`` numbers at ``key``, or None when absent.

    Raises:
        ModelFileError: not a list of numbers, or shorter than ``length``.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
        raise ModelFileError(f"{key} is not a list of numbers")
    if len(value) < length:
        raise ModelFileError(f"{key} has {len(value)} entries for {length} tokens")
    return value[:length]


def flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    return value if isinstance(value, bool) else default


def read_vocabulary(metadata: Mapping[str, object], defaults: VocabularyDefaults) -> Vocabulary:
    """Read ``tokenizer.ggml.*``.

    Raises:
        ModelFileError: the lists are missing, of the wrong type or of the wrong length.
    """
    tokens = string_list(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFileError("the file has no tokenizer.ggml.tokens")
    if len(tokens) > MAX_VOCAB_SIZE:
        raise ModelFileError(f"tokenizer.ggml.tokens has {len(tokens)} entries, more than {MAX_VOCAB_SIZE}")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    raw_types = number_list(metadata, "tokenizer.ggml.token_type", len(tokens))
    types = list(map(int, raw_types)) if raw_types else [int(TokenType.NORMAL)] * len(tokens)
    by_text = _ids_of(ids, END_TOKENS | FILL_IN_TOKENS)
    written_as_text = {i for i in by_text if types[i] in (TokenType.NORMAL, TokenType.USER_DEFINED)}
    for token_id in by_text:
        types[token_id] = TokenType.CONTROL

    def special_id(name: str, default: int | None) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        if isinstance(value, int) and 0 <= value < len(tokens):
            return value
        if value is not None and value != default:
            logger.warning("tokenizer.ggml.%s_token_id = %r is outside the vocabulary, ignored", name, value)
        return None

    eos = special_id("eos", defaults.eos_token_id)
    ends = [i for i in (eos, special_id("eot", None), special_id("eom", None)) if i is not None]
    ends += sorted(_ids_of(ids, END_TOKENS))
    end_texts = {tokens[i] for i in ends}
    if "<|end|>" in end_texts and (
        end_texts >= {"<|return|>", "<|call|>"} or end_texts >= {"<|calls|>", "<|flush|>"}
    ):
        # Channel formats close every message with <|end|> and go on.
        ends = [i for i in ends if tokens[i] != "<|end|>"]
    struck = ids.get("</s>")
    if struck is not None and struck != eos and struck in written_as_text:
        # The HTML tag, not the end of a sequence.
        ends = [i for i in ends if i != struck]
        if "<|tool_response>" in ids or "<|plamo:eos|>" in ids:
            types[struck] = TokenType.NORMAL
    return Vocabulary(
        tokens=tokens,
        ids=ids,
        types=types,
        bos_token_id=special_id("bos", defaults.bos_token_id),
        eos_token_id=eos,
        unk_token_id=special_id("unknown", defaults.unk_token_id),
        eos_token_ids=tuple(dict.fromkeys(ends)),
        adds_bos=flag(metadata, "tokenizer.ggml.add_bos_token", defaults.adds_bos),
        adds_eos=flag(metadata, "tokenizer.ggml.add_eos_token", False),
        adds_space_prefix=flag(metadata, "tokenizer.ggml.add_space_prefix", defaults.adds_space_prefix),
        shown_ids=frozenset(written_as_text.difference(ends)),
        strip_after_ids=_strip_after_ids(metadata, tokens, types),
    )


def _strip_after_ids(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> tuple[int, ...]:
    """The files do not carry this attribute; Phi-3 is known by name."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return ()
    kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    keeps = ("<unk>", "<s>", "<|endoftext|>")
    return tuple(i for i, kind in enumerate(types) if kind in kinds and tokens[i] not in keeps)


def _ids_of(ids: Mapping[str, int], texts: Iterable[str]) -> list[int]:
    return [ids[text] for text in texts if text in ids]

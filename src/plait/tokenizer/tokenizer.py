"""Tokenizer: text to ids and ids to bytes, for the vocabulary inside a GGUF file. Thread-safe.

Knows nothing of engines or HTTP. It is the one owner of BOS and EOS: they are added here, once, or not at
all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from plait.errors import ModelFileError
from plait.tokenizer.bpe import BYTE_OF_CHARACTER, BytePairModel
from plait.tokenizer.pretokenize import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from plait.tokenizer.specials import SpecialTokens, TrustedRange
from plait.tokenizer.spm import SPACE, SentencePieceModel
from plait.tokenizer.vocab import TokenType, Vocabulary, VocabularyDefaults, number_list, read_vocabulary
from plait.validation import is_whole

logger = logging.getLogger("plait.tokenizer")


class Span(msgspec.Struct, frozen=True):
    """A piece of a rendered prompt."""

    text: str
    is_template: bool
    """True: the model's template wrote it, control tokens in it count. False: somebody typed it."""


class _Model(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Made by ``from_metadata``; immutable apart from caches."""

    def __init__(
        self, vocabulary: Vocabulary, model: _Model, *, is_byte_level: bool, warning: str = ""
    ) -> None:
        self.warning = warning
        """What makes the ids doubtful; empty when nothing does."""
        self.vocab_size = vocabulary.size
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.adds_bos = vocabulary.adds_bos and vocabulary.bos_token_id is not None
        self.strips_first_space = vocabulary.adds_space_prefix
        """True: the first text of a sequence carries a space that nobody wrote."""
        self._vocabulary = vocabulary
        self._model = model
        self._specials = SpecialTokens(vocabulary)
        self._is_byte_level = is_byte_level
        self._bytes: dict[int, bytes] = {}
        self._max_token_chars = max(map(len, vocabulary.tokens))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build from GGUF metadata.

        Raises:
            ModelFileError: the tokenizer is absent, damaged or of a kind that plait does not know.
        """
        kind = metadata.get("tokenizer.ggml.model")
        if kind == "llama":
            defaults = VocabularyDefaults(1, 2, 0, adds_bos=True, adds_space_prefix=True)
            vocabulary = read_vocabulary(metadata, defaults)
            scores = number_list(metadata, "tokenizer.ggml.scores", vocabulary.size)
            return cls(vocabulary, SentencePieceModel(vocabulary, scores), is_byte_level=False)
        if kind == "gpt2":
            words, warning = _pre_tokenizer(metadata)
            default_id = 11 if words.has_bos else None
            defaults = VocabularyDefaults(default_id, 11, None, adds_bos=words.adds_bos)
            vocabulary = read_vocabulary(metadata, defaults)
            model = BytePairModel(vocabulary, metadata, words)
            return cls(vocabulary, model, is_byte_level=True, warning=warning)
        raise ModelFileError(
            f"tokenizer.ggml.model is {kind!r}; plait knows 'gpt2' (byte-level BPE) and 'llama' (SPM)"
        )

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of ``text``. Control tokens typed in it are plain text unless ``parse_special``."""
        text = _well_formed(text)
        return self._encode(text, [(0, len(text))] if parse_special and text else [], add_special)

    def encode_spans(self, spans: Sequence[Span], *, add_special: bool = True) -> list[int]:
        """Ids of the joined ``spans``; control tokens count only where a template wrote all of their text."""
        texts = [_well_formed(span.text) for span in spans]
        trusted: list[TrustedRange] = []
        position = 0
        for span, text in zip(spans, texts, strict=True):
            end = position + len(text)
            if span.is_template and text:
                if trusted and trusted[-1][1] == position:
                    trusted[-1] = (trusted[-1][0], end)
                else:
                    trusted.append((position, end))
            position = end
        return self._encode("".join(texts), trusted, add_special)

    def min_num_tokens(self, text: str) -> int:
        """A lower bound of ``len(encode(text))`` without encoding: refuses hopelessly long prompts cheaply."""
        return 0 if self._vocabulary.strip_after_ids else len(text) // self._max_token_chars

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.visible_bytes(token_id, skip_special_tokens) for token_id in ids)
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def visible_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """What ``decode`` joins: ``token_bytes``, or nothing for a special token that is skipped."""
        if skip_special_tokens and self.is_special(token_id):
            return b""
        return self.token_bytes(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; of a special token its name.

        Raises:
            IndexError: no such token.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._make_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """``token_bytes`` as text; partial code points become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def is_special(self, token_id: int) -> bool:
        """True for tokens that are structure and no text."""
        return 0 <= token_id < self.vocab_size and self._vocabulary.is_control(token_id)

    def _encode(self, text: str, trusted: Sequence[TrustedRange], add_special: bool) -> list[int]:
        ids: list[int] = []
        is_after_special = True
        for fragment in self._specials.split(text, trusted):
            if isinstance(fragment, int):
                ids.append(fragment)
                is_after_special = True
                continue
            if is_after_special and self.strips_first_space:
                fragment = " " + fragment
            ids.extend(self._model.encode(fragment))
            is_after_special = False
        bos, eos = self._vocabulary.bos_token_id, self._vocabulary.eos_token_id
        if add_special and self.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if add_special and self._vocabulary.adds_eos and eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
        return ids

    def _make_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"token id {token_id} is outside 0..{self.vocab_size - 1}")
        text = self._vocabulary.tokens[token_id]
        kind = self._vocabulary.types[token_id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return text.encode("utf-8", errors="replace")
        if kind == TokenType.BYTE:
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                return text.encode("utf-8", errors="replace")
        if kind != TokenType.NORMAL:
            return b""
        if not self._is_byte_level:
            return text.replace(SPACE, " ").encode("utf-8", errors="replace")
        return b"".join(
            bytes([BYTE_OF_CHARACTER[c]]) if c in BYTE_OF_CHARACTER else c.encode("utf-8", errors="replace")
            for c in text
        )


def _pre_tokenizer(metadata: Mapping[str, object]) -> tuple[PreTokenizer, str]:
    """The pre-tokenizer that the file names, and a warning when the file leaves it to a guess."""
    name = metadata.get("tokenizer.ggml.pre")
    known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if known is not None:
        return known, ""
    what = "names no pre-tokenizer" if name is None else f"names an unknown pre-tokenizer {name!r}"
    warning = (
        f"the file {what} (tokenizer.ggml.pre); 'default' is used: tokens may be wrong, answers much worse."
        " Convert the model again, or use a file that names its pre-tokenizer."
    )
    logger.warning("%s", warning)
    return DEFAULT, warning


def _well_formed(text: str) -> str:
    """``text`` with lone surrogates, which no UTF-8 can carry, replaced by U+FFFD."""
    return (
        text if is_whole(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )

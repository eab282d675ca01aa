"""BytePairModel: byte-level BPE on the Rust ``tokenizers`` library, which releases the GIL. Thread-safe."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from plait.errors import ModelFileError
from plait.tokenizer.pretokenize import PreTokenizer
from plait.tokenizer.vocab import Vocabulary, string_list

logger = logging.getLogger("plait.tokenizer")


def _byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + i) for i, byte in enumerate(hidden)})
    return table


CHARACTER_OF_BYTE = _byte_characters()
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


class BytePairModel:
    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object], words: PreTokenizer) -> None:
        merges = string_list(metadata, "tokenizer.ggml.merges")
        if merges is None:
            raise ModelFileError("the file has no tokenizer.ggml.merges, which its tokenizer needs")
        ids = dict(vocabulary.ids)
        self._size = vocabulary.size
        # A byte without a token must stay between its neighbours: it gets an id that is dropped afterwards.
        for character in CHARACTER_OF_BYTE.values():
            ids.setdefault(character, len(ids) + self._size)
        self._has_dropped_ids = len(ids) > len(vocabulary.ids)
        model = _new_bpe(merges, ids, ignore_merges=words.ignores_merges)
        self._tokenizer = tokenizers.Tokenizer(model)
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in words.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._cut = words.cut

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, which holds no special tokens."""
        cut = self._cut
        pieces = text if cut is None else list(cut(text))
        ids: list[int] = self._tokenizer.encode(
            pieces, is_pretokenized=cut is not None, add_special_tokens=False
        ).ids
        if self._has_dropped_ids:
            ids = [token_id for token_id in ids if token_id < self._size]
        return ids

    def words(self, text: str) -> list[str]:
        """How ``text`` is cut before merging; bytes are written as in the vocabulary."""
        splitter = self._tokenizer.pre_tokenizer
        pieces = [text] if self._cut is None else self._cut(text)
        return [word for piece in pieces for word, _ in splitter.pre_tokenize_str(piece)]


def _new_bpe(merges: list[str], ids: dict[str, int], *, ignore_merges: bool) -> models.BPE:
    """A start waits for this: merges without fault, as nearly all files have them, need no loop of Python's own."""
    # Pairs if they are right; the library refuses everything else.
    pairs: list[Any] = list(map(tuple, map(str.split, dict.fromkeys(merges), itertools.repeat(" "))))
    try:
        return models.BPE(vocab=ids, merges=pairs, ignore_merges=ignore_merges)
    except Exception:  # the library's own: some merge makes no token
        return models.BPE(vocab=ids, merges=_read_merges(merges, ids), ignore_merges=ignore_merges)


def _read_merges(merges: list[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs in rank order; of equal pairs the first counts, and pairs that make no token are left out."""
    pairs: dict[tuple[str, str], None] = {}
    num_bad = 0
    for merge in merges:
        cut = merge.find(" ", 1)
        first, second = merge[:cut], merge[cut + 1 :]
        if cut > 0 and first in ids and second in ids and first + second in ids:
            pairs[first, second] = None
        else:
            num_bad += 1
    if num_bad:
        logger.warning("tokenizer.ggml.merges: %d of %d merges make no token, ignored", num_bad, len(merges))
    return list(pairs)

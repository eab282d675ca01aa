"""SentencePieceModel: merging of neighbours by score, with byte fallback, as llama.cpp does it. Thread-safe.

The best-scored pair of neighbours whose joined text is a token is merged first, the leftmost of equals.
That is O(n log n) in a word, and text is cut into words where no token of the vocabulary crosses, so the
result is exact. Results of short words are kept.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence

from plait.errors import ModelFileError
from plait.tokenizer.vocab import TokenType, Vocabulary

SPACE = "\u2581"
_MAX_CACHED_WORDS = 1 << 15
_MAX_CACHED_CHARS = 32


class SentencePieceModel:
    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float] | None) -> None:
        if scores is None:
            raise ModelFileError("the file has no tokenizer.ggml.scores, which its tokenizer needs")
        self._scores = scores
        self._ids: Mapping[str, int] = vocabulary.ids
        # INVARIANT: control tokens cannot be typed: merging never produces one.
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
        self._hidden = frozenset(
            vocabulary.tokens[i]
            for i, kind in enumerate(vocabulary.types)
            if kind in kinds and i not in vocabulary.shown_ids
        )
        self._byte_ids = _byte_ids(vocabulary)
        self._words = _word_pattern(vocabulary.tokens)
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, which holds no special tokens; a space prefix is the caller's business."""
        ids: list[int] = []
        cache = self._cache
        for word in self._words.findall(text.replace(" ", SPACE)):
            known = cache.get(word)
            if known is None:
                known = tuple(self._encode_word(word))
                if len(word) <= _MAX_CACHED_CHARS:
                    if len(cache) >= _MAX_CACHED_WORDS:
                        cache.clear()
                    cache[word] = known
            ids.extend(known)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        """Merge the characters of ``word``; its pieces are linked by ``left`` and ``right``."""
        pieces: list[str] = list(word)
        if len(pieces) == 1:
            return self._piece_ids(word)
        count = len(pieces)
        left = list(range(-1, count - 1))
        right = [*range(1, count), -1]
        scored: dict[str, float | None] = {}
        heap = []
        for i in range(count - 1):
            joined = pieces[i] + pieces[i + 1]
            score = scored[joined] if joined in scored else scored.setdefault(joined, self._score(joined))
            if score is not None:
                heap.append((-score, i, joined))
        heapq.heapify(heap)
        while heap:
            _, i, joined = heapq.heappop(heap)
            j = right[i]
            # Stale when either side has changed since the pair was seen; dead pieces are empty.
            if j < 0 or not pieces[i] or len(pieces[i]) + len(pieces[j]) != len(joined):
                continue
            pieces[i], pieces[j] = joined, ""
            after = right[i] = right[j]
            right[j] = -1
            before = left[i]
            if after >= 0:
                left[after] = i
                text = joined + pieces[after]
                score = scored[text] if text in scored else scored.setdefault(text, self._score(text))
                if score is not None:
                    heapq.heappush(heap, (-score, i, text))
            if before >= 0:
                text = pieces[before] + joined
                score = scored[text] if text in scored else scored.setdefault(text, self._score(text))
                if score is not None:
                    heapq.heappush(heap, (-score, before, text))
        ids: list[int] = []
        for piece in pieces:
            if piece:
                ids.extend(self._piece_ids(piece))
        return ids

    def _score(self, text: str) -> float | None:
        token_id = self._ids.get(text)
        if token_id is None or text in self._hidden:
            return None
        return self._scores[token_id]

    def _piece_ids(self, piece: str) -> list[int]:
        token_id = self._ids.get(piece)
        if token_id is not None and piece not in self._hidden:
            return [token_id]
        return [self._byte_ids[byte] for byte in piece.encode(errors="replace")]


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """The token of each byte: ``<0xXX>``, else the character, else the unknown token."""
    found = []
    for byte in range(256):
        token_id = vocabulary.ids.get(f"<0x{byte:02X}>")
        if token_id is None and byte < 128:
            token_id = vocabulary.ids.get(chr(byte))
        found.append(vocabulary.unk_token_id if token_id is None else token_id)
    if None in found:
        raise ModelFileError("the vocabulary has neither all byte tokens nor an unknown token")
    return [token_id for token_id in found if token_id is not None]


def _word_pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    """Splits before a space mark wherever no token holds that mark after the character before it."""
    crossing = set(re.findall(f"([^\0])(?={SPACE})", "\0".join(tokens)))
    joiners = "".join(re.escape(c) for c in sorted(crossing - {SPACE}))
    runs = f"{SPACE}+" if SPACE in crossing else SPACE
    if not joiners:
        return re.compile(f"{runs}[^{SPACE}]*|[^{SPACE}]+")
    # A joiner keeps the space mark after it in the word.
    body = f"(?:[^{SPACE}]+|(?<=[{joiners}]){SPACE}+)"
    return re.compile(f"{runs}{body}*|{body}+", re.DOTALL)

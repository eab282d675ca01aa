"""SpecialTokens: cuts text at the tokens that are matched whole, before any merging. Immutable, thread-safe.

Two kinds: control tokens, found only where the text is trusted (template or ``parse_special``), and user-
defined tokens, found everywhere. Of overlapping candidates the longest wins (in bytes, then the lower id,
then the leftmost), the order in which llama.cpp cuts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from plait.tokenizer.vocab import TokenType, Vocabulary

Fragment = str | int
"""A piece of plain text, or the id of a special token."""

TrustedRange = tuple[int, int]

_SPACES = " \t\n\v\f\r"


class SpecialTokens:
    """Finds the special tokens of a vocabulary in linear time for ordinary token sets."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens, types = vocabulary.tokens, vocabulary.types
        # Plain integers: a start waits until every type has been compared with them.
        kinds = {int(TokenType.CONTROL), int(TokenType.UNKNOWN), int(TokenType.USER_DEFINED)}
        self._ids = {tokens[i]: i for i, kind in enumerate(types) if kind in kinds}
        self._user_ids = {text: i for text, i in self._ids.items() if types[i] == TokenType.USER_DEFINED}
        self._strips_after = {tokens[i] for i in vocabulary.strip_after_ids}
        self._any = _Candidates(self._ids)
        self._user = _Candidates(self._user_ids)

    def split(self, text: str, trusted: Sequence[TrustedRange]) -> list[Fragment]:
        """Cut ``text``; control tokens count only when they lie wholly inside one of the ``trusted`` ranges.

        ``trusted`` is sorted and its ranges do not touch.
        """
        if not text:
            return []
        candidates = self._any if trusted else self._user
        if candidates.is_greedy:
            matches = self._scan(text, trusted, candidates)
        else:
            matches = self._resolve(text, trusted, candidates)
        fragments: list[Fragment] = []
        position = 0
        for begin, end in matches:
            if begin < position:
                continue
            if begin > position:
                fragments.append(text[position:begin])
            token = text[begin:end]
            fragments.append(self._ids[token])
            position = end
            if token in self._strips_after:
                while position < len(text) and text[position] in _SPACES:
                    position += 1
        if position < len(text):
            fragments.append(text[position:])
        return fragments

    def _scan(
        self, text: str, trusted: Sequence[TrustedRange], candidates: _Candidates
    ) -> list[tuple[int, int]]:
        """Leftmost longest matches; equal to ``_resolve`` when no two tokens can overlap."""
        matches = []
        position = 0
        find = candidates.pattern.search
        while (found := find(text, position)) is not None:
            begin = found.start()
            limit = _trusted_end(begin, trusted)
            position = begin + 1
            for length in candidates.lengths[text[begin]]:
                piece = text[begin : begin + length]
                if piece in self._user_ids or (begin + length <= limit and piece in self._ids):
                    position = begin + len(piece)
                    matches.append((begin, position))
                    break
        return matches

    def _resolve(
        self, text: str, trusted: Sequence[TrustedRange], candidates: _Candidates
    ) -> list[tuple[int, int]]:
        """All occurrences, the longest taken first."""
        occurrences = []
        for found in candidates.pattern.finditer(text):
            begin = found.start()
            limit = _trusted_end(begin, trusted)
            for length in candidates.lengths[text[begin]]:
                piece = text[begin : begin + length]
                if piece in self._user_ids or (begin + length <= limit and piece in self._ids):
                    occurrences.append((-len(piece.encode()), self._ids[piece], begin, begin + len(piece)))
        occurrences.sort()
        is_taken = bytearray(len(text))
        matches = []
        for _, _, begin, end in occurrences:
            if 1 not in is_taken[begin:end]:
                is_taken[begin:end] = b"\x01" * (end - begin)
                matches.append((begin, end))
        matches.sort()
        return matches


class _Candidates:
    """Where tokens of a set may begin and how long they can be there."""

    def __init__(self, ids: dict[str, int]) -> None:
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self.lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self.pattern = re.compile("[" + "".join(map(re.escape, lengths)) + "]" if lengths else r"(?!)")
        self.is_greedy = not _can_overlap(ids, set(lengths))


def _can_overlap(ids: dict[str, int], firsts: set[str]) -> bool:
    """True when the end of one token can be the beginning of another one that is not shorter."""
    runs = {text for text in ids if text == text[0] * len(text)}
    inner = [
        (text, text[k:])
        for text in ids
        if not firsts.isdisjoint(text[1:])
        for k in range(1, len(text))
        if text[k] in firsts
    ]
    if not inner:
        return False
    heads: dict[str, list[str]] = {}
    wanted = {suffix for _, suffix in inner}
    for text in ids:
        for k in range(1, len(text)):
            if text[:k] in wanted:
                heads.setdefault(text[:k], []).append(text)
    for text, suffix in inner:
        size = len(text.encode())
        for other in heads.get(suffix, ()):
            # Two runs of one character: the longer one also matches where the shorter one does.
            are_runs = text in runs and other in runs
            if other != text and not are_runs and len(other.encode()) >= size:
                return True
    return False


def _trusted_end(position: int, trusted: Sequence[TrustedRange]) -> int:
    """The end of the trusted range around ``position``, 0 when there is none."""
    low, high = 0, len(trusted)
    while low < high:
        middle = (low + high) // 2
        if trusted[middle][1] <= position:
            low = middle + 1
        else:
            high = middle
    if low < len(trusted) and trusted[low][0] <= position:
        return trusted[low][1]
    return 0

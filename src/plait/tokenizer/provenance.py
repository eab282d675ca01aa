"""TemplateText: a string that knows which parts of it a chat template wrote.

Only constants of the template (and BOS, EOS and known role names) start as trusted. Everything else is an
ordinary ``str`` and so untrusted, and every operation that is not followed here gives an ordinary ``str``:
a mistake loses trust, it never creates it.

INVARIANT: a character is trusted only when it is copied from a trusted character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, SupportsIndex

Pieces = tuple[tuple[str, bool], ...]
"""Plain text and whether it is trusted; no piece is empty, neighbours differ in trust."""

_PERCENT = re.compile(r"%(.)", re.DOTALL)


class TemplateText(str):
    """At least one character is trusted, unless made without pieces. Compares and hashes like its text."""

    pieces: Pieces

    def __new__(cls, text: str, pieces: Pieces | None = None) -> TemplateText:
        self = super().__new__(cls, text)
        self.pieces = ((text, False),) if pieces is None else pieces
        return self

    @property
    def is_trusted(self) -> bool:
        """True when the whole text is trusted."""
        return len(self.pieces) == 1 and self.pieces[0][1]

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return joined([self] * count.__index__())

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        """Follows ``%s`` and ``%%`` with positional values; anything else gives untrusted text."""
        specs = _PERCENT.findall(self)
        arguments = values if isinstance(values, tuple) else (values,)
        wanted = specs.count("s")
        if isinstance(values, dict) or wanted + specs.count("%") != len(specs) or wanted != len(arguments):
            return super().__mod__(values)
        parts: list[str] = []
        position = 0
        remaining = iter(arguments)
        for found in _PERCENT.finditer(self):
            parts.append(self[position : found.start()])
            parts.append(self[found.start() : found.start() + 1] if found[1] == "%" else str(next(remaining)))
            position = found.end()
        parts.append(self[position:])
        return joined(parts)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        plain = super().__getitem__(key)
        if isinstance(key, slice):
            begin, end, step = key.indices(len(self))
            return self._part(begin, max(begin, end)) if step == 1 else plain
        index = key.__index__() % len(self)
        return self._part(index, index + 1)

    def join(self, parts: Iterable[str]) -> str:
        pieces: list[str] = []
        for part in parts:
            if pieces:
                pieces.append(self)
            pieces.append(part)
        return joined(pieces)

    def strip(self, chars: str | None = None) -> str:
        begin = len(self) - len(super().lstrip(chars))
        return self._part(begin, begin + len(super().strip(chars)))

    def lstrip(self, chars: str | None = None) -> str:
        return self._part(len(self) - len(super().lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return self._part(0, len(super().rstrip(chars)))

    def removeprefix(self, prefix: str) -> str:
        return self._part(len(self) - len(super().removeprefix(prefix)), len(self))

    def removesuffix(self, suffix: str) -> str:
        return self._part(0, len(super().removesuffix(suffix)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        left = count.__index__()
        if not old:
            return super().replace(old, new, left)
        parts: list[str] = []
        position = 0
        found = self.find(old)
        while found >= 0 and left:
            parts += (self[position:found], new)
            position = found + len(old)
            left -= 1
            found = self.find(old, position)
        parts.append(self[position:])
        return joined(parts)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines: list[str] = []
        position = 0
        for whole, bare in zip(super().splitlines(True), super().splitlines(), strict=True):
            lines.append(self._part(position, position + len(whole if keepends else bare)))
            position += len(whole)
        return lines

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, found, _ = super().partition(sep)
        cut = len(head) + len(found)
        return self._part(0, len(head)), self._part(len(head), cut), self._part(cut, len(self))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, found, _ = super().rpartition(sep)
        cut = len(head) + len(found)
        return self._part(0, len(head)), self._part(len(head), cut), self._part(cut, len(self))

    def upper(self) -> str:
        return self._mapped(super().upper())

    def lower(self) -> str:
        return self._mapped(super().lower())

    def title(self) -> str:
        return self._mapped(super().title())

    def capitalize(self) -> str:
        return self._mapped(super().capitalize())

    def _mapped(self, text: str) -> str:
        """``text`` made of this one alone, character by character."""
        return trusted(text) if self.is_trusted else text

    def _located(self, parts: list[str], gap: int) -> list[str]:
        """The same parts with their trust; they lie in order, ``gap`` characters apart (0: white space)."""
        found: list[str] = []
        position = 0
        for part in parts:
            begin = position if gap else self.find(part, position)
            found.append(self._part(begin, begin + len(part)))
            position = begin + len(part) + gap
        return found

    def _part(self, begin: int, end: int) -> str:
        kept: list[tuple[str, bool]] = []
        position = 0
        for text, is_trusted in self.pieces:
            stop = position + len(text)
            if stop > begin and position < end:
                kept.append((text[max(begin - position, 0) : end - position], is_trusted))
            position = stop
        return _made(kept)


def trusted(text: str) -> TemplateText:
    """``text`` as the template's own."""
    text = str.__str__(text)
    return TemplateText(text, ((text, True),) if text else ())


def pieces_of(text: str) -> Pieces:
    """The pieces of any string."""
    if isinstance(text, TemplateText):
        return text.pieces
    plain = "".join((text,)) if type(text) is not str else text
    return ((plain, False),) if plain else ()


def joined(parts: Iterable[str]) -> str:
    """``"".join(parts)`` that keeps trust; an ordinary string when nothing is trusted."""
    pieces: list[tuple[str, bool]] = []
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"expected text, found {type(part).__name__}")
        pieces.extend(pieces_of(part))
    return _made(pieces)


def _made(pieces: list[tuple[str, bool]]) -> str:
    if not any(is_trusted for _, is_trusted in pieces):
        return "".join(text for text, _ in pieces)
    merged: list[tuple[list[str], bool]] = []
    for text, is_trusted in pieces:
        if not text:
            continue
        if merged and merged[-1][1] == is_trusted:
            merged[-1][0].append(text)
        else:
            merged.append(([text], is_trusted))
    done = tuple(("".join(texts), is_trusted) for texts, is_trusted in merged)
    return TemplateText("".join(text for text, _ in done), done) if done else ""

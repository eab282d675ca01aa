"""TextStream: the text of one sequence while its tokens arrive. For one thread; constant work per token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from plait.tokenizer.stops import stop_matcher
from plait.tokenizer.tokenizer import Tokenizer


class TextStream:
    """Turns token ids into text that is final.

    INVARIANT: the joined results of ``push`` and ``finish`` equal ``tokenizer.decode`` of all ids, up to
    the stop.

    Held back are only bytes of an unfinished code point and the longest beginning of a stop string that the
    text ends with. Stop strings are found in the bytes of the text, whatever tokens they lie across; the
    one that ends first counts.

    Args:
        stop: strings that end the text; empty ones are ignored.
        include_stop: the stop string found is part of the text.
        min_tokens: stop strings that these first tokens complete are text like any other.
        prompt_ids: what stood before; at the very start of a sequence some vocabularies drop a leading space.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        prompt_ids: Iterable[int] = (),
    ) -> None:
        self.stopped_by: str | None = None
        """The stop string found; after it nothing more is given."""
        self.num_tokens = 0
        """Tokens taken in, up to and including the one that completed the stop string."""
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._skip_special_tokens = skip_special_tokens
        self._matcher = stop_matcher(tuple(stop)) if any(stop) else None
        self._state = 0
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_finished = False
        self._strips_space = tokenizer.strips_first_space and not any(
            tokenizer.visible_bytes(token_id, skip_special_tokens) for token_id in prompt_ids
        )

    def push(self, token_ids: Iterable[int]) -> str:
        """Take in tokens and return the text that became final; may be empty."""
        if self._is_finished:
            return ""
        ready = []
        for token_id in token_ids:
            self.num_tokens += 1
            data = self._tokenizer.visible_bytes(token_id, self._skip_special_tokens)
            if data and self._strips_space:
                self._strips_space = False
                data = data.removeprefix(b" ")
            if not data:
                continue
            ready.append(data if self._matcher is None else self._match(data))
            if self.stopped_by is not None:
                break
        return self._decoder.decode(b"".join(ready), self._is_finished)

    def finish(self) -> str:
        """The end of the tokens: return what was held back."""
        if self._is_finished:
            return ""
        self._is_finished = True
        held, self._held = self._held, b""
        return self._decoder.decode(held, True)

    def _match(self, data: bytes) -> bytes:
        """Run the stop automaton over ``data``; returns the bytes that no stop string can claim any more."""
        matcher = self._matcher
        assert matcher is not None
        state = self._state
        step, match = matcher.step, matcher.match
        for i, byte in enumerate(data):
            state = step(state, byte)
            found = match[state]
            if found is not None and self.num_tokens > self._min_tokens:
                self.stopped_by = found
                self._is_finished = True
                text = self._held + data[: i + 1]
                self._held = b""
                return text if self._include_stop else text[: len(text) - len(found.encode(errors="replace"))]
        self._state = state
        text = self._held + data
        cut = len(text) - matcher.depth[state]
        self._held = text[cut:]
        return text[:cut]

"""StopMatcher: all stop strings at once, byte by byte (Aho-Corasick). Immutable and shared."""

from __future__ import annotations

from functools import lru_cache


class StopMatcher:
    """Feeds on bytes and knows after each how long the longest live partial match is.

    The match that ends first wins, of those that end together the longest: this does not depend on how the
    bytes are cut into tokens.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self.depth: list[int] = [0]
        """Per state: bytes of the longest stop-string beginning that the text ends with."""
        self.match: list[str | None] = [None]
        """Per state: the stop string that ends here."""
        for stop in stops:
            if stop:
                self._add(stop)
        self._link()

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``. Constant time, amortised: every step back was paid for by one forward."""
        following = self._next[state].get(byte)
        while following is None and state:
            state = self._fail[state]
            following = self._next[state].get(byte)
        return following or 0

    def _add(self, stop: str) -> None:
        state = 0
        for byte in stop.encode("utf-8", errors="replace"):
            following = self._next[state].get(byte)
            if following is None:
                following = len(self._next)
                self._next[state][byte] = following
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = following
        self.match[state] = stop

    def _link(self) -> None:
        self._fail = [0] * len(self._next)
        queue = list(self._next[0].values())
        for state in queue:  # grows while it runs: breadth first
            for byte, following in self._next[state].items():
                queue.append(following)
                back = self._fail[state]
                while back and byte not in self._next[back]:
                    back = self._fail[back]
                self._fail[following] = self._next[back].get(byte, 0)
            # A shorter stop string that ends here as well: the longer one is kept.
            if self.match[state] is None:
                self.match[state] = self.match[self._fail[state]]


@lru_cache(maxsize=256)
def stop_matcher(stops: tuple[str, ...]) -> StopMatcher:
    """The shared automaton of ``stops``."""
    return StopMatcher(stops)

"""Instruments that cost a dictionary update or less. One thread owns each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

TIME_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class Counter:
    """A number that only grows, one per combination of label values. ``name`` has no ``_total``."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *label_values: str, amount: float = 1.0) -> None:
        self._values[label_values] = self._values.get(label_values, 0.0) + amount

    def items(self) -> Iterator[tuple[tuple[str, ...], float]]:
        return iter(self._values.items())


class Gauge:
    """A number that goes up and down."""

    def __init__(self, name: str, help_text: str) -> None:
        self.name = name
        self.help_text = help_text
        self.value = 0.0


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float] = TIME_BUCKETS_S) -> None:
        self.name = name
        self.help_text = help_text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Record ``count`` observations of ``value``."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """The (upper bound, observations up to it) of every bucket, the last one ``+Inf``."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets

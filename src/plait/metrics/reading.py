"""Prometheus text back into numbers, for programs that look at a running server. Does not know who counted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Buckets(msgspec.Struct, frozen=True):
    """A histogram at one moment: rising upper bounds with the observations up to each, and the sum of all."""

    cumulative: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        return self.cumulative[-1][1] if self.cumulative else 0.0

    def since(self, before: Buckets | None) -> Buckets:
        """What was observed after ``before``; all of it when the two do not belong together (a server that was
        started again)."""
        if before is None or self.count < before.count:
            return self
        old = dict(before.cumulative)
        return Buckets(
            tuple((bound, count - old.get(bound, 0.0)) for bound, count in self.cumulative),
            self.sum - before.sum,
        )

    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Interpolated within its bucket; of what is beyond the last bound, that bound. None without observations."""
        if not self.count:
            return None
        goal = share * self.count
        low, below = 0.0, 0.0
        for bound, count in self.cumulative:
            if count >= goal and count > below:
                if bound == float("inf"):
                    return low
                return low + (bound - low) * (goal - below) / (count - below)
            low, below = (low, below) if bound == float("inf") else (bound, count)
        return low


class Readings(msgspec.Struct, frozen=True):
    """The samples of one page."""

    values: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Counters and gauges by name, summed over their labels."""
    histograms: Mapping[str, Buckets] = msgspec.field(default_factory=dict)


def read_page(page: str) -> Readings:
    """Raises ValueError when ``page`` is no Prometheus text."""
    from prometheus_client.parser import text_string_to_metric_families  # here: 50 ms

    values: dict[str, float] = {}
    histograms: dict[str, Buckets] = {}
    for family in text_string_to_metric_families(page):
        if family.type == "histogram":
            bounds: dict[float, float] = {}
            total = 0.0
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    bounds[bound] = bounds.get(bound, 0.0) + sample.value
                elif sample.name.endswith("_sum"):
                    total += sample.value
            histograms[family.name] = Buckets(tuple(sorted(bounds.items())), total)
            continue
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return Readings(values, histograms)

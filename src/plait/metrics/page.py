"""Renders instruments and snapshots as Prometheus text, through a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from plait.metrics.instruments import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """All instruments of a process plus a snapshot of numbers that someone else counts.

    Args:
        prefix: stands before every name, with an underscore.
        snapshot: called at every rendering; names that end in ``_total`` are counters, others gauges.
    """

    def __init__(
        self,
        prefix: str,
        instruments: Sequence[Counter | Gauge | Histogram],
        snapshot: Callable[[], Mapping[str, float]],
    ) -> None:
        self._prefix = prefix
        self._instruments = tuple(instruments)
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The collector interface of prometheus-client."""
        from prometheus_client.core import (  # here: 50 ms that only a scrape needs
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for instrument in self._instruments:
            name = f"{self._prefix}_{instrument.name}"
            if isinstance(instrument, Counter):
                counter = CounterMetricFamily(name, instrument.help_text, labels=instrument.labels)
                for values, total in instrument.items():
                    counter.add_metric(values, total)
                yield counter
            elif isinstance(instrument, Gauge):
                yield GaugeMetricFamily(name, instrument.help_text, value=instrument.value)
            else:
                yield HistogramMetricFamily(
                    name, instrument.help_text, buckets=instrument.cumulative(), sum_value=instrument.sum
                )
        for key, value in sorted(self._snapshot().items()):
            text = f"Engine: {key.removesuffix('_total').replace('_', ' ')}."
            if key.endswith("_total"):
                yield CounterMetricFamily(f"{self._prefix}_{key}", text, value=value)
            else:
                yield GaugeMetricFamily(f"{self._prefix}_{key}", text, value=value)

    def render(self) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

"""Counters, gauges and histograms, and their Prometheus text. Level 1; does not know who counts."""

from __future__ import annotations

from plait.metrics.instruments import Counter, Gauge, Histogram
from plait.metrics.page import MetricsPage

__all__ = ["Counter", "Gauge", "Histogram", "MetricsPage"]

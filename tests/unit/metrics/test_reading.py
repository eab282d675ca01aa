"""What a page of metrics says comes back as numbers."""

from __future__ import annotations

import pytest

from plait.metrics import Counter, Gauge, Histogram, MetricsPage
from plait.metrics.reading import Buckets, read_page

INF = float("inf")


def test_a_page_of_our_own() -> None:
    requests = Counter("http_requests", "Requests.", ("endpoint", "status"))
    requests.add("/a", "200", amount=3)
    requests.add("/b", "200")
    active = Gauge("active", "Active.")
    active.value = 2.5
    times = Histogram("seconds", "Times.", (0.1, 1.0))
    for value in (0.05, 0.5, 0.5, 7.0):
        times.observe(value)
    page = MetricsPage("plait", [requests, active, times], lambda: {"steps_total": 7, "kv_blocks": 9})
    readings = read_page(page.render().decode())
    assert readings.values["plait_http_requests_total"] == 4
    assert readings.values["plait_active"] == 2.5
    assert readings.values["plait_steps_total"] == 7
    assert readings.values["plait_kv_blocks"] == 9
    buckets = readings.histograms["plait_seconds"]
    assert buckets.cumulative == ((0.1, 1.0), (1.0, 3.0), (INF, 4.0))
    assert buckets.count == 4
    assert buckets.sum == pytest.approx(8.05)
    assert buckets.mean() == pytest.approx(8.05 / 4)


def test_what_is_no_page() -> None:
    with pytest.raises(ValueError, match="invalid metric name"):
        read_page("<html>hello</html>")
    assert read_page("").values == {}


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    buckets = Buckets(((1.0, 10.0), (2.0, 10.0), (4.0, 20.0), (INF, 20.0)), 40.0)
    assert buckets.quantile(0.25) == pytest.approx(0.5)
    assert buckets.quantile(0.5) == pytest.approx(1.0)
    assert buckets.quantile(0.75) == pytest.approx(3.0)
    beyond = Buckets(((1.0, 0.0), (INF, 5.0)), 100.0)
    assert beyond.quantile(0.5) == 1.0
    assert Buckets(((1.0, 0.0), (INF, 0.0)), 0.0).quantile(0.5) is None
    assert Buckets((), 0.0).mean() is None


def test_what_was_observed_since() -> None:
    before = Buckets(((1.0, 2.0), (INF, 3.0)), 5.0)
    now = Buckets(((1.0, 4.0), (INF, 7.0)), 25.0)
    assert now.since(before) == Buckets(((1.0, 2.0), (INF, 4.0)), 20.0)
    assert now.since(None) == now
    # The server was started again: all that it has is new.
    assert before.since(now) == before

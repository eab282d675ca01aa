"""The Prometheus page, read back with prometheus-client's own parser."""

from __future__ import annotations

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

from plait.metrics import Counter, Gauge, Histogram, MetricsPage


def samples(page: MetricsPage) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_instruments_and_snapshot() -> None:
    requests = Counter("requests", "Replies.", ("path", "status"))
    requests.add("/a", "200")
    requests.add("/a", "200", amount=2)
    requests.add('/"b"\n', "500")
    gauge = Gauge("running", "Now.")
    gauge.value = 3
    times = Histogram("wait_seconds", "Wait.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        times.observe(value)
    times.observe(0.2, 2)
    engine = {"steps_total": 9.0, "kv_used_blocks": 4.0}
    got = samples(MetricsPage("plait", [requests, gauge, times], lambda: engine))
    assert got["plait_requests_total", (("path", "/a"), ("status", "200"))] == 3
    assert got["plait_requests_total", (("path", '/"b"\n'), ("status", "500"))] == 1
    assert got["plait_running", ()] == 3
    assert got["plait_wait_seconds_bucket", (("le", "0.1"),)] == 2
    assert got["plait_wait_seconds_bucket", (("le", "1.0"),)] == 5
    assert got["plait_wait_seconds_bucket", (("le", "+Inf"),)] == got["plait_wait_seconds_count", ()] == 6
    assert abs(got["plait_wait_seconds_sum", ()] - 8.05) < 1e-9
    assert got["plait_steps_total", ()] == 9
    assert got["plait_kv_used_blocks", ()] == 4


def test_snapshot_is_taken_at_every_scrape() -> None:
    engine = {"running": 106.0}
    page = MetricsPage("plait", [], lambda: engine)
    assert samples(page)["plait_running", ()] == 106
    engine["running"] = 0.0
    assert samples(page)["plait_running", ()] == 0


def test_types_are_told() -> None:
    page = MetricsPage("p", [Counter("c", "C."), Histogram("h", "H.")], lambda: {"x_total": 1.0, "y": 2.0})
    families = {f.name: f.type for f in text_string_to_metric_families(page.render().decode())}
    assert families == {"p_c": "counter", "p_h": "histogram", "p_x": "counter", "p_y": "gauge"}


def test_a_counter_without_labels_begins_at_zero() -> None:
    assert samples(MetricsPage("p", [Counter("c", "C.")], dict)) == {("p_c_total", ()): 0.0}


def test_the_global_registry_is_left_alone() -> None:
    before = prometheus_client.generate_latest()
    MetricsPage("only_here", [Counter("c", "C.")], dict).render()
    assert b"only_here" not in prometheus_client.generate_latest()
    assert b"only_here" not in before

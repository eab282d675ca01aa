"""GET /metrics parses, counts what happened, and its gauges come back to zero."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from plait.metrics import Counter, Gauge, Histogram, MetricsPage
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake, wait_until


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_page_parses_and_names_are_sane(fake: Served) -> None:
    fake.post(COMPLETIONS, prompt="a", max_tokens=3)
    reply = fake.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(reply.text))
    assert len(families) >= 10
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert re.fullmatch(r"plait_[a-z][a-z0-9_]*", family.name)
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")


def test_counts() -> None:
    # Slow steps: every token is a delta of its own.
    with serve_fake(engine={"step_s": 0.03}) as fake:
        check_counts(fake)


def check_counts(fake: Served) -> None:
    fake.post(COMPLETIONS, prompt="abc", max_tokens=5)
    fake.events(CHAT, messages=[{"role": "user", "content": "a"}], max_tokens=4)
    fake.post(COMPLETIONS, prompt="a", max_tokens=0)
    fake.http.get("/nothing")
    page = samples(fake.http.get("/metrics").text)
    ok = ("status", "200")
    assert page["plait_http_requests_total", (("endpoint", COMPLETIONS), ok)] == 1
    assert page["plait_http_requests_total", (("endpoint", COMPLETIONS), ("status", "400"))] == 1
    assert page["plait_http_requests_total", (("endpoint", CHAT), ok)] == 1
    assert page["plait_server_completion_tokens_total", ()] == 9
    assert page["plait_generated_tokens_total", ()] == 9
    assert page["plait_server_prompt_tokens_total", ()] == 4 + len("user:aassistant:") + 3
    assert page["plait_time_to_first_token_seconds_count", ()] == 2
    assert page["plait_inter_token_latency_seconds_count", ()] == 4 + 3
    assert page["plait_request_seconds_count", ()] == 2
    assert page["plait_prepare_seconds_count", ()] == 2
    assert page["plait_request_seconds_bucket", (("le", "+Inf"),)] == 2


def test_endless_paths_do_not_grow_the_page(fake: Served) -> None:
    before = len(fake.http.get("/metrics").text)
    for idx in range(20):
        fake.http.get(f"/v1/models/x{idx}")
        fake.http.get(f"/y{idx}")
    assert len(fake.http.get("/metrics").text) < before + 300


def test_gauges_are_zero_after_everybody_left() -> None:
    leave = threading.Event()
    with serve_fake(engine={"step_s": 0.05}) as fake:

        def run(idx: int) -> None:
            body: dict[str, Any] = {
                "prompt": "a",
                "max_tokens": 500,
                "stream": idx % 2 == 0,
                "n": 1 + idx % 3,
            }
            with (
                httpx.Client(base_url=fake.url, timeout=2, trust_env=False) as client,
                suppress(httpx.ReadTimeout),
                client.stream("POST", COMPLETIONS, json=body) as reply,
            ):
                leave.wait(20)
                assert reply.status_code == 200

        threads = [threading.Thread(target=run, args=(idx,)) for idx in range(30)]
        for thread in threads:
            thread.start()
        assert wait_until(lambda: fake.metrics()["plait_num_running_requests"] > 20)
        assert fake.metrics()["plait_http_active_requests"] > 20
        leave.set()
        for thread in threads:
            thread.join()
        assert wait_until(lambda: fake.metrics()["plait_num_running_requests"] == 0)
        assert wait_until(lambda: fake.metrics()["plait_http_active_requests"] == 0)
        assert fake.metrics()["plait_client_disconnects_total"] == 30


def test_rendering() -> None:
    counter = Counter("served", "Help.", ("kind",))
    counter.add('a"b\n\\', amount=2)
    gauge = Gauge("level", "Help.")
    gauge.value = 1.5
    histogram = Histogram("wait_seconds", "Help.", (0.1, 1.0))
    for value in (0.1, 0.5, 5.0):
        histogram.observe(value)
    page = MetricsPage("x", [counter, gauge, histogram], lambda: {"ends_total": 3, "size": 4})
    found = samples(page.render().decode())
    assert found["x_served_total", (("kind", 'a"b\n\\'),)] == 2
    assert found["x_level", ()] == 1.5
    assert [found["x_wait_seconds_bucket", (("le", le),)] for le in ("0.1", "1.0", "+Inf")] == [1, 2, 3]
    assert (found["x_wait_seconds_count", ()], found["x_wait_seconds_sum", ()]) == (3, 5.6)
    assert (found["x_ends_total", ()], found["x_size", ()]) == (3, 4)
    assert histogram.count == 3

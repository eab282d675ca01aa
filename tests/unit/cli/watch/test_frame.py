"""Numbers of a frame from two looks, and how they are drawn."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from plait.cli.watch.frame import Frame, make_frame
from plait.cli.watch.source import Look
from plait.cli.watch.view import bar, count, draw, duration, spark
from plait.metrics.reading import Buckets, Readings

INF = float("inf")
FIRST: dict[str, float] = {
    "uptime_seconds": 100.0,
    "steps_total": 1000.0,
    "step_seconds_total": 50.0,
    "step_gap_seconds_total": 1.0,
    "generated_tokens_total": 5000.0,
    "prefill_tokens_total": 800.0,
    "prompt_tokens_total": 1000.0,
    "cached_tokens_total": 200.0,
    "requests_finished_total": 40.0,
    "requests_running": 3.0,
    "requests_waiting": 2.0,
    "requests_live": 5.0,
    "requests_overloaded_total": 1.0,
    "preemptions_total": 4.0,
    "queue_depth_steps": 2.0,
    "queue_depth_submissions": 0.0,
    "kv_blocks": 100.0,
    "kv_blocks_free": 75.0,
    "kv_blocks_cached": 20.0,
    "kv_copies_total": 6.0,
    "requests_accepted_total": 10.0,
    "accept_seconds_total": 0.002,
    "accept_p50_seconds": 0.0001,
    "accept_p99_seconds": 0.0009,
}
SECOND = {
    **FIRST,
    "uptime_seconds": 102.0,
    "steps_total": 1100.0,
    "step_seconds_total": 51.8,
    "step_gap_seconds_total": 1.05,
    "generated_tokens_total": 5700.0,
    "prefill_tokens_total": 1100.0,
    "requests_finished_total": 46.0,
    "requests_running": 8.0,
}


def look(at_s: float, values: dict[str, float], **parts: Any) -> Look:
    histograms = parts.pop("histograms", {})
    health = parts.pop("health", {"status": "ok", "detail": "ok"})
    return Look(at_s, Readings(values, histograms), health, **parts)


def frame() -> Frame:
    return make_frame(look(10.0, FIRST), look(12.0, SECOND))


def printed(frames: list[Frame], problem: str = "", width: int = 110) -> str:
    target = io.StringIO()
    Console(file=target, width=width).print(draw("http://127.0.0.1:8000", frames, problem))
    return target.getvalue()


def test_rates_of_the_interval() -> None:
    shown = frame()
    assert shown.interval_s == 2.0
    assert shown.generated_per_s == 350.0
    assert shown.prefill_per_s == 150.0
    assert shown.requests_finished_per_s == 3.0
    assert shown.steps_per_s == 50.0
    assert shown.step_mean_s == pytest.approx(0.018)
    assert shown.tokens_per_step == 10.0
    assert shown.busy_share == pytest.approx(0.9)
    assert shown.gap_mean_s == pytest.approx(0.0005)


def test_gauges_and_totals() -> None:
    shown = frame()
    assert (shown.requests_running, shown.requests_waiting, shown.requests_live) == (8, 2, 5)
    assert (shown.kv_blocks, shown.kv_blocks_used, shown.kv_blocks_cached) == (100, 25, 20)
    assert shown.queue_depths == {"steps": 2.0, "submissions": 0.0}
    assert shown.kv_others == {"copies_total": 6.0}
    assert shown.cache_hit_share == 0.2
    assert (shown.preemptions, shown.requests_refused) == (4, 1)


def test_the_first_look_counts_from_the_start() -> None:
    shown = make_frame(None, look(10.0, FIRST))
    assert shown.interval_s == 100.0
    assert shown.generated_per_s == 50.0
    assert shown.busy_share == 0.5


def test_a_server_that_was_started_again_has_no_negative_rates() -> None:
    young = {**FIRST, "uptime_seconds": 4.0, "generated_tokens_total": 80.0}
    shown = make_frame(look(10.0, FIRST), look(12.0, young))
    assert shown.generated_per_s == 20.0
    assert shown.interval_s == 4.0


def test_what_the_server_does_not_say_is_unknown() -> None:
    shown = make_frame(look(1.0, {"steps_total": 0.0}), look(2.0, {"steps_total": 0.0}))
    unknown = {name for name, value in asdict(shown).items() if value is None}
    assert {"requests_running", "busy_share", "gap_mean_s", "kv_blocks", "kv_blocks_used"} <= unknown
    assert "cache_hit_share" in unknown
    text = printed([shown])
    assert "None" not in text
    json.dumps(asdict(shown))


def test_latencies_of_the_interval_or_else_of_all_time() -> None:
    old = {"time_to_first_token_seconds": Buckets(((0.1, 10.0), (INF, 10.0)), 0.5)}
    new = {"time_to_first_token_seconds": Buckets(((0.1, 10.0), (INF, 14.0)), 8.5)}
    recent = make_frame(look(1.0, FIRST, histograms=old), look(2.0, SECOND, histograms=new))
    assert recent.first_token.mean_s == 2.0
    assert recent.first_token.is_recent
    quiet = make_frame(look(1.0, FIRST, histograms=old), look(2.0, SECOND, histograms=old))
    assert quiet.first_token.mean_s == pytest.approx(0.05)
    assert not quiet.first_token.is_recent
    assert "(in all)" in printed([quiet])
    assert quiet.inter_token.mean_s is None


def test_threads_as_shares_of_a_core() -> None:
    before = look(1.0, FIRST, thread_cpu_s={"plait-main": 1.0, "gone": 5.0})
    now = look(3.0, SECOND, thread_cpu_s={"plait-main": 2.5, "new": 0.5})
    assert make_frame(before, now).threads == {"plait-main": 0.75}
    text = printed([make_frame(before, now)])
    assert "plait-main" in text
    assert "75.0%" in text


def test_everything_is_drawn() -> None:
    text = printed([frame(), frame()])
    for part in (
        "plait top  http://127.0.0.1:8000  ok",
        "up 1 min",
        "90.0%",
        "350.0",
        "18 ms",
        "0.5 ms",
        "25 of 100",
        "20.0% of prompt tokens",
        "copies",
        "0.2 / 0.1 / 0.9 (in all)",
        "submissions",
    ):
        assert part in text, part


@pytest.mark.parametrize("width", [80, 110, 200])
def test_nothing_is_cut_off(width: int) -> None:
    text = printed([frame()], width=width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_a_bad_state_is_said() -> None:
    sick = make_frame(None, look(1.0, FIRST, health={"status": "unavailable", "detail": "draining"}))
    text = printed([sick], "nobody answers")
    assert "unavailable (draining)" in text
    assert "nobody answers" in text


def test_small_parts() -> None:
    assert bar(0.5) == "█" * 5 + "░" * 5
    assert bar(None) == bar(0.0) == "░" * 10
    assert bar(7.0) == "█" * 10
    assert spark([None, 0.0, 1.0, 2.0]) == "▁▅█"
    assert spark([0.5], top=1.0) == "▅"
    assert spark([]) == spark([None]) == spark([0.0]) == "-"
    assert len(spark([1.0] * 500)) == 20
    assert (count(None), count(8192.0), count(0.5)) == ("-", "8,192", "0.50")
    assert [duration(s) for s in (42, 420, 7500, 100_000)] == ["42 s", "7 min", "2 h 5 min", "1 d 3 h"]

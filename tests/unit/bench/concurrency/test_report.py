"""Medians, ratios, sweeps, differing tokens, and what is said about them."""

from __future__ import annotations

import io
import json
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from plait.bench.concurrency.job import Candidate
from plait.bench.concurrency.picture import draw_report
from plait.bench.concurrency.report import build_ratios, build_rows, build_sweeps, find_differences
from plait.bench.concurrency.table import WIDTH, print_report, representative_rows
from plait.bench.concurrency.verdict import verdicts
from plait.bench.svg import CHAR, FONT, Box
from tests.fakes.made_up_runs import LoadRun, all_runs, load_run, report

SVG = "{http://www.w3.org/2000/svg}"


def printed(runs: list[LoadRun] | None = None, **changes: Any) -> str:
    target = io.StringIO()
    print_report(report(runs, **changes), Console(file=target, width=WIDTH))
    return target.getvalue()


def test_medians_of_the_rounds() -> None:
    runs = [load_run(speed=speed, round_idx=i) for i, speed in enumerate((10.0, 30.0, 11.0))]
    (row,) = build_rows(runs)
    assert row.candidate == Candidate("threads", "tensor", 2)
    values = (row.lowest, row.median, row.highest)
    assert [value["requests_per_s"] for value in values] == [10.0, 11.0, 30.0]
    assert row.median["latency_p99_s"] == pytest.approx(2 / 11)


def test_ratios_are_taken_within_rounds() -> None:
    """The machine was twice as fast in the second round: that must not show."""
    runs = []
    for round_idx, (speed, factor) in enumerate(((10.0, 1.1), (20.0, 1.2), (10.0, 1.3))):
        runs.append(load_run("native", speed * factor, round_idx=round_idx))
        runs.append(load_run("threads", speed, round_idx=round_idx))
    ratios = {(ratio.candidate.mode, ratio.reference.mode): ratio.values for ratio in build_ratios(runs)}
    assert set(ratios) == {("native", "threads"), ("threads", "native")}
    assert ratios["native", "threads"]["requests_per_s"] == pytest.approx(1.2)
    assert ratios["threads", "native"]["latency_p99_s"] == pytest.approx(1.2)
    assert ratios["threads", "native"]["cpu_share"] == pytest.approx(1.0)


def test_ratios_are_of_candidates_that_differ_in_one_thing() -> None:
    runs = [load_run("threads"), load_run("native", threads=1), load_run("native", clients=8)]
    assert build_ratios(runs) == ()
    assert len(build_ratios([load_run("threads"), load_run("threads", parallelism="pipeline")])) == 2


@pytest.mark.parametrize(
    ("speeds", "pays_up_to"),
    [
        ({1: 5.0, 2: 9.0, 3: 12.0}, 3),
        ({1: 5.0, 2: 9.0, 3: 9.2}, 2),
        ({1: 5.0, 2: 4.0, 3: 3.0}, 1),
        # A plateau before a rise is no end.
        ({1: 5.0, 2: 5.0, 4: 9.0}, 4),
    ],
)
def test_where_more_threads_stop_paying(speeds: dict[int, float], pays_up_to: int) -> None:
    rows = build_rows([load_run(speed=speed, threads=threads) for threads, speed in speeds.items()])
    (sweep,) = build_sweeps(rows)
    assert sweep.pays_up_to == pays_up_to
    assert [point.threads for point in sweep.points] == sorted(speeds)
    assert sweep.points[0].gain is None
    assert sweep.points[1].gain == pytest.approx(speeds[2] / speeds[1] - 1)
    assert build_sweeps(rows[:1]) == ()


def test_tokens_that_differ_are_found() -> None:
    good = [load_run("threads"), load_run("native"), load_run("native", round_idx=1)]
    assert find_differences(good) == ()
    # With fewer clients there are fewer requests; those that there are must be the same.
    assert find_differences([*good, load_run("native", clients=1, digests=("aa",))]) == ()
    wrong = load_run("coroutine", digests=("aa", "xx"), round_idx=2)
    (difference,) = find_differences([*good, wrong, wrong])
    assert difference == (
        "chat, request 1: threads, tensor, 2 threads, 32 clients, round 1 and coroutine, tensor, 2 threads, "
        "32 clients, round 3 give different tokens"
    )
    # Other loads are other requests.
    assert find_differences([*good, load_run(load="mixed", digests=("xx", "yy"))]) == ()


def test_the_winner_is_named_with_what_makes_the_difference() -> None:
    runs = [
        load_run("native", 10.0, busy_share=0.99, gap_mean_s=0.0001),
        load_run("threads", 9.0, busy_share=0.97, gap_mean_s=0.0004),
        load_run("coroutine", 6.0, busy_share=0.7, gap_mean_s=0.003, cpu_share=0.6),
    ]
    (sentence,) = verdicts(report(runs))
    assert sentence == (
        "chat, 32 clients, tensor: native leads with 10.00 requests/s, ahead of threads by 11.1%, coroutine by "
        "66.7%. Compared with coroutine, its compute thread is in a step 99.0% of the time, not 70.0%, 0.10 ms "
        "pass between two steps, not 3.00 ms, and it uses 90% of the cores, not 60%."
    )


def test_what_the_rounds_do_not_bear_out_is_no_lead() -> None:
    runs = [
        load_run(mode, speed, round_idx=i)
        for mode, speeds in {"native": (10.0, 12.0), "threads": (9.5, 10.5)}.items()
        for i, speed in enumerate(speeds)
    ]
    (sentence,) = verdicts(report(runs))
    assert "no difference that the rounds bear out" in sentence
    (close,) = verdicts(report([load_run("native", 10.0), load_run("threads", 9.95)]))
    assert "no difference" in close


def test_a_lead_that_nothing_explains_is_said_to_be_one() -> None:
    (sentence,) = verdicts(report([load_run("native", 10.0), load_run("threads", 5.0)]))
    assert "Neither steps, gaps nor CPU use explain" in sentence


def test_parallelisms_are_compared_for_the_best_mode() -> None:
    runs = [
        load_run("native", 10.0),
        load_run("threads", 8.0),
        load_run("native", 12.0, parallelism="pipeline", step_mean_s=0.015),
        load_run("threads", 20.0, threads=1),
    ]
    modes, ways = verdicts(report(runs))
    assert modes.startswith("chat, 32 clients, tensor: native leads")
    assert ways.startswith("chat, 32 clients, native: pipeline leads with 12.00 requests/s")
    assert "a step takes 15.00 ms, not 19.00 ms" in ways


def test_the_published_figures_stand_beside_ours() -> None:
    text = printed()
    assert "published design (7B model), and plait (some-model, chat, 32 clients, tensor, 2 threads)" in text
    cells = {
        row.split("│")[1].strip(): [cell.strip() for cell in row.split("│")[2:10]]
        for row in text.splitlines()
        if row.count("│") == 10 and row.split("│")[1].strip() in ("coroutine", "threads", "native")
    }
    assert cells["coroutine"][:4] == ["42", "0.286", "235", "65%"]
    assert cells["threads"][:4] == ["128", "0.871", "78", "92%"]
    assert cells["native"][:4] == ["147", "1.000", "65", "98%"]
    assert cells["threads"][4:6] == ["14.71", "0.980"]
    assert cells["native"][5] == "1.000"


def test_tables_hold_every_figure() -> None:
    text = printed()
    for claim in (
        "Some CPU, avx2, 2 cores",
        "taking a request in while 8 streams decode",
        "a prompt of 6000 tokens among 8 streams",
        "requests/s by compute threads",
    ):
        assert claim in text
    paced = next(
        row for row in text.splitlines() if row.startswith("│threads, tensor, 2 threads") and "11.00" in row
    )
    assert [cell.strip() for cell in paced.split("│")[2:-1]] == [
        "16", "20", "30", "50", "50", "2.50", "3.12", "11.00", "1.100", "8.00",
    ]  # fmt: skip
    whole = next(row for row in text.splitlines() if "whole steps│" in row or "whole steps │" in row)
    assert "45.00" in whole


def test_what_is_wrong_or_not_offered_is_printed() -> None:
    runs = [load_run("threads"), load_run("native", digests=("aa", "xx"))]
    text = printed(runs, not_offered={"threads, pipeline, 1 thread": "needs two threads"})
    assert "WRONG: chat, request 1" in text
    assert "not measured: threads, pipeline, 1 thread: needs two threads" in text


def test_one_mode_alone_still_makes_a_report() -> None:
    runs = [load_run("threads")]
    assert "14.71" not in printed(runs)
    assert verdicts(report(runs)) == []
    assert [row.candidate.mode for row in representative_rows(report(runs))] == ["threads"]
    assert ElementTree.fromstring(draw_report(report(runs))).tag == f"{SVG}svg"


def test_other_work_on_the_machine_is_told() -> None:
    quiet, busy = load_run("threads"), load_run("native", other_cpus=0.4)
    assert "NOT TO BE TRUSTED" not in printed([quiet])
    assert "NOT TO BE TRUSTED: other work kept up to 0.4 CPUs busy" in printed([quiet, busy])
    assert report([quiet]).to_json()["is_trusted"] is True
    assert report([quiet, busy]).to_json()["is_trusted"] is False


def test_probes_alone_make_a_report() -> None:
    text = printed([])
    assert "taking a request in" in text
    assert "not measured" in text
    assert ElementTree.fromstring(draw_report(report([]))).tag == f"{SVG}svg"


def test_json() -> None:
    value = json.loads(json.dumps(report().to_json()))
    assert (value["bench"], value["level"], value["schema_version"]) == ("concurrency", "engine", 1)
    assert value["published"]["source"] == "published design (7B model)"
    assert value["published"]["rows"][1]["requests_per_s"] == 128
    assert len(value["runs"]) == len(all_runs())
    row = value["rows"][0]
    assert row["candidate"] == {"mode": "threads", "parallelism": "tensor", "threads": 1}
    assert {"latency_p99_s", "first_token_p50_s", "inter_token_max_s", "pss_bytes"} <= row["median"].keys()
    assert value["accept"][0]["figures"]["accepted"]["p50_s"] == 0.0003


def test_the_picture_shows_every_bar_and_no_text_on_another() -> None:
    svg = draw_report(report())
    root = ElementTree.fromstring(svg)
    boxes = []
    for node in root.iter(f"{SVG}text"):
        size = float(node.attrib["font-size"])
        width = len(node.text or "") * CHAR * size / FONT
        shift = {"start": 0.0, "middle": width / 2, "end": width}[node.attrib["text-anchor"]]
        x, y = float(node.attrib["x"]) - shift, float(node.attrib["y"])
        boxes.append((node.text, Box(x, y - 0.8 * size, width, 0.8 * size)))
    page = Box(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    assert [text for text, box in boxes if not box.is_inside(page)] == []
    touching = [
        (a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[i + 1 :] if box.touches(other)
    ]
    assert touching == []
    bars = [node for node in root.iter(f"{SVG}rect") if node.attrib.get("fill-opacity") == "0.85"]
    # 2 loads, 4 panels, 3 numbers of clients, 6 ways with the most threads
    assert len(bars) == 2 * 4 * 3 * 6
    assert all(float(bar.attrib["height"]) > 0 for bar in bars)

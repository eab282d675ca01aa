"""The command ``plait bench queues``: flags, tables, JSON, exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait.bench.queues as queues
from plait.bench.queues import Latency, QueueRate, QueueReport, QueueSettings
from plait.cli.bench import bench_app
from plait.errors import ConfigError

GOOD = (
    QueueRate("spsc", 1, 8, "", (2e-8, 4e-8), 50e6, 25e6),
    QueueRate("ObjectRing", 1, None, "", (5e-7,), 2e6, 2e6),
)
WRONG = QueueRate("mpsc", 3, 64, "a message came torn", ())
LATENCIES = (
    Latency("round trip", "channel", False, None, 100, 1.5e-6, 31.25e-6),
    Latency("wake-up", "Doorbell", True, 0.0005, 100, 599.4e-6, 6.8e-3, 0.93),
)


@pytest.fixture
def rates() -> list[QueueRate]:
    return list(GOOD)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, rates: list[QueueRate]) -> list[QueueSettings]:
    """The settings that reach the benchmark, which is replaced by a ready report."""
    seen: list[QueueSettings] = []

    def run(settings: QueueSettings, on_progress: Callable[[str], None]) -> QueueReport:
        seen.append(settings)
        on_progress("something")
        machine: dict[str, object] = {"cpu": "Some CPU", "num_cpus": 2}
        return QueueReport(settings, 0.1, machine, 8.2e-8, (8.2e-8, 9e-8), tuple(rates), LATENCIES)

    monkeypatch.setattr(queues, "run_queue_bench", run)
    return seen


def test_tables_by_default(seen: list[QueueSettings]) -> None:
    result = CliRunner().invoke(bench_app, ["queues"])
    assert result.exit_code == 0, result.output
    assert seen == [QueueSettings()]
    for text in ("Some CPU, 2 CPUs", "82 ns", "50.00 M", "25.00 M", "object", "busy, 0.5 ms", "599.4", "93%"):
        assert text in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "…" not in result.output


def test_json_as_the_last_line_and_in_a_file(seen: list[QueueSettings], tmp_path: Path) -> None:
    result = CliRunner().invoke(bench_app, ["queues", "--json", "-"])
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["rates"][0]["messages_per_s"] == 50e6
    assert report["latencies"][1]["busy_share"] == 0.93
    target = tmp_path / "result.json"
    assert CliRunner().invoke(bench_app, ["queues", "--json", str(target)]).exit_code == 0
    assert json.loads(target.read_text())["bench"] == "queues"


def test_json_file_that_cannot_be_written(seen: list[QueueSettings], tmp_path: Path) -> None:
    result = CliRunner().invoke(bench_app, ["queues", "--json", str(tmp_path / "none" / "x.json")])
    assert isinstance(result.exception, ConfigError)
    assert not seen, "told before anything is measured"


def test_a_wrong_queue_is_said_and_exits_with_1(seen: list[QueueSettings], rates: list[QueueRate]) -> None:
    rates.append(WRONG)
    result = CliRunner().invoke(bench_app, ["queues"])
    assert result.exit_code == 1
    assert "mpsc, 3 producers, 64 bytes: a message came torn" in result.output


def test_flags_reach_the_benchmark(seen: list[QueueSettings]) -> None:
    flags = (
        "--messages 100 --repeats 2 --capacity 16 --rounds 30 --python-messages 40 --python-rounds 6 "
        "--intervals-ms 1,0.25"
    )
    result = CliRunner().invoke(bench_app, ["queues", *flags.split()])
    assert result.exit_code == 0, result.output
    assert seen == [
        QueueSettings(
            messages=100,
            repeats=2,
            capacity=16,
            rounds=30,
            python_messages=40,
            python_rounds=6,
            intervals_s=(0.001, 0.00025),
        )
    ]


def test_a_list_that_is_none_is_a_usage_error(seen: list[QueueSettings]) -> None:
    result = CliRunner().invoke(bench_app, ["queues", "--intervals-ms", "5,soon"])
    assert result.exit_code == 2
    assert not seen


def test_senseless_sizes_are_refused(seen: list[QueueSettings]) -> None:
    result = CliRunner().invoke(bench_app, ["queues", "--repeats", "0"])
    assert isinstance(result.exception, ConfigError)
    assert not seen

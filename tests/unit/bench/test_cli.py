"""The command ``plait bench step``: flags, table, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait.bench.step as step
from plait.bench.step import Measurement, StepReport, StepSettings
from plait.cli.bench import bench_app
from plait.errors import ConfigError


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[StepSettings]:
    """The settings that reach the benchmark, which is replaced by a ready report."""
    seen: list[StepSettings] = []

    def run(path: Path, settings: StepSettings) -> StepReport:
        seen.append(settings)
        row = Measurement("decode", 8, 128, 512, 0.5, 1024.0, 0.034, (900.0, 1024.0, 1100.0))
        machine: dict[str, object] = {"cpu": "Some CPU", "isa": "avx2", "num_compute_threads": 2}
        return StepReport(path.stem, 5, settings, 0.1, machine, (row,), 0.25)

    monkeypatch.setattr(step, "run_step_bench", run)
    return seen


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"12345")
    return str(path)


def test_table_by_default(seen: list[StepSettings], model: str) -> None:
    result = CliRunner().invoke(bench_app, ["step", model])
    assert result.exit_code == 0, result.output
    assert seen == [StepSettings()]
    for text in (
        "Some CPU",
        "decode",
        "1024.0",
        "900.0",
        "1100.0",
        "3.4%",
        "NOT TO BE TRUSTED: other work kept up to 0.2 CPUs busy",
    ):
        assert text in result.output


def test_json_as_the_last_line(seen: list[StepSettings], model: str) -> None:
    result = CliRunner().invoke(bench_app, ["step", model, "--json", "-"])
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["measurements"][0]["tokens_per_s"] == 1024.0
    assert report["machine"]["cpu"] == "Some CPU"
    assert report["is_trusted"] is False


def test_json_file(seen: list[StepSettings], model: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert CliRunner().invoke(bench_app, ["step", model, "--json", str(target)]).exit_code == 0
    assert json.loads(target.read_text())["bench"] == "step"


def test_json_file_that_cannot_be_written(seen: list[StepSettings], model: str, tmp_path: Path) -> None:

    result = CliRunner().invoke(bench_app, ["step", model, "--json", str(tmp_path / "none" / "x.json")])
    assert isinstance(result.exception, ConfigError)
    assert "No such file" in str(result.exception)
    assert not seen, "told before anything is measured"


def test_flags_reach_the_benchmark(seen: list[StepSettings], model: str) -> None:
    flags = "--batches 2,4 --contexts 16,32 --prompts 64 --decode-tokens 8 --repeats 1 --threads 3 --kv-cache-dtype q8"
    flags += " --compute-parallelism pipeline"
    result = CliRunner().invoke(bench_app, ["step", model, *flags.split()])
    assert result.exit_code == 0, result.output
    assert seen == [StepSettings((2, 4), (16, 32), (64,), 8, 1, 3, "q8", "pipeline")]


def test_a_list_that_is_none_is_a_usage_error(seen: list[StepSettings], model: str) -> None:
    result = CliRunner().invoke(bench_app, ["step", model, "--batches", "1,many"])
    assert result.exit_code == 2
    assert "1,8,32" in result.output
    assert not seen


def test_senseless_sizes_are_refused_before_a_model_is_pulled(seen: list[StepSettings]) -> None:
    result = CliRunner().invoke(bench_app, ["step", "no-such-model", "--repeats", "0"])
    assert isinstance(result.exception, ConfigError)
    assert "--repeats must be" in str(result.exception)

"""The command ``plait bench concurrency``: flags, files, exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait.bench.concurrency.runner as runner
from plait.bench.concurrency.report import ConcurrencyReport
from plait.bench.concurrency.runner import ConcurrencySettings
from plait.bench.concurrency.scenario import load_scenario
from plait.cli.bench import bench_app
from plait.errors import ConfigError
from tests.fakes.made_up_runs import load_run, report


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ConcurrencySettings]:
    """The settings that reach the benchmark, which is replaced by a ready report."""
    seen: list[ConcurrencySettings] = []

    def run(path: Path, settings: ConcurrencySettings, tell: Callable[[str], None]) -> ConcurrencyReport:
        seen.append(settings)
        tell("something")
        if "wrong" in path.name:
            return report([load_run("threads"), load_run("native", digests=("aa", "xx"))])
        return report()

    monkeypatch.setattr(runner, "run_concurrency_bench", run)
    return seen


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"12345")
    return str(path)


def test_defaults(seen: list[ConcurrencySettings], model: str) -> None:
    result = CliRunner().invoke(bench_app, ["concurrency", "--level", "engine", model])
    assert result.exit_code == 0, result.output
    assert seen == [ConcurrencySettings(tuple(load_scenario(name) for name in ("chat", "mixed", "io")))]
    assert "published design (7B model)" in result.output


def test_flags_reach_the_benchmark(seen: list[ConcurrencySettings], model: str) -> None:
    flags = "--loads io --modes threads --parallelism tensor --threads 1,2 --clients 4 --rounds 5 --no-probes --quick"
    result = CliRunner().invoke(bench_app, ["concurrency", model, *flags.split()])
    assert result.exit_code == 0, result.output
    (settings,) = seen
    assert settings == ConcurrencySettings(
        (load_scenario("io"),), ("threads",), ("tensor",), (1, 2), (4,), 5, has_probes=False, is_quick=True
    )


def test_files(seen: list[ConcurrencySettings], model: str, tmp_path: Path) -> None:
    target, picture = tmp_path / "result.json", tmp_path / "modes.svg"
    arguments = ["concurrency", model, "--json", str(target), "--svg", str(picture)]
    assert CliRunner().invoke(bench_app, arguments).exit_code == 0
    assert json.loads(target.read_text())["bench"] == "concurrency"
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize("flag", ["--json", "--svg"])
def test_a_file_that_cannot_be_written(
    seen: list[ConcurrencySettings], model: str, tmp_path: Path, flag: str
) -> None:
    result = CliRunner().invoke(bench_app, ["concurrency", model, flag, str(tmp_path / "none" / "x")])
    assert isinstance(result.exception, ConfigError)
    assert not seen, "told before anything is measured"


def test_tokens_that_differ_fail_the_command(seen: list[ConcurrencySettings], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"12345")
    result = CliRunner().invoke(bench_app, ["concurrency", str(wrong), "--json", "-"])
    assert result.exit_code == 1
    assert "WRONG: chat, request 1" in result.output
    assert json.loads(result.stdout.splitlines()[-1])["differences"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--loads chat,nothing", "no load 'nothing'"),
        ("--loads , --no-probes", "name a load"),
        ("--modes fibers", "'fibers' is not offered"),
        ("--rounds 0", "rounds"),
    ],
)
def test_mistakes_are_told_before_a_model_is_pulled(
    seen: list[ConcurrencySettings], flags: str, message: str
) -> None:
    result = CliRunner().invoke(bench_app, ["concurrency", "no-such-model", *flags.split()])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not seen


def test_other_levels_are_usage_errors(seen: list[ConcurrencySettings], model: str) -> None:
    result = CliRunner().invoke(bench_app, ["concurrency", "--level", "server", model])
    assert result.exit_code == 2
    assert "use engine" in result.output

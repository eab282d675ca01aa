"""The command ``plait bench kernels``: flags, tables, JSON, picture, exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait.bench.kernels as kernels
from plait.bench.kernels import Ceiling, KernelMeasurement, KernelReport, KernelSettings
from plait.cli.bench import bench_app
from plait.errors import ConfigError

GOOD = KernelMeasurement(
    kernel="Q4_1 1536x576",
    tokens=8,
    context=None,
    count=60,
    difference="",
    macs=7e6,
    num_bytes=5.5e5,
    runs_s=(3e-5, 5e-5, 7e-5),
    ceiling="int6",
    seconds=3e-5,
    median_s=5e-5,
    gmacs_per_s=233.3,
    gbytes_per_s=18.33,
    compute_share=0.494,
    read_share=0.278,
    bound="compute",
)
WRONG = KernelMeasurement("attention", 1, 2048, 30, "kv head 0 differs", 1e6, 1e6, (), "f32")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[KernelSettings]:
    """The settings that reach the benchmark, which is replaced by a ready report."""
    seen: list[KernelSettings] = []

    def run(path: Path, settings: KernelSettings, on_progress: Callable[[str], None]) -> KernelReport:
        seen.append(settings)
        on_progress("something")
        names = {"read": ("B/s", 66e9), "f32": ("MAC/s", 118e9), "int6": ("MAC/s", 472e9)}
        ceilings = {name: Ceiling.of_runs(name, u, [r / 2], [r]) for name, (u, r) in names.items()}
        rows = (GOOD, replace(GOOD, tokens=1)) if "good" in path.name else (GOOD, WRONG)
        machine: dict[str, object] = {"cpu": "Some CPU", "isa": "avx2", "num_compute_threads": 2}
        return KernelReport(
            path.stem, 5, settings, 1 << 27, 0.1, machine, ceilings, rows, ("Q8_0 9x8 x512: because",), 0.25
        )

    monkeypatch.setattr(kernels, "run_kernel_bench", run)
    return seen


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.gguf"
    path.write_bytes(b"12345")
    return str(path)


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"12345")
    return str(path)


def test_tables_by_default(seen: list[KernelSettings], good: str) -> None:
    result = CliRunner().invoke(bench_app, ["kernels", good])
    assert result.exit_code == 0, result.output
    assert seen == [KernelSettings()]
    for text in (
        "Some CPU",
        "66.0 GB/s",
        "236.0 GMAC/s",
        "472.0 GMAC/s",
        "Q4_1 1536x576 x8",
        "not timed: Q8_0 9x8 x512: because",
    ):
        assert text in result.output
    assert "NOT TO BE TRUSTED: other work kept up to 0.2 CPUs busy" in result.output
    row = next(line for line in result.output.splitlines() if "1536x576 x8" in line)
    assert row.split()[3:] == ["233.3", "140.0", "18.33", "49%", "28%", "int6"]


def test_a_wrong_kernel_is_named_and_fails_the_command(
    seen: list[KernelSettings], wrong: str, tmp_path: Path
) -> None:
    picture = tmp_path / "roof.svg"
    result = CliRunner().invoke(bench_app, ["kernels", wrong, "--json", "-", "--svg", str(picture)])
    assert result.exit_code == 1
    assert "wrong result, not timed: attention @2048: kv head 0 differs" in result.output
    row = next(line for line in result.output.splitlines() if line.strip().startswith("attention @2048"))
    assert row.split() == ["attention", "@2048", "wrong"]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["measurements"][1]["gmacs_per_s"] is None
    svg = picture.read_text()
    assert "Q4_1 1536x576 x8" in svg
    assert "attention" not in svg


def test_json_and_picture_files(seen: list[KernelSettings], good: str, tmp_path: Path) -> None:
    target, picture = tmp_path / "result.json", tmp_path / "roof.svg"
    result = CliRunner().invoke(bench_app, ["kernels", good, "--json", str(target), "--svg", str(picture)])
    assert result.exit_code == 0, result.output
    report = json.loads(target.read_text())
    assert (report["bench"], report["ceilings"]["read"]["together"]) == ("kernels", 66e9)
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize("flag", ["--json", "--svg"])
def test_a_file_that_cannot_be_written(
    seen: list[KernelSettings], good: str, tmp_path: Path, flag: str
) -> None:
    result = CliRunner().invoke(bench_app, ["kernels", good, flag, str(tmp_path / "none" / "x")])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(flag)
    assert "No such file" in str(result.exception)


def test_flags_reach_the_benchmark(seen: list[KernelSettings], good: str) -> None:
    flags = (
        "--tokens 1,4 --contexts 16,32 --prompts 64 --repeats 2 --threads 3 --isa scalar "
        "--kernels Q4_1,attention"
    )
    result = CliRunner().invoke(bench_app, ["kernels", good, *flags.split()])
    assert result.exit_code == 0, result.output
    assert seen == [KernelSettings((1, 4), (16, 32), (64,), 2, 3, "scalar", ("Q4_1", "attention"))]


def test_a_list_that_is_none_is_a_usage_error(seen: list[KernelSettings], good: str) -> None:
    result = CliRunner().invoke(bench_app, ["kernels", good, "--tokens", "1,many"])
    assert result.exit_code == 2
    assert not seen


def test_senseless_sizes_are_refused_before_a_model_is_pulled(seen: list[KernelSettings]) -> None:
    result = CliRunner().invoke(bench_app, ["kernels", "no-such-model", "--repeats", "0"])
    assert isinstance(result.exception, ConfigError)
    assert "--repeats must be" in str(result.exception)

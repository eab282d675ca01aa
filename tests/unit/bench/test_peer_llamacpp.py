"""benchmarks/peer_llamacpp.py without a peer: commands, parsing, ratios, errors."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import peer_llamacpp as peer
import peer_llamacpp_build as build
from peer_llamacpp import Round, Settings, Work
from peer_llamacpp_build import BenchmarkError

# What build 11434 wrote in tiny runs (on a busy machine: the numbers say nothing about its speed).
SAMPLES = Path(__file__).parent / "samples"
LLAMA_BENCH = (SAMPLES / "llama_bench.json").read_text(encoding="utf-8")
BATCHED_BENCH = (SAMPLES / "llama_batched_bench.jsonl").read_text(encoding="utf-8")
SETTINGS = Settings(
    model=Path("m.gguf"), num_threads=2, repeats=3, prompt=8, context=8, decode_tokens=2, batches=(1, 4)
)
PREFILL = Work("prefill", 1, "llama-bench")
SINGLE = Work("decode", 1, "llama-bench")
BATCH_1 = Work("decode", 1, "llama-batched-bench")
BATCH_4 = Work("decode", 4, "llama-batched-bench")


def plait_output(scale: float = 1.0) -> str:
    rows = [("prefill", 1, 1200.0), ("decode", 1, 300.0), ("decode", 4, 90.0)]
    measurements = [{"kind": k, "batch": b, "tokens_per_s": v * scale} for k, b, v in rows]
    return (
        "a table\n"
        + json.dumps({"bench": "step", "machine": {"cpu": "x"}, "measurements": measurements})
        + "\n"
    )


class FakeRun:
    """Stands for the three programs; plait is twice as fast each time it is asked."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.scale = 1.0

    def __call__(self, command: Sequence[str], timeout_s: float) -> str:
        name = Path(command[0]).name
        if name == "llama-bench":
            self.order.append("single")
            return LLAMA_BENCH
        if name == "llama-batched-bench":
            self.order.append("batched")
            return BATCHED_BENCH
        self.order.append("plait")
        self.scale *= 2
        return plait_output(self.scale / 2)


def hands(run: FakeRun | None = None) -> peer.Hands:
    """Memory is read at 41, 43, 45, ... GB/s."""
    rates = itertools.count(41e9, 2e9)
    return peer.Hands(run or FakeRun(), lambda num_threads: next(rates))


def test_llama_bench_is_read_by_its_median_sample() -> None:
    speeds = peer.parse_llama_bench(LLAMA_BENCH)
    assert speeds == pytest.approx({PREFILL: 8 / 0.526145977, SINGLE: 2 / 0.257389696})


def test_batched_bench_is_read_by_batch() -> None:
    assert peer.parse_batched_bench(BATCHED_BENCH) == pytest.approx(
        {BATCH_1: (1.422396 + 1.533712) / 2, BATCH_4: 8.657616}
    )


def test_plait_is_read_from_its_last_line() -> None:
    speeds, machine = peer.parse_plait(plait_output())
    assert speeds == {("prefill", 1): 1200.0, ("decode", 1): 300.0, ("decode", 4): 90.0}
    assert machine == {"cpu": "x"}


@pytest.mark.parametrize(
    "text", ["", "error: no model", "[{}]", '[{"n_prompt": 8, "n_gen": 0, "samples_ns": [0]}]']
)
def test_unknown_llama_bench_output_is_an_error(text: str) -> None:
    with pytest.raises(BenchmarkError, match="llama-bench: its output is not understood"):
        peer.parse_llama_bench(text)


@pytest.mark.parametrize("text", ['{"pl": 8}', "{broken"])
def test_unknown_batched_bench_output_is_an_error(text: str) -> None:
    with pytest.raises(BenchmarkError, match="llama-batched-bench: its output"):
        peer.parse_batched_bench(text)


@pytest.mark.parametrize("text", ["", "table only", '{"measurements": []}'])
def test_unknown_plait_output_is_an_error(text: str) -> None:
    with pytest.raises(BenchmarkError, match="plait bench step: its output"):
        peer.parse_plait(text)


def test_both_sides_get_the_same_work() -> None:
    single = peer.llama_bench_command(Path("/p"), SETTINGS)
    batched = peer.batched_bench_command(Path("/p"), SETTINGS)
    plait = peer.plait_command(SETTINGS)

    def value(command: list[str], flag: str) -> str:
        return command[command.index(flag) + 1]

    assert value(single, "-m") == value(batched, "-m") == plait[plait.index("step") + 1] == "m.gguf"
    assert (
        value(single, "-t")
        == value(batched, "-t")
        == value(batched, "-tb")
        == value(plait, "--threads")
        == "2"
    )
    assert value(single, "-p") == value(plait, "--prompts") == "8"
    assert value(single, "-n") == value(batched, "-ntg") == value(plait, "--decode-tokens") == "2"
    assert value(batched, "-npp") == value(plait, "--contexts") == "8"
    assert value(single, "-r") == value(plait, "--repeats") == "3"
    assert (value(batched, "-npl"), value(plait, "--batches")) == ("1,4,1,4,1,4", "1,4")
    assert value(batched, "-c") == str(4 * (8 + 2))


def test_plait_measures_batch_1_even_when_only_others_are_asked() -> None:
    assert peer.plait_batches(Settings(Path("m"), 2, batches=(32, 8))) == [1, 8, 32]


def test_rounds_alternate() -> None:
    run = FakeRun()
    for index in range(3):
        peer.run_round(index, Path("/p"), SETTINGS, hands(run))
    assert run.order == [*("single", "batched", "plait"), *("plait", "single", "batched"), *run.order[:3]]


def test_ratios_are_medians_of_the_rounds() -> None:
    run = FakeRun()
    rounds = [peer.run_round(index, Path("/p"), SETTINGS, hands(run)) for index in range(3)]
    rows = peer.compare(rounds, SETTINGS.works())
    assert [(row.kind, row.batch, row.tool) for row in rows] == [PREFILL, SINGLE, BATCH_1, BATCH_4]
    # plait has 1200, 2400, 4800; the peer the same each time
    peer_speed = 8 / 0.526145977
    assert (rows[0].plait, rows[0].peer) == pytest.approx((2400, peer_speed))
    assert (rows[0].ratio, rows[0].ratio_min, rows[0].ratio_max) == pytest.approx(
        (2400 / peer_speed, 1200 / peer_speed, 4800 / peer_speed)
    )
    assert (rows[3].plait, rows[3].peer, rows[3].ratio) == pytest.approx((180, 8.657616, 180 / 8.657616))


def test_the_table_shows_both_speeds_and_the_ratio() -> None:
    table = peer.format_table([peer.Row("decode", 32, "llama-batched-bench", 350.0, 175.0, 2.0, 1.9, 2.25)])
    for text in ("decode", " 32 ", "350.0", "175.0", "2.00x", "1.90 to 2.25"):
        assert text in table


def test_what_memory_gave_is_told_by_round() -> None:
    own = hands()
    rounds = [peer.run_round(index, Path("/p"), SETTINGS, own) for index in range(3)]
    told = peer.format_read_rates(rounds)
    assert "46.0 GB/s" in told
    assert "(42.0, 46.0, 50.0)" in told


def test_memory_is_really_read() -> None:
    assert 1e8 < peer.measure_read_rate(1) < 1e13


def test_the_ratio_is_taken_within_rounds() -> None:
    """A machine that slows down for one round slows both sides; the median ratio must not move."""
    rounds = [
        Round({("prefill", 1): 200.0 * speed}, {PREFILL: 100.0 * speed}, {}, (1e9,))
        for speed in (1.0, 0.1, 3.0, 0.5)
    ]
    (row,) = peer.compare(rounds, [PREFILL])
    assert (row.ratio, row.ratio_min, row.ratio_max) == pytest.approx((2, 2, 2))


def test_the_result_is_json() -> None:
    rounds = [peer.run_round(0, Path("/p"), SETTINGS, hands())]
    result = peer.to_json(rounds, [0.05], peer.compare(rounds, SETTINGS.works()), SETTINGS)
    again = json.loads(json.dumps(result))
    assert again["machine"] == {"cpu": "x"}
    assert again["settings"]["model"] == "m.gguf"
    assert again["rows"][3]["tool"] == "llama-batched-bench"
    assert len(again["rounds"][0]["peer"]) == 4
    assert again["rounds"][0]["other_work_cpus"] == 0.05
    assert again["rounds"][0]["read_bytes_per_s"] == [41e9, 43e9]
    assert again["is_trusted"]


def test_a_result_of_a_busy_machine_says_so() -> None:
    rounds = [peer.run_round(0, Path("/p"), SETTINGS, hands()) for _ in range(2)]
    assert not peer.to_json(rounds, [0.0, 1.5], peer.compare(rounds, SETTINGS.works()), SETTINGS)[
        "is_trusted"
    ]


def test_a_missing_measurement_is_an_error() -> None:
    settings = Settings(Path("m"), 2, batches=(1, 4, 32))
    with pytest.raises(BenchmarkError, match="llama-batched-bench reported nothing for decode, batch 32"):
        peer.run_round(0, Path("/p"), settings, hands())


def test_a_failing_program_is_an_error_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; print('hello'); sys.exit('no such model')"]
    with pytest.raises(BenchmarkError, match=r"exit code 1: no such model"):
        peer.run_tool(command, 60)


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(BenchmarkError, match="not done after 0 s"):
        peer.run_tool([sys.executable, "-c", "import time; time.sleep(60)"], 0.3)


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="No such file"):
        peer.run_tool([str(tmp_path / "llama-bench")], 60)


def test_a_folder_without_the_peer_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-bench").touch(0o755)
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    assert peer.main([str(model), "--peer", str(tmp_path)]) == 1
    assert f"no llama-batched-bench in {tmp_path / 'bin'}" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peer.main([str(tmp_path / "none.gguf"), "--peer", str(tmp_path)]) == 1
    assert "none.gguf" in capsys.readouterr().err


def test_a_missing_build_tool_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BenchmarkError, match="cmake is needed to build the peer"):
        build.build_peer(tmp_path / "peer")


def test_a_failing_build_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"build\.log.*out of memory"):
        build._run_logged([sys.executable, "-c", "import sys; sys.exit('out of memory')"], tmp_path)


def test_defaults_of_the_command_line(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    settings = peer.make_settings(peer.parse_arguments([str(model), "--threads", "3"]))
    assert settings == Settings(model, 3)
    assert (settings.rounds, settings.prompt, settings.context, settings.batches) == (5, 512, 128, (1, 8, 32))
    command = peer.batched_bench_command(Path("/p"), settings)
    assert command[command.index("-c") + 1] == str(32 * (128 + 64))


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--batches", "1,x"], ["--threads", "-1"]])
def test_senseless_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        peer.parse_arguments(arguments)
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err

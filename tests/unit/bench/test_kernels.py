"""plait bench kernels over made-up times: figures, shares, what is measured and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import plait.bench.kernels as kernels
from plait.bench.kernels import KernelMeasurement, KernelSettings, measure_kernels, run_kernel_bench
from plait.bench.machine import last_level_cache_bytes
from plait.engine.kernels import AttentionWork, KernelTiming
from plait.errors import ConfigError, ModelFileError
from plait.models import build_graph
from plait.weights.gguf import GgufFile
from plait.weights.hyperparameters import open_model
from plait.weights.loader import SEARCHING_ISAS
from tests.fakes.tiny_gguf import FFN, HIDDEN, VOCAB, write_tiny_llama

COLD = 1 << 20
SMALL = KernelSettings(tokens=(1, 8), contexts=(40,), prompts=(16,), repeats=3)


class FakeTimers:
    """Reads 10 GB/s, multiplies 100 GMAC/s; all threads do twice as much. Every unit takes ``unit_s``."""

    def __init__(self) -> None:
        self.unit_s = 1e-3
        self.difference_of = ""
        self.matrices: list[tuple[list[str], list[int]]] = []
        self.attentions: list[AttentionWork] = []
        self.num_ceilings = 0

    def read_rates(self, num_bytes: int, *, is_alone: bool, repeats: int) -> list[float]:
        assert num_bytes == COLD
        self.num_ceilings += 1
        best = 10e9 if is_alone else 20e9
        # The first round is disturbed throughout.
        return [best / 2, best / 3] if self.num_ceilings <= 2 else [best / 2, best]

    def mac_rates(self, unit: str, *, is_alone: bool, repeats: int) -> list[float]:
        best = {"f32": 30e9, "int8": 100e9, "int6": 150e9}[unit]
        return [best / 4, best if is_alone else 2 * best]

    def time_matrices(
        self,
        file: GgufFile,
        names: Sequence[str],
        cold_bytes: int,
        tokens: Sequence[int],
        repeats: int,
        form: str,
    ) -> list[KernelTiming]:
        assert repeats == 3
        assert form == "plain" or names == ["token_embd.weight"]
        self.matrices.append((list(names), list(tokens)))
        columns, rows = file.tensors[names[0]].shape
        num_bytes = file.tensors[names[0]].num_bytes
        return [self._timing(rows * columns * count, num_bytes, names[0]) for count in tokens]

    def time_attention(self, work: AttentionWork, cold_bytes: int, repeats: int) -> KernelTiming:
        self.attentions.append(work)
        return self._timing(1e6, 1e6, "attention")

    def _timing(self, macs: float, num_bytes: float, name: str) -> KernelTiming:
        if self.difference_of and self.difference_of in name:
            return KernelTiming(macs, num_bytes, (), "row 0 of token 0 is 1, the scalar kernel gives 2")
        return KernelTiming(macs, num_bytes, (2 * self.unit_s, self.unit_s, 4 * self.unit_s), "")


def measure(path: Path, timers: FakeTimers, settings: KernelSettings = SMALL) -> list[KernelMeasurement]:
    file = open_model(path)
    graph, hp = build_graph(file)
    work = (kernels.matrix_kinds(file, graph, "avx512vnni"), kernels.attention_works(graph, hp, settings))
    return list(measure_kernels(timers, file, work, COLD, settings)[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", "Q8_0")


def test_figures_come_from_the_fastest_run_and_the_best_ceilings(model: Path) -> None:
    row = measure(model, FakeTimers())[1]
    assert (row.kernel, row.tokens, row.context) == (f"Q8_0 {HIDDEN}x{HIDDEN}", 8, None)
    macs, num_bytes = HIDDEN * HIDDEN * 8, HIDDEN * HIDDEN / 32 * 34
    assert (row.macs, row.num_bytes) == (macs, num_bytes)
    assert row.seconds == 1e-3
    assert row.median_s == 2e-3
    assert row.gmacs_per_s == pytest.approx(macs / 1e-3 / 1e9)
    assert row.gbytes_per_s == pytest.approx(num_bytes / 1e-3 / 1e9)
    # 200 GMAC/s and 20 GB/s are the best of both rounds.
    assert row.compute_share == pytest.approx(macs / 1e-3 / 200e9)
    assert row.read_share == pytest.approx(num_bytes / 1e-3 / 20e9)
    assert row.runs_s == (2e-3, 1e-3, 4e-3)


def test_twice_the_time_is_half_the_speed(model: Path) -> None:
    timers = FakeTimers()
    fast = measure(model, timers)
    timers.unit_s *= 2
    for before, after in zip(fast, measure(model, timers), strict=True):
        for name in ("gmacs_per_s", "gbytes_per_s", "compute_share", "read_share"):
            assert getattr(after, name) == pytest.approx(getattr(before, name) / 2), name


def test_the_lower_ceiling_binds(model: Path) -> None:
    rows = {row.label: row for row in measure(model, FakeTimers())}
    # 0.94 multiply-adds per byte and token; from 200 GMAC/s / 20 GB/s = 10 on, compute is the limit.
    one = rows[f"Q8_0 {HIDDEN}x{HIDDEN} x1"]
    assert (one.bound, one.ceiling) == ("memory", "int8")
    many = {r.tokens: r.bound for r in measure(model, FakeTimers(), KernelSettings((8, 32), (40,), (16,), 3))}
    assert many[8] == "memory"
    assert many[32] == "compute"
    assert rows["attention @40"].ceiling == "f32"


@pytest.mark.parametrize(
    ("type_name", "ceiling"),
    [("Q4_K", "int6"), ("Q6_K", "int6"), ("Q8_0", "int8"), ("IQ4_XS", "int8"), ("F16", "f32")],
)
def test_each_type_has_the_ceiling_of_its_instructions(type_name: str, ceiling: str) -> None:
    assert kernels.compute_ceiling(type_name) == ceiling


def test_each_distinct_shape_is_measured_once(model: Path) -> None:
    timers = FakeTimers()
    rows = measure(model, timers, KernelSettings((1, 32, 33), (40, 80), (16,), 3))
    assert [row.label for row in rows] == [
        f"Q8_0 {HIDDEN}x{HIDDEN} x1",
        f"Q8_0 {HIDDEN}x{HIDDEN} x32",
        f"Q8_0 {HIDDEN}x{HIDDEN} x33",
        f"Q8_0 128x{HIDDEN} x1",
        f"Q8_0 128x{HIDDEN} x32",
        f"Q8_0 128x{HIDDEN} x33",
        # The engine gives the output matrix 32 tokens at most.
        f"Q8_0 {VOCAB}x{HIDDEN} x1",
        f"Q8_0 {VOCAB}x{HIDDEN} x32",
        # And searches it for 8.
        f"Q8_0 {VOCAB}x{HIDDEN} search x1",
        "attention @40",
        "attention @80",
        "attention prompt 16",
    ]
    assert FFN == HIDDEN, "gate, up and down share the shape of the query matrix"
    assert [row.count for row in rows] == [10] * 3 + [4] * 3 + [1] * 3 + [2] * 3
    # As many of them as it takes to fill the working set; here all.
    assert [len(names) for names, _ in timers.matrices] == [10, 4, 1, 1]
    assert [(w.context, w.num_queries, w.group) for w in timers.attentions] == [
        (40, 1, 2),
        (80, 1, 2),
        (16, 16, 2),
    ]


def test_a_wrong_kernel_gets_no_figures(model: Path) -> None:
    timers = FakeTimers()
    timers.difference_of = "attn_k"
    for row in measure(model, timers):
        is_wrong = row.kernel == f"Q8_0 128x{HIDDEN}"
        assert bool(row.difference) == is_wrong
        figures = (row.seconds, row.median_s, row.gmacs_per_s, row.gbytes_per_s, row.compute_share, row.bound)
        assert all((figure is None) == is_wrong for figure in figures)
        assert (row.runs_s == ()) == is_wrong


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (KernelSettings(tokens=()), "--tokens is empty"),
        (KernelSettings(tokens=(0,)), "--tokens must be from 1 to 65536, not 0"),
        (KernelSettings(contexts=(-1,)), "--contexts must be 1 or more, not -1"),
        (KernelSettings(prompts=(0,)), "--prompts must be from 1 to 65536, not 0"),
        (KernelSettings(repeats=0), "--repeats must be from 1 to 1000, not 0"),
        (KernelSettings(tokens=(1, 70_000)), "--tokens must be from 1 to 65536, not 70000"),
        (KernelSettings(prompts=(70_000,)), "--prompts must be from 1 to 65536, not 70000"),
        (KernelSettings(repeats=1 << 40), "--repeats must be from 1 to 1000, not"),
        (KernelSettings(num_compute_threads=0), "1 to 1024 threads"),
        (KernelSettings(isa="avx9"), "--isa avx9.*scalar"),
    ],
)
def test_senseless_settings_are_refused_before_the_model_is_read(
    settings: KernelSettings, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_kernel_bench(Path("no-such-file.gguf"), settings)


def test_a_filter_that_fits_nothing_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="no kernel named Q3_K"):
        run_kernel_bench(model, KernelSettings(kernels=("Q3_K",)))


def test_sizes_that_nothing_is_timed_at_are_told(model: Path) -> None:
    settings = KernelSettings(tokens=(1, 33, 512), kernels=(str(VOCAB),))
    file = open_model(model)
    graph, _ = build_graph(file)
    output = [kind for kind in kernels.matrix_kinds(file, graph, "avx512vnni") if settings.wants(kind.kernel)]
    lines = kernels.not_offered(output, settings.tokens)
    assert lines[0].startswith(
        f"Q8_0 {VOCAB}x{HIDDEN} x33,512: the output matrix is multiplied with 32 tokens"
    )
    assert lines[1].startswith(
        f"Q8_0 {VOCAB}x{HIDDEN} search x33,512: the output matrix is searched for 8 tokens"
    )
    assert kernels.not_offered(output, (1, 8)) == ()
    assert [kind.form for kind in kernels.matrix_kinds(file, graph, "avx2")] == ["plain"] * 3
    with pytest.raises(ConfigError, match=r"nothing is left to time: .*x512: the output matrix"):
        run_kernel_bench(model, replace(settings, tokens=(512,)))


def test_what_does_not_fit_in_memory_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="half may be used; use smaller contexts"):
        run_kernel_bench(model, KernelSettings(contexts=(1 << 31,)))


def test_large_products_count_as_memory(model: Path) -> None:
    file = open_model(model)
    graph, _ = build_graph(file)
    kinds = kernels.matrix_kinds(file, graph, "avx512vnni")
    kernels.check_fits((kinds, []), 1024, COLD, 1 << 30)
    with pytest.raises(ConfigError, match="are needed"):
        kernels.check_fits((kinds, []), 1 << 20, COLD, 1 << 30)


def test_a_bad_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"bad\.gguf"):
        run_kernel_bench(path, SMALL)


@pytest.mark.parametrize(
    ("cache", "memory", "expected"),
    [(32 << 20, 16 << 30, 128 << 20), (1 << 20, 16 << 30, 64 << 20), (1 << 30, 8 << 30, 2 << 30)],
)
def test_the_working_set_is_beyond_the_caches(cache: int, memory: int, expected: int) -> None:
    assert kernels.cold_working_set(cache, memory) == expected


def test_a_shared_cache_is_counted_once(tmp_path: Path) -> None:
    caches = {0: ("0-1", "8192K"), 1: ("0-1", "8192K"), 2: ("2-3", "8M")}
    for cpu, (shared, size) in caches.items():
        for index, level, own, own_size in ((0, 1, str(cpu), "32K"), (3, 3, shared, size)):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "shared_cpu_list").write_text(own + "\n")
            (folder / "size").write_text(own_size + "\n")
    assert last_level_cache_bytes(tmp_path, cpus=[0, 1, 2]) == 16 << 20
    assert last_level_cache_bytes(tmp_path, cpus=[7]) == 64 << 20


def test_a_real_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of a small model really runs: figures agree with their own runs and ceilings."""
    monkeypatch.setattr(kernels, "cold_working_set", lambda cache, memory: 400_000)
    settings = KernelSettings((1, 9), (40, 600), (20,), repeats=2, num_compute_threads=2)
    told: list[str] = []
    report = run_kernel_bench(model, settings, told.append)
    assert told[0] == "ceilings"
    assert told[-1] == "ceilings again"
    assert not report.has_wrong_kernels
    is_searched = report.machine["isa"] in SEARCHING_ISAS
    assert len(report.measurements) == 3 * 2 + is_searched + 3
    assert set(report.ceilings) == {"read", "f32", "int8", "int6"}
    for ceiling in report.ceilings.values():
        assert ceiling.alone == max(ceiling.runs_alone)
        assert ceiling.together == max(ceiling.runs_together)
        assert min(*ceiling.runs_alone, *ceiling.runs_together) > 0
        assert len(set(ceiling.runs_together)) > 1, "measured, not set"
    for row in report.measurements:
        assert row.difference == ""
        assert len(row.runs_s) == 2
        assert row.seconds == min(row.runs_s)
        assert row.seconds > 0
        assert row.gmacs_per_s == pytest.approx(row.macs / row.seconds / 1e9)
        ceiling = report.ceilings[row.ceiling]
        assert row.compute_share == pytest.approx(row.macs / row.seconds / ceiling.together)
    data = json.loads(json.dumps(report.to_json()))
    assert (data["bench"], data["model"], data["cold_bytes"]) == ("kernels", "tiny", 400_000)
    assert data["machine"]["num_compute_threads"] == 2
    assert data["measurements"][0]["kernel"] == f"Q8_0 {HIDDEN}x{HIDDEN}"
    assert data["ceilings"]["read"]["unit"] == "B/s"


def test_a_real_run_of_the_scalar_kernels(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "cold_working_set", lambda cache, memory: 100_000)
    settings = KernelSettings(
        (1,), (40,), (16,), repeats=1, num_compute_threads=1, isa="scalar", kernels=("128x", "attention")
    )
    report = run_kernel_bench(model, settings)
    assert report.machine["isa"] == "scalar"
    assert [row.kernel for row in report.measurements] == [f"Q8_0 128x{HIDDEN}", "attention", "attention"]
    assert all(row.gmacs_per_s and row.gmacs_per_s > 0 for row in report.measurements)

"""``plait bench kernels``: each kernel at a model's shapes, as a share of what the machine can do at best.

First the ceilings are measured: how fast threads read memory, and how fast they multiply and add in registers with
the instructions that the kernels use. Then each matrix kernel at each distinct type and shape of the model, and
attention; then the ceilings once more, and the better of both counts, so that somebody else's work at the wrong
moment does not flatter the kernels.

A kernel is held against the scalar one, bit for bit, before it is timed; one that differs gets no figures.

Figures come from the fastest run, as the ceilings do: they say what a kernel can do, not what a busy machine made
of it. The median is given beside it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from plait.bench.bounds import check_sizes
from plait.bench.machine import describe_machine, last_level_cache_bytes, load_average
from plait.bench.other_work import MAX_OTHER_CPUS, OtherWork
from plait.config import EngineConfig, Machine, format_bytes, read_machine
from plait.engine.isa import choose_isa
from plait.engine.kernels import (
    AttentionWork,
    KernelTimers,
    KernelTiming,
    MatrixForm,
    can_be_searched,
    supported_isas,
)
from plait.errors import ConfigError
from plait.models import build_graph
from plait.models.hyperparameters import Hyperparameters
from plait.plan import Graph
from plait.weights.gguf import GgufFile
from plait.weights.hyperparameters import open_model
from plait.weights.loader import FLOAT_TYPES, load_vectors

SCHEMA_VERSION = 1
MAX_THREADS = 1024
MAX_TOKENS = 1 << 16
MAX_REPEATS = 1000
LOGIT_ROWS = 32
"""The engine multiplies the output matrix with so many tokens at most."""
SEARCHED_ROWS = 8
"""Of so many greedy tokens at most it looks for the largest logit without all of the output matrix."""

# The working set of everything that is to come from memory.
_CACHES = 4
_MIN_COLD_BYTES = 64 << 20
_MAX_MEMORY_SHARE = 4

_MAC_UNITS = ("f32", "int8", "int6")
# Of these the codes fill a byte; the others are so small that their products can be added in int16 first.
_WIDE_TYPES = ("Q8_0", "IQ4_NL", "IQ4_XS")
# The ceilings are short: more runs find a quiet moment.
_CEILING_RUNS = 4


@dataclass(frozen=True, slots=True)
class KernelSettings:
    tokens: tuple[int, ...] = (1, 8, 32, 512)
    """Tokens of each matrix product."""
    contexts: tuple[int, ...] = (128, 2048, 8000)
    """Positions that one query sees, for attention while decoding."""
    prompts: tuple[int, ...] = (512,)
    """Prompt lengths, for attention while a prompt is read."""
    repeats: int = 15
    """Timed runs of each measurement."""
    num_compute_threads: int | None = None
    """None: the core budget."""
    isa: str | None = None
    """None: the one that an engine would use."""
    kernels: tuple[str, ...] = ()
    """Only kernels whose name contains one of these; empty: all."""

    def check(self) -> None:
        """Raises ConfigError when a size makes no sense."""
        check_sizes("kernels", "--tokens", self.tokens, 1, MAX_TOKENS)
        check_sizes("kernels", "--contexts", self.contexts, 1, None)
        check_sizes("kernels", "--prompts", self.prompts, 1, MAX_TOKENS)
        check_sizes("kernels", "--repeats", self.repeats, 1, MAX_REPEATS)
        if self.num_compute_threads is not None and not 1 <= self.num_compute_threads <= MAX_THREADS:
            raise ConfigError(
                f"bench kernels: give 1 to {MAX_THREADS} threads, not {self.num_compute_threads}"
            )

    def wants(self, name: str) -> bool:
        return not self.kernels or any(part.lower() in name.lower() for part in self.kernels)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate that no kernel can pass: the best of all runs."""

    name: str
    """"read", "f32", "int8" or "int6"."""
    unit: str
    """"B/s" or "MAC/s"."""
    alone: float
    """Of one thread."""
    together: float
    """Of all threads."""
    runs_alone: tuple[float, ...]
    runs_together: tuple[float, ...]

    @classmethod
    def of_runs(cls, name: str, unit: str, alone: Sequence[float], together: Sequence[float]) -> Ceiling:
        return cls(name, unit, max(alone), max(together), tuple(alone), tuple(together))


@dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """One kernel at one size. The figures are None when its result is wrong."""

    kernel: str
    """For example "Q4_1 1536x576" (rows x columns) or "attention"."""
    tokens: int
    context: int | None
    """Positions; None for matrices."""
    count: int
    """How many of its kind a step of the model runs."""
    difference: str
    """How its result differs from the scalar kernel's; "" when it is right."""
    macs: float
    num_bytes: float
    """Weights, or K and V, each once."""
    runs_s: tuple[float, ...]
    ceiling: str
    """The ceiling of its multiply-adds."""
    seconds: float | None = None
    """Of the fastest run."""
    median_s: float | None = None
    gmacs_per_s: float | None = None
    gbytes_per_s: float | None = None
    compute_share: float | None = None
    """Of the multiply-adds that all threads can do."""
    read_share: float | None = None
    """Of the bytes that all threads can read."""
    bound: str | None = None
    """"memory" or "compute": which ceiling is the lower one for this work."""

    @property
    def label(self) -> str:
        if self.context is None:
            return f"{self.kernel} x{self.tokens}"
        if self.tokens == 1:
            return f"{self.kernel} @{self.context}"
        return f"{self.kernel} prompt {self.tokens}"


@dataclass(frozen=True, slots=True)
class KernelReport:
    model: str
    model_bytes: int
    settings: KernelSettings
    cold_bytes: int
    """Working set of what is read from memory."""
    load_before: float
    machine: dict[str, object]
    ceilings: dict[str, Ceiling]
    measurements: tuple[KernelMeasurement, ...]
    not_offered: tuple[str, ...]
    """What was asked for and not timed, and why: a sentence each."""
    other_cpus: float
    """CPUs that others kept busy on average while we measured."""

    @property
    def has_wrong_kernels(self) -> bool:
        return any(row.difference for row in self.measurements)

    def to_json(self) -> dict[str, object]:
        return {
            "bench": "kernels",
            "schema_version": SCHEMA_VERSION,
            "is_trusted": self.other_cpus <= MAX_OTHER_CPUS,
            **asdict(self),
        }


class Timers(Protocol):
    """What is asked of ``KernelTimers``; tests give made-up times."""

    def read_rates(self, num_bytes: int, *, is_alone: bool, repeats: int) -> list[float]: ...
    def mac_rates(self, unit: str, *, is_alone: bool, repeats: int) -> list[float]: ...
    def time_matrices(
        self,
        file: GgufFile,
        names: Sequence[str],
        cold_bytes: int,
        tokens: Sequence[int],
        repeats: int,
        form: MatrixForm,
    ) -> list[KernelTiming]: ...
    def time_attention(self, work: AttentionWork, cold_bytes: int, repeats: int) -> KernelTiming: ...


@dataclass(slots=True)
class MatrixKind:
    """Matrices of one type and shape, which one kernel serves."""

    type: str
    rows: int
    cols: int
    is_output: bool
    """The output matrix: multiplied with LOGIT_ROWS tokens at most."""
    tensor_bytes: int
    form: MatrixForm = "plain"
    names: list[str] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        purpose = " search" if self.form == "coarse" else ""
        return f"{self.type} {self.rows}x{self.cols}{purpose}"

    @property
    def max_tokens(self) -> int:
        return SEARCHED_ROWS if self.form == "coarse" else LOGIT_ROWS if self.is_output else sys.maxsize

    def offered(self, tokens: Sequence[int]) -> list[int]:
        """Those of ``tokens`` that the engine multiplies it with."""
        return [count for count in tokens if count <= self.max_tokens]


def run_kernel_bench(
    model_path: Path, settings: KernelSettings, on_progress: Callable[[str], None] = lambda _: None
) -> KernelReport:
    """Measures the kernels at the shapes of ``model_path``. Blocks for all of that.

    ``on_progress`` is told what is measured next.

    Raises:
        ConfigError: a setting makes no sense, the instruction set cannot run here, the sizes do not fit in
            memory or no kernel has such a name at such sizes.
        ModelFileError: the model cannot be read.
    """
    settings.check()
    isa = _isa_of(settings)
    load_before = load_average()
    machine = read_machine()
    num_threads = settings.num_compute_threads or machine.num_usable_cores
    file = open_model(model_path)
    graph, hp = build_graph(file, load_vectors(file, ("rope_freqs.weight",)))
    cold_bytes = _cold_bytes(machine)
    kinds = [kind for kind in matrix_kinds(file, graph, isa) if settings.wants(kind.kernel)]
    works = attention_works(graph, hp, settings)
    if not kinds and not works:
        raise ConfigError(f"bench kernels: the model has no kernel named {', '.join(settings.kernels)}")
    left_out = not_offered(kinds, settings.tokens)
    kinds = [kind for kind in kinds if kind.offered(settings.tokens)]
    if not kinds and not works:
        raise ConfigError(f"bench kernels: nothing is left to time: {'; '.join(left_out)}")
    check_fits((kinds, works), max(settings.tokens), cold_bytes, machine.memory_bytes)
    timers = KernelTimers(isa, num_threads, machine.cpus_to_pin(num_threads))
    others = OtherWork()
    ceilings, measurements = measure_kernels(timers, file, (kinds, works), cold_bytes, settings, on_progress)
    return KernelReport(
        model=model_path.stem,
        model_bytes=model_path.stat().st_size,
        settings=settings,
        cold_bytes=cold_bytes,
        load_before=load_before,
        machine=describe_machine(isa=isa, num_compute_threads=num_threads),
        ceilings=ceilings,
        measurements=measurements,
        not_offered=left_out,
        other_cpus=others.num_cpus(),
    )


def measure_read_rate(num_threads: int, repeats: int = 5) -> float:
    """Bytes per second that all threads together read from memory, at best: the ceiling "read"."""
    machine = read_machine()
    timers = KernelTimers(choose_isa()[0], num_threads, machine.cpus_to_pin(num_threads))
    return max(timers.read_rates(_cold_bytes(machine), is_alone=False, repeats=repeats))


def _cold_bytes(machine: Machine) -> int:
    return cold_working_set(last_level_cache_bytes(cpus=machine.cpus), machine.memory_bytes)


def _isa_of(settings: KernelSettings) -> str:
    if settings.isa is None:
        return choose_isa()[0]
    names = supported_isas()
    if settings.isa not in names:
        raise ConfigError(
            f"bench kernels: --isa {settings.isa}: not an instruction set that runs here; "
            f"use one of {', '.join(names)}"
        )
    return settings.isa


def cold_working_set(cache_bytes: int, memory_bytes: int) -> int:
    """Well beyond the last-level caches, but no large part of the memory."""
    return min(max(_CACHES * cache_bytes, _MIN_COLD_BYTES), memory_bytes // _MAX_MEMORY_SHARE)


def matrix_kinds(file: GgufFile, graph: Graph, isa: str) -> list[MatrixKind]:
    """The distinct (type, rows, columns) of the matrices that a step multiplies with, in the graph's order; an output
    matrix that is searched twice, since a search reads a part of it.
    """
    kinds: dict[tuple[str, int, int, bool, MatrixForm], MatrixKind] = {}
    for node in graph:
        if node.op not in ("matmul", "logits"):
            continue
        (name,) = node.weights
        tensor = file.tensors[name]
        cols, rows = tensor.shape
        is_output = node.op == "logits"
        forms: tuple[MatrixForm, ...] = ("plain",)
        if is_output and not node.attrs["softcap"] and can_be_searched(file, name, isa):
            forms = ("apart", "coarse")
        for form in forms:
            key = (tensor.type, rows, cols, is_output, form)
            kind = kinds.setdefault(
                key, MatrixKind(tensor.type, rows, cols, is_output, tensor_bytes=tensor.num_bytes, form=form)
            )
            if name not in kind.names:
                kind.names.append(name)
    return list(kinds.values())


def not_offered(kinds: Sequence[MatrixKind], tokens: Sequence[int]) -> tuple[str, ...]:
    """A sentence for each kernel that has no figures at some of ``tokens``."""
    offers = ((kind, set(tokens) - set(kind.offered(tokens))) for kind in kinds)
    return tuple(
        f"{kind.kernel} x{','.join(map(str, sorted(missing)))}: the output matrix is "
        f"{'searched for' if kind.form == 'coarse' else 'multiplied with'} {kind.max_tokens} tokens at most at a time"
        for kind, missing in offers
        if missing
    )


def attention_works(
    graph: Graph, hp: Hyperparameters, settings: KernelSettings
) -> list[tuple[int, AttentionWork]]:
    """(layers, work) for each distinct attention of the model, context and prompt."""
    layers: dict[tuple[int, float, float], int] = {}
    for node in graph:
        if node.op == "attention":
            window, scale, softcap = (node.attrs[name] or 0 for name in ("window", "scale", "softcap"))
            key = (int(window), float(scale), float(softcap))
            layers[key] = layers.get(key, 0) + 1
    shape = hp.shape
    sizes = [(context, 1) for context in settings.contexts] + [
        (length, length) for length in settings.prompts
    ]
    works = []
    for (window, scale, softcap), count in layers.items():
        for context, num_queries in sizes:
            work = AttentionWork(
                num_layers=count,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                block_tokens=EngineConfig().block_tokens,
                group=shape.num_heads // shape.num_kv_heads,
                context=context,
                num_queries=num_queries,
                window=window,
                scale=scale,
                softcap=softcap,
            )
            if settings.wants(attention_name(work)):
                works.append((count, work))
    return works


def attention_name(work: AttentionWork) -> str:
    return f"attention w{work.window}" if work.window else "attention"


def check_fits(
    work: tuple[Sequence[MatrixKind], Sequence[tuple[int, AttentionWork]]],
    max_tokens: int,
    cold_bytes: int,
    memory_bytes: int,
) -> None:
    """Raises ConfigError when the largest working set does not fit in half of the memory."""
    kinds, works = work
    needs = [cold_bytes]
    for kind in kinds:
        num_tokens = min(max_tokens, kind.max_tokens)
        # Copies of the weights; activations in both forms; the float32 results that are checked.
        rows = num_tokens * (6 * kind.cols + 4 * kind.rows)
        needs.append(max(cold_bytes, kind.tensor_bytes) + kind.tensor_bytes + rows)
    for _, attention in works:
        head = attention.num_kv_heads * attention.head_dim
        # float16 K and V; float32 queries and results, and results once more.
        kv = 4 * attention.context * head
        needs.append(max(cold_bytes, kv) + kv + 12 * attention.num_queries * attention.group * head)
    need = max(needs)
    if need > memory_bytes // 2:
        raise ConfigError(
            f"bench kernels: {format_bytes(need)} are needed and {format_bytes(memory_bytes)} are free, of which "
            "half may be used; use smaller contexts or prompts"
        )


def measure_kernels(
    timers: Timers,
    file: GgufFile,
    work: tuple[Sequence[MatrixKind], Sequence[tuple[int, AttentionWork]]],
    cold_bytes: int,
    settings: KernelSettings,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Ceiling], tuple[KernelMeasurement, ...]]:
    """The ceilings, and all kernels held against them."""
    on_progress("ceilings")
    first = measure_ceilings(timers, cold_bytes, settings.repeats)
    rows: list[tuple[str, int, int | None, int, str, KernelTiming]] = []
    kinds, works = work
    for kind in kinds:
        on_progress(kind.kernel)
        tokens = kind.offered(settings.tokens)
        names = kind.names[: max(1, -(-cold_bytes // kind.tensor_bytes))]
        timings = timers.time_matrices(file, names, cold_bytes, tokens, settings.repeats, kind.form)
        for num_tokens, timing in zip(tokens, timings, strict=True):
            rows.append((kind.kernel, num_tokens, None, len(kind.names), compute_ceiling(kind.type), timing))
    for count, attention in works:
        name = attention_name(attention)
        on_progress(f"{name} over {attention.context}")
        timing = timers.time_attention(attention, cold_bytes, settings.repeats)
        rows.append((name, attention.num_queries, attention.context, count, "f32", timing))
    on_progress("ceilings again")
    second = measure_ceilings(timers, cold_bytes, settings.repeats)
    ceilings = {
        name: Ceiling.of_runs(
            name,
            first[name].unit,
            [*first[name].runs_alone, *second[name].runs_alone],
            [*first[name].runs_together, *second[name].runs_together],
        )
        for name in first
    }
    return ceilings, tuple(_measurement(*row, ceilings) for row in rows)


def measure_ceilings(timers: Timers, cold_bytes: int, repeats: int) -> dict[str, Ceiling]:
    """By name; each alone and with all threads."""
    read = [timers.read_rates(cold_bytes, is_alone=is_alone, repeats=repeats) for is_alone in (True, False)]
    ceilings = {"read": Ceiling.of_runs("read", "B/s", *read)}
    for unit in _MAC_UNITS:
        macs = [
            timers.mac_rates(unit, is_alone=is_alone, repeats=_CEILING_RUNS * repeats)
            for is_alone in (True, False)
        ]
        ceilings[unit] = Ceiling.of_runs(unit, "MAC/s", *macs)
    return ceilings


def compute_ceiling(type_name: str) -> str:
    """The ceiling of the multiply-adds of a weight type."""
    if type_name in FLOAT_TYPES:
        return "f32"
    return "int8" if type_name in _WIDE_TYPES else "int6"


def _measurement(
    kernel: str,
    tokens: int,
    context: int | None,
    count: int,
    ceiling: str,
    timing: KernelTiming,
    ceilings: dict[str, Ceiling],
) -> KernelMeasurement:
    base = (kernel, tokens, context, count, timing.difference, timing.macs, timing.num_bytes)
    if timing.difference:
        return KernelMeasurement(*base, (), ceiling)
    seconds = min(timing.runs_s)
    read_s = timing.num_bytes / ceilings["read"].together
    compute_s = timing.macs / ceilings[ceiling].together
    return KernelMeasurement(
        *base,
        timing.runs_s,
        ceiling,
        seconds=seconds,
        median_s=statistics.median(timing.runs_s),
        gmacs_per_s=timing.macs / seconds / 1e9,
        gbytes_per_s=timing.num_bytes / seconds / 1e9,
        compute_share=compute_s / seconds,
        read_share=read_s / seconds,
        bound="memory" if read_s > compute_s else "compute",
    )

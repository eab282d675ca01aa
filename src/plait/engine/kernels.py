"""The kernels alone, without a model that runs: timers and the ceilings of the machine, for benchmarks.

A thin front of ``plait._native``; nothing here is used by an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from plait import _native
from plait.errors import ConfigError, ModelFileError, PlaitError
from plait.weights.gguf import GgufFile
from plait.weights.loader import SEARCHING_ISAS


class KernelTiming(msgspec.Struct, frozen=True):
    """How long one unit of work takes: a product of a whole matrix, or one layer's attention of one sequence."""

    macs: float
    """Multiply-adds of a unit."""
    num_bytes: float
    """Weights, or K and V, that a unit reads from memory."""
    runs_s: tuple[float, ...]
    """Seconds of a unit, by run. Empty when the kernel is wrong."""
    difference: str
    """How the result differs from the scalar kernel's; "" when it does not."""


MatrixForm = Literal["plain", "apart", "coarse"]
"""How a matrix is packed: as most; as an output matrix that is searched; as what the search reads of that."""


def can_be_searched(file: GgufFile, name: str, isa: str) -> bool:
    """Whether an output matrix is packed so that the largest of its products can be found without reading it all."""
    plain, searched = (_native.Weights.matrix_bytes(file.native, name, form) for form in (False, True))
    return isa in SEARCHING_ISAS and plain != searched


class AttentionWork(msgspec.Struct, frozen=True):
    """Queries at the end of sequences of ``context`` positions."""

    num_layers: int
    """Of the model; so many at most are held at a time."""
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    group: int
    """Query heads of one kv head."""
    context: int
    num_queries: int
    window: int
    scale: float
    softcap: float


def supported_isas() -> list[str]:
    """Instruction sets that can run here; the widest is the last."""
    return _native.supported_isas()


class KernelTimers:
    """Times kernels of one instruction set with a team of threads. For one thread at a time.

    Every method blocks while it measures.
    """

    def __init__(self, isa: str, num_threads: int, cpus: Sequence[int]) -> None:
        """``cpus``: where the threads are pinned; empty: not pinned.

        Raises:
            ConfigError: ``isa`` cannot run here.
        """
        try:
            self._rig = _native.KernelRig(isa, num_threads, cpus)
        except _native.NativeError as error:
            raise ConfigError(str(error.args[1])) from None

    def read_rates(self, num_bytes: int, *, is_alone: bool, repeats: int) -> list[float]:
        """Bytes per second that one or all threads read from memory, by run."""
        try:
            return self._rig.read_rates(num_bytes, is_alone, repeats)
        except _native.NativeError as error:
            raise PlaitError(str(error.args[1])) from None

    def mac_rates(self, unit: str, *, is_alone: bool, repeats: int) -> list[float]:
        """Multiply-adds per second in registers, by run: "f32", "int8" or "int6"."""
        return self._rig.mac_rates(unit, is_alone, repeats)

    def time_matrices(
        self,
        file: GgufFile,
        names: Sequence[str],
        cold_bytes: int,
        tokens: Sequence[int],
        repeats: int,
        form: MatrixForm = "plain",
    ) -> list[KernelTiming]:
        """Times the products of matrices of one type, shape and form, for each number of ``tokens``.

        Copies of the matrices that take ``cold_bytes`` are walked in turn, so that each is read from memory.

        Raises:
            ModelFileError: the type or shape cannot be packed; the message names a tensor.
        """
        try:
            timer = _native.MatmulTimer(self._rig, file.native, names, cold_bytes, form)
        except _native.NativeError as error:
            raise ModelFileError(f"{file.path}: {error.args[1]}") from None
        columns, rows = file.tensors[names[0]].shape
        timings = []
        for num_tokens in tokens:
            timing = timer.run(num_tokens, repeats)
            macs = float(rows * columns * num_tokens)
            timings.append(KernelTiming(macs, timer.matrix_bytes, tuple(timing.seconds), timing.difference))
        return timings

    def time_attention(self, work: AttentionWork, cold_bytes: int, repeats: int) -> KernelTiming:
        """Times attention over KV that takes about ``cold_bytes``.

        Raises:
            PlaitError: the kernels do not take such sizes.
        """
        layout = _native.KvLayout(work.num_layers, work.num_kv_heads, work.head_dim, work.block_tokens)
        try:
            timer = _native.AttentionTimer(
                self._rig,
                layout,
                work.group,
                work.context,
                work.num_queries,
                work.window,
                work.scale,
                work.softcap,
                cold_bytes,
            )
        except _native.NativeError as error:
            raise PlaitError(f"attention over {work.context} positions: {error.args[1]}") from None
        timing = timer.run(repeats)
        return KernelTiming(timer.macs, timer.kv_bytes, tuple(timing.seconds), timing.difference)

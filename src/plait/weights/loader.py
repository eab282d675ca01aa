"""Loads the tensors of a model into native packed weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plait import _native
from plait.errors import ModelFileError
from plait.weights.gguf import GgufFile

_FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Native weights and where each tensor is in them."""

    native: _native.Weights
    matrices: dict[str, int]
    vectors: dict[str, int]
    is_float: dict[str, bool]
    """By matrix: True when its products read float32 activations."""


def load_vectors(file: GgufFile, names: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Those of ``names`` that the file has, as float32 values."""
    native = _native.Weights(0)
    return {
        name: tuple(native.vector_values(native.add_vector(file.native, name)))
        for name in names
        if name in file.tensors
    }


def load_weights(
    file: GgufFile, matrices: Iterable[str], vectors: Iterable[str], *, num_threads: int
) -> LoadedWeights:
    """Packs ``matrices`` one by one for the kernels and copies ``vectors`` as float32.

    A tensor's pages are dropped from the page cache's mapping as soon as it is packed, so that memory never holds
    the model twice. Releases the GIL while it packs.

    Raises:
        ModelFileError: a tensor's type or shape cannot be packed; the message names it.
    """
    matrices = list(dict.fromkeys(matrices))
    try:
        native = _native.Weights(sum(_native.Weights.packed_bytes(file.native, name) for name in matrices))
        return LoadedWeights(
            native=native,
            matrices={name: native.add_matrix(file.native, name, num_threads) for name in matrices},
            vectors={name: native.add_vector(file.native, name) for name in dict.fromkeys(vectors)},
            is_float={name: file.tensors[name].type in _FLOAT_TYPES for name in matrices},
        )
    except _native.NativeError as error:
        raise ModelFileError(f"{file.path}: {error.args[1]}") from None

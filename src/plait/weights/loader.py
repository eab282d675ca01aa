"""Loads the tensors of a model into native packed weights: from its packed file, or by packing them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from plait import _native
from plait.errors import ModelFileError
from plait.weights.cache_folder import CacheError
from plait.weights.gguf import GgufFile
from plait.weights.packed import CacheSettings, PackedTensors, open_packed

_log = logging.getLogger(__name__)

FLOAT_TYPES = ("F32", "F16", "BF16")

SEARCHING_ISAS = ("avx512vnni",)
"""Instruction sets whose kernels multiply a matrix that is packed to be searched as fast as one that is not. With AVX2
all logits of 32 tokens would take a tenth to a third of a step longer."""


class LoadedWeights(msgspec.Struct, frozen=True):
    """Native weights and where each tensor is in them."""

    native: _native.Weights
    matrices: dict[str, int]
    vectors: dict[str, int]
    is_float: dict[str, bool]
    """By matrix: True when its products read float32 activations."""
    was_packed: bool
    """They were packed by this call; False: found in the cache."""
    is_shared: bool
    """Their memory is that of a packed file, which other processes share."""
    num_huge_bytes: int
    """How much of the memory of a packed file is in huge pages; 0 for weights that were packed into memory."""


def load_vectors(file: GgufFile, names: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Those of ``names`` that the file has, as float32 values."""
    native = _native.Weights(0)
    return {
        name: tuple(native.vector_values(native.add_vector(file.native, name)))
        for name in names
        if name in file.tensors
    }


def load_weights(
    file: GgufFile,
    matrices: Iterable[str],
    vectors: Iterable[str],
    *,
    searched: Iterable[str] = (),
    isa: str,
    num_threads: int,
    cache: CacheSettings | None = None,
) -> LoadedWeights:
    """Maps the packed file of the model when ``cache`` has it, else packs tensor by tensor.

    Packed memory has the order of ``matrices``; of a matrix that is named twice the last place counts, so that a
    step reads a shared embedding table last, as its output matrix. Matrices in ``searched``, of which some requests
    want the largest product only, are packed for that where type and instruction set allow it. A cache that cannot be
    used is a warning, and the weights are packed into memory of this process. The source's memory is given back as it
    is packed, so that memory never holds the model twice. Releases the GIL while it packs.

    Raises:
        ModelFileError: a tensor's type or shape cannot be packed; the message names it.
    """
    tensors = PackedTensors(
        matrices=list(dict.fromkeys(reversed(list(matrices))))[::-1],
        vectors=list(dict.fromkeys(vectors)),
        searched=frozenset(searched if isa in SEARCHING_ISAS else ()),
    )
    try:
        packed, was_there = _try_cache(file, tensors, cache, isa=isa, num_threads=num_threads)
        if packed is None:
            native = _native.Weights(sum(tensors.matrix_bytes(file, name) for name in tensors.matrices))
            matrix_ids = {
                name: native.add_matrix(file.native, name, num_threads, name in tensors.searched)
                for name in tensors.matrices
            }
            vector_ids = {name: native.add_vector(file.native, name) for name in tensors.vectors}
        else:
            native = _native.Weights.from_packed(packed)
            matrix_ids = {
                name: native.place_matrix(file.native, name, name in tensors.searched)
                for name in tensors.matrices
            }
            vector_ids = {name: native.place_vector(file.native, name) for name in tensors.vectors}
    except _native.NativeError as error:
        raise ModelFileError(f"{file.path}: {error.args[1]}") from None
    return LoadedWeights(
        native=native,
        matrices=matrix_ids,
        vectors=vector_ids,
        is_float={name: file.tensors[name].type in FLOAT_TYPES for name in tensors.matrices},
        was_packed=not was_there,
        is_shared=packed is not None and packed.is_shared,
        num_huge_bytes=0 if packed is None else packed.num_huge_bytes,
    )


def _try_cache(
    file: GgufFile, tensors: PackedTensors, cache: CacheSettings | None, *, isa: str, num_threads: int
) -> tuple[_native.PackedFile | None, bool]:
    """(packed file, whether it was there before); None: do without."""
    if cache is None:
        return None, False
    try:
        return open_packed(file, tensors, cache, isa=isa, num_threads=num_threads)
    except (CacheError, OSError) as error:
        _log.warning("the weight cache is not used, weights are packed into memory: %s", error)
        return None, False

"""From a model file to the native parts of an EngineCore: graph, packed weights, plan.

Knows: the order of the steps. Must not know: threads, scheduling, requests.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from plait import _native
from plait.errors import ConfigError, ModelFileError
from plait.models import build_graph
from plait.models.hyperparameters import Hyperparameters
from plait.plan import Graph, fuse
from plait.plan.lower import kv_layout, lower
from plait.weights.gguf import GgufFile
from plait.weights.hyperparameters import open_model
from plait.weights.loader import load_vectors, load_weights
from plait.weights.packed import CacheSettings

# Weight slots of a node whose tensor is a vector; every other weight is a matrix.
_VECTOR_OPS = ("rms_norm", "head_norm")


class LoadedModel(msgspec.Struct, frozen=True):
    """A model that is ready to run; immutable, shared by every engine of the process."""

    path: Path
    hyperparameters: Hyperparameters
    metadata: dict[str, object]
    plan: _native.Plan
    weights: _native.Weights
    kv_layout: _native.KvLayout
    isa: str
    isa_reason: str
    phases_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds by phase: "read", then "fetch" (weights found in the cache) or "pack", then "plan"."""
    has_shared_weights: bool = False
    """The weights are the pages of a packed file, which processes share."""
    num_huge_bytes: int = 0
    """How much of a packed file's memory is in huge pages."""

    def arena_bytes(self, max_batch_tokens: int) -> int:
        """Memory that the steps of an engine write to."""
        return self.plan.arena_bytes(max_batch_tokens)

    def evaluate_logits(
        self, token_ids: list[int], *, chunk_tokens: int = 512, num_threads: int = 1
    ) -> bytearray:
        """The logits after every token, as the bytes of float32 [num_tokens, vocab]; for tests and measurements."""
        return _native.evaluate_logits(
            self.plan, self.weights, self.isa, token_ids, chunk_tokens, num_threads
        )


def load_model(
    model: Path | GgufFile,
    *,
    num_threads: int,
    block_tokens: int = 16,
    kv_cache_dtype: str = "f16",
    cache: CacheSettings | None = None,
) -> LoadedModel:
    """Reads and checks a model, maps its packed weights or packs them with ``num_threads`` threads.

    Args:
        model: its file, or what ``open_model`` made of it.

    Raises:
        ModelFileError: the file is bad or not supported.
        ConfigError: PLAIT_FORCE_ISA names an instruction set that cannot run here.
    """
    try:
        isa, isa_reason = _native.choose_isa()
    except _native.NativeError as error:
        raise ConfigError(str(error.args[1])) from None
    begin = time.monotonic()
    file = model if isinstance(model, GgufFile) else open_model(model)
    vectors = load_vectors(file, ("rope_freqs.weight",))
    graph, hp = build_graph(file, vectors)
    read = time.monotonic()
    matrices, norms = _weights_of(graph)
    loaded = load_weights(
        file, matrices, norms, searched=_searched_of(graph), isa=isa, num_threads=num_threads, cache=cache
    )
    packed = time.monotonic()
    fuse(graph)
    layout = kv_layout(graph, block_tokens, kv_cache_dtype)
    try:
        plan = lower(graph, loaded, layout)
    except _native.NativeError as error:
        raise ModelFileError(f"{file.path}: {error.args[1]}") from None
    planned = time.monotonic()
    return LoadedModel(
        path=file.path,
        hyperparameters=hp,
        metadata=file.metadata,
        plan=plan,
        weights=loaded.native,
        kv_layout=layout,
        isa=isa,
        isa_reason=isa_reason,
        phases_s={
            "read": read - begin,
            "pack" if loaded.was_packed else "fetch": packed - read,
            "plan": planned - packed,
        },
        has_shared_weights=loaded.is_shared,
        num_huge_bytes=loaded.num_huge_bytes,
    )


def _weights_of(graph: Graph) -> tuple[list[str], list[str]]:
    """(matrices, vectors) that the graph names."""
    matrices = [name for node in graph if node.op not in _VECTOR_OPS for name in node.weights]
    vectors = [name for node in graph if node.op in _VECTOR_OPS for name in node.weights]
    return matrices, vectors


def _searched_of(graph: Graph) -> list[str]:
    """Output matrices of which greedy requests only want the largest product.

    Behind a softcap two products can become one logit, so that all of them are needed.
    """
    return [node.weights[0] for node in graph if node.op == "logits" and not node.attrs["softcap"]]

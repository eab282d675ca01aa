"""Model architectures: one file each builds a graph; this registry finds it by the name in the GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plait.errors import ModelFileError
from plait.models import gemma3, llama
from plait.models.hyperparameters import Hyperparameters, read_hyperparameters
from plait.plan import Graph, fuse
from plait.weights.gguf import GgufFile

__all__ = ["ARCHITECTURES", "build_graph", "describe_graph"]

Builder = Callable[[Hyperparameters, Mapping[str, tuple[float, ...]]], Graph]

ARCHITECTURES: dict[str, Builder] = {"llama": llama.build, "gemma3": gemma3.build}


def build_graph(
    file: GgufFile, vectors: Mapping[str, tuple[float, ...]] | None = None
) -> tuple[Graph, Hyperparameters]:
    """The unfused graph of a model file and its numbers.

    Raises:
        ModelFileError: the architecture is unknown, or its numbers or tensors do not fit together.
    """
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    architecture = file.metadata.get("general.architecture")
    builder = ARCHITECTURES.get(str(architecture))
    if builder is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(
            f"{file.path}: architecture {architecture!r} is not supported; supported: {known}"
        )
    hp = read_hyperparameters(file.metadata, shapes)
    graph = builder(hp, vectors or {})
    for node in graph:
        for name in node.weights:
            if name not in shapes:
                raise ModelFileError(f"{file.path}: tensor {name} is missing")
    return graph, hp


def describe_graph(file: GgufFile) -> tuple[str, str]:
    """The operations of a model before and after fusion, one per line."""
    graph, _ = build_graph(file)
    before = str(graph)
    fuse(graph)
    return before, str(graph)

"""plait inspect"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plait.weights.gguf import GgufFile

_MAX_VALUE_CHARS = 72


def inspect_model(
    model: Annotated[str | None, typer.Argument(help="GGUF file or catalogue name.")] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the operations before and after fusion instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in a model file: metadata, tensors, size."""
    from plait.cli.progress import PullBar
    from plait.weights.catalog import DEFAULT_MODEL, damage_explained, resolve_model
    from plait.weights.gguf import GgufFile

    with PullBar() as bar:
        path = resolve_model(model or DEFAULT_MODEL, bar.update)
    with damage_explained(path):
        file = GgufFile(path)
    if graph:
        print(_graph_text(file, as_json=as_json))
    elif as_json:
        print(json.dumps(describe(file), ensure_ascii=False))
    else:
        print("\n".join(format_report(file)))


def _graph_text(file: GgufFile, *, as_json: bool) -> str:
    from plait.models import describe_graph

    before, after = describe_graph(file)
    if as_json:
        return json.dumps({"before": before.splitlines(), "after": after.splitlines()})
    counts = (len(before.splitlines()), len(after.splitlines()))
    return f"before fusion: {counts[0]} operations\n{before}\n\nafter fusion: {counts[1]} operations\n{after}"


def describe(file: GgufFile) -> dict[str, Any]:
    """The report as plain data; long arrays are given by their length."""
    tensors = file.tensors.values()
    return {
        "path": str(file.path),
        "num_file_bytes": file.path.stat().st_size,
        "num_parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "num_tensor_bytes": sum(tensor.num_bytes for tensor in tensors),
        "num_tensors_by_type": dict(Counter(tensor.type for tensor in tensors).most_common()),
        "metadata": {
            key: value if not isinstance(value, list) or len(value) <= 16 else f"[{len(value)} values]"
            for key, value in file.metadata.items()
        },
        "tensors": [
            {"name": t.name, "type": t.type, "shape": list(t.shape), "num_bytes": t.num_bytes}
            for t in tensors
        ],
    }


def format_report(file: GgufFile) -> list[str]:
    """The report for people."""
    report = describe(file)
    types = ", ".join(f"{count} {name}" for name, count in report["num_tensors_by_type"].items())
    lines = [
        report["path"],
        f"{report['num_parameters'] / 1e6:.1f} M parameters, {report['num_file_bytes'] / 1e6:.1f} MB, "
        f"{len(report['tensors'])} tensors ({types})",
        "",
        "metadata",
    ]
    width = max((len(key) for key in report["metadata"]), default=0)
    lines += [f"  {key:{width}}  {_shorten(value)}" for key, value in report["metadata"].items()]
    lines += ["", "tensors"]
    width = max((len(tensor["name"]) for tensor in report["tensors"]), default=0)
    for tensor in report["tensors"]:
        shape = " x ".join(str(size) for size in tensor["shape"])
        lines.append(
            f"  {tensor['name']:{width}}  {tensor['type']:6} {tensor['num_bytes']:>12} bytes  {shape}"
        )
    return lines


def _shorten(value: object) -> str:
    is_plain = not isinstance(value, str) or value.startswith("[")
    text = str(value) if is_plain else repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."

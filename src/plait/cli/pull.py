"""plait pull"""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    name: Annotated[
        str | None, typer.Argument(help="Catalogue name; without one the catalogue is listed.")
    ] = None,
) -> None:
    """Download a model of the catalogue."""
    from plait.cli.progress import PullBar
    from plait.weights import catalog

    if name is None:
        for model in catalog.CATALOG.values():
            print(f"{model.name:24} {model.num_bytes / 1e6:8.1f} MB  {model.summary} ({model.license})")
        return
    with PullBar() as bar:
        path = catalog.pull(name, bar.update)
    print(path)

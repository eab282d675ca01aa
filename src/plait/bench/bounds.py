"""Settings of the benchmarks that make no sense: told by the flag at fault, with its bounds."""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import ConfigError


def check_sizes(bench: str, flag: str, sizes: int | Sequence[int], least: int, most: int | None) -> None:
    """``most``: None where only the model or the memory sets a bound.

    Raises:
        ConfigError: there are no sizes, or one is out of bounds.
    """
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    if not sizes:
        raise ConfigError(f"bench {bench}: {flag} is empty; give one number at least")
    for size in sizes:
        if size < least or (most is not None and size > most):
            bounds = f"{least} or more" if most is None else f"from {least} to {most}"
            raise ConfigError(f"bench {bench}: {flag} must be {bounds}, not {size}")

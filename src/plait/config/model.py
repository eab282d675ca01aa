"""The whole configuration as one immutable model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from plait.config.engine import EngineConfig
from plait.config.server import ServerConfig
from plait.config.values import Section, Text

ALIASES = {
    "threads_per_process": "num_compute_threads",
    "batch_timeout": "batch_timeout_s",
    "max_batch_size": "max_batch_size",
}
"""Keys that the ``concurrency`` section may hold as well, with the engine field that each one sets."""


class ConcurrencyConfig(Section):
    """How many engine processes serve."""

    process_count: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Engine processes. This version starts one; more are refused at start.",
    )


class PlaitConfig(Section):
    """Everything that a flag, an environment variable or a configuration file can set."""

    model: Text | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Path of a GGUF file, or a catalogue name. Default: the small default model.",
    )
    concurrency: ConcurrencyConfig = Field(
        default=ConcurrencyConfig(), description="Processes, threads, batches."
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="The engine.")
    server: ServerConfig = Field(default=ServerConfig(), description="The HTTP server.")

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, raw: Any) -> Any:
        return fold_concurrency(raw) if isinstance(raw, Mapping) else raw


def fold_concurrency(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Move the engine's settings out of the ``concurrency`` section, so that each value has one place.

    Raises:
        ValueError: both places set the same value differently.
    """
    folded = dict(raw)
    concurrency, engine = folded.get("concurrency"), folded.get("engine", {})
    if not isinstance(concurrency, Mapping) or not isinstance(engine, Mapping):
        return folded
    kept, moved = dict(concurrency), dict(engine)
    for alias, name in ALIASES.items():
        if alias in kept:
            value = kept.pop(alias)
            if moved.setdefault(name, value) != value:
                raise ValueError(
                    f"concurrency.{alias} is {value!r} but engine.{name} is {moved[name]!r}; set only one"
                )
    folded["concurrency"], folded["engine"] = kept, moved
    return folded


SECTIONS: dict[str, type[Section]] = {
    "concurrency": ConcurrencyConfig,
    "engine": EngineConfig,
    "server": ServerConfig,
}

"""From a model's name to a running engine with its frontend, in this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plait.config import EngineConfig, ResolvedConfig, load_config, read_machine, resolve
from plait.engine import start_engine
from plait.errors import ConfigError
from plait.frontend import Frontend
from plait.tokenizer import ChatTemplate, Tokenizer
from plait.weights.catalog import resolve_model
from plait.weights.gguf import GgufFile
from plait.weights.pull import ProgressCallback


def resolve_engine(engine_kwargs: Mapping[str, Any]) -> ResolvedConfig:
    """The configuration from fields of EngineConfig and the environment.

    Raises:
        ConfigError: a field is unknown or wrong.
    """
    for name in engine_kwargs:
        if name not in EngineConfig.model_fields:
            known = ", ".join(EngineConfig.model_fields)
            raise ConfigError(f"unknown engine setting {name}; known: {known}")
    return resolve(load_config(environment=os.environ, overrides=engine_kwargs), read_machine())


def open_frontend(model: str, config: EngineConfig, on_progress: ProgressCallback | None = None) -> Frontend:
    """Find (or pull) the model, start its engine and wait until it is warm.

    Whoever gets the frontend closes both: ``close_frontend``.

    Raises:
        ModelFileError: the model cannot be had or is not supported.
        ConfigError: it does not fit this machine as configured.
    """
    path = resolve_model(model, on_progress)
    with _without_garbage_collection():
        metadata = GgufFile(path).metadata
        tokenizer = Tokenizer.from_metadata(metadata)
        template = ChatTemplate.from_metadata(metadata)
        client = start_engine(path, config, eos_token_ids=tokenizer.eos_token_ids)
        return Frontend(client, tokenizer, template)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Vocabularies are lists of hundreds of thousands of objects: walking them again and again takes half the load."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def close_frontend(frontend: Frontend) -> None:
    """Stop the tokenizer threads and the engine; running requests end as aborted. Idempotent."""
    frontend.close()
    frontend.client.close()

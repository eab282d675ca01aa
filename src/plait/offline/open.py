"""From a model's name to a running engine with its frontend, in this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plait.config import EngineConfig, ResolvedConfig, load_config, read_machine, resolve
from plait.config.load import FieldPlace
from plait.engine import start_engine
from plait.errors import ConfigError, ModelFileError
from plait.frontend import Frontend
from plait.tokenizer import ChatTemplate, Tokenizer
from plait.weights.catalog import damage_explained, resolve_model
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
    return resolve(
        load_config(environment=os.environ, overrides=engine_kwargs, spell=_argument), read_machine()
    )


def read_model(model: str | os.PathLike[str]) -> str:
    """A model as programs give it: a name, or a path of any kind.

    Raises:
        ConfigError: it is neither.
    """
    text = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"model must be the path of a GGUF file or a model's name, not {model!r:.80}")
    return text


def open_frontend(
    model: str,
    config: EngineConfig,
    on_progress: ProgressCallback | None = None,
    *,
    needs_chat: bool = False,
) -> Frontend:
    """Find (or pull) the model, start its engine and wait until it is warm.

    Whoever gets the frontend closes both: ``close_frontend``.

    Raises:
        ModelFileError: the model cannot be had or is not supported, or chats are needed and it has no template.
        ConfigError: it does not fit this machine as configured.
    """
    path = resolve_model(model, on_progress)
    with _without_garbage_collection(), damage_explained(path):
        metadata = GgufFile(path).metadata
        tokenizer = Tokenizer.from_metadata(metadata)
        template = ChatTemplate.from_metadata(metadata)
        if needs_chat:
            _check_chat(model, template)
        client = start_engine(path, config, eos_token_ids=tokenizer.eos_token_ids)
        return Frontend(client, tokenizer, template)


def _argument(place: FieldPlace) -> str:
    return place.name


def _check_chat(model: str, template: ChatTemplate | None) -> None:
    if template is None:
        raise ModelFileError(
            f"{model} has no chat template, so it cannot chat; it continues plain prompts (plait generate)"
        )
    if template.compile_error:
        raise ModelFileError(f"{model} cannot chat: {template.compile_error}")


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

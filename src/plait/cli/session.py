"""What serve, generate and chat share: settings to a resolved configuration, a model's name to a frontend."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import PlaitError

if TYPE_CHECKING:
    from plait.config import ResolvedConfig
    from plait.frontend import Frontend


def resolve_settings(file: Path | None, settings: Mapping[str, Any], model: str | None) -> ResolvedConfig:
    """Flags, environment and file, for this machine.

    Raises:
        ConfigError: names the flag, variable or key at fault.
    """
    from plait.config import load_config, read_machine, resolve

    overrides = {**settings, "model": model}
    resolved = resolve(load_config(file=file, environment=os.environ, overrides=overrides), read_machine())
    if resolved.config.engine.trace is not None:
        _check_trace(resolved, file)
    return resolved


def _check_trace(resolved: ResolvedConfig, file: Path | None) -> None:
    """Before a model is found or pulled; the engine looks again when it knows the model's file."""
    from plait.output_file import TRACE_START, check_output

    named = [file, os.environ.get("PLAIT_CONFIG"), resolved.config.model]
    inputs = [Path(name) for name in named if name]
    check_output(
        "--trace", Path(resolved.config.engine.trace or ""), TRACE_START, inputs=inputs, must_be_file=True
    )


def model_name(resolved: ResolvedConfig) -> str:
    """The configured model, or the default one."""
    from plait.weights.catalog import DEFAULT_MODEL

    return resolved.config.model or DEFAULT_MODEL


def public_name(model: str) -> str:
    """What clients call a model: the name that it was asked for by, or a file's name without its suffix."""
    from plait.weights.catalog import CATALOG

    return model if model in CATALOG else Path(model).stem


@contextmanager
def open_session(resolved: ResolvedConfig, *, needs_chat: bool = False) -> Iterator[Frontend]:
    """A frontend over an engine of its own, closed at the end; shows the progress of a download.

    Raises:
        PlaitError: at the end, when the trace could not be written.
        ModelFileError: chats are needed and the model cannot chat, told before it loads.
    """
    from plait.cli.progress import PullBar
    from plait.offline import close_frontend, open_frontend
    from plait.weights.gguf import explain_bus_errors

    explain_bus_errors()
    with PullBar() as bar:
        frontend = open_frontend(
            model_name(resolved), resolved.config.engine, bar.update, needs_chat=needs_chat
        )
    try:
        yield frontend
    except BaseException:
        with contextlib.suppress(PlaitError):  # what went wrong first is told
            close_frontend(frontend)
        raise
    close_frontend(frontend)

"""The command line: which commands there are, and how errors look.

Commands import what they need inside their functions: ``plait --help`` must answer at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from plait import __version__
from plait.cli.interrupts import (
    INTERRUPTED,
    end_on_termination,
    exit_on_interrupt,
    raise_on_interrupt,
    raise_on_termination,
)
from plait.cli.streams import OutputError, abandon_stdout, finish_stdout, take_over_streams
from plait.errors import ConfigError, InvalidRequestError, PlaitError, one_line

USAGE_ERROR = 2
FAILURE = 1
CLOSED_PIPE = 141
"""As shells show a program that SIGPIPE ended: whoever read the output has seen enough."""

# name -> (module, function, settings that become flags)
_COMMANDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "serve": ("plait.cli.serve", "serve", ("engine", "server", "concurrency")),
    "generate": ("plait.cli.generate", "generate", ("engine",)),
    "chat": ("plait.cli.chat", "chat", ("engine",)),
    "pull": ("plait.cli.pull", "pull", ()),
    "inspect": ("plait.cli.inspect", "inspect_model", ()),
    "top": ("plait.cli.top", "top", ()),
    "doctor": ("plait.cli.doctor", "doctor", ()),
    "version": ("plait.cli.version", "version", ()),
}


def build_app(wanted: str | None = None) -> typer.Typer:
    """All commands; only ``wanted`` gets the flags of its settings, since they cost an import."""
    app = typer.Typer(
        name="plait",
        help="Serves language models on ordinary CPU machines.",
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (module, function_name, sections) in _COMMANDS.items():
        function = getattr(importlib.import_module(module), function_name)
        app.command(name)(_prepare(function, sections, name == wanted))
    if importlib.util.find_spec("plait.bench") is not None:
        from plait.cli.bench import bench_app

        app.add_typer(bench_app, name="bench")
    return app


def _prepare(
    function: Callable[..., None], sections: tuple[str, ...], is_wanted: bool
) -> Callable[..., None]:
    from plait.cli.flags import with_settings, without_settings

    if not sections:
        return function
    return with_settings(function, *sections) if is_wanted else without_settings(function)


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
) -> None:
    if version:
        print(f"plait {__version__}")


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command; see ``plait.cli.main``."""
    is_program = arguments is None
    if is_program:
        take_over_streams()
        raise_on_termination()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            _run_command(given)
        finally:
            finish_stdout()
    except OutputError as error:
        abandon_stdout()
        if error.is_closed_pipe:
            sys.exit(CLOSED_PIPE)
        _fail(f"cannot write to standard output: {error}", FAILURE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        if is_program:
            end_on_termination()
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                exit_on_interrupt()


def _run_command(given: list[str]) -> None:
    rest, is_debug = _take_debug(given)
    rest = rest or ["--help"]
    wanted = next((argument for argument in rest if not argument.startswith("-")), None)
    try:
        app = build_app(wanted)
        raise_on_interrupt()
        app(args=rest, prog_name="plait")
    except OutputError:
        raise
    except PlaitError as error:
        if is_debug:
            raise
        _fail(str(error), USAGE_ERROR if isinstance(error, ConfigError | InvalidRequestError) else FAILURE)
    except Exception as error:
        if is_debug:
            raise
        _fail(f"{type(error).__name__}: {error} (run again with --debug for the traceback)", FAILURE)


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without ``--debug``, which may stand anywhere before ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [argument for argument in arguments[:end] if argument != "--debug"] + arguments[end:]
    return rest, len(rest) < len(arguments) or os.environ.get("PLAIT_DEBUG") == "1"


def _fail(message: str, code: int) -> None:
    print("plait: " + one_line(message), file=sys.stderr)
    sys.exit(code)

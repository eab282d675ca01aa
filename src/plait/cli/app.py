"""The command line: which commands there are, and how errors look.

Commands import what they need inside their functions: ``plait --help`` must answer at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from plait import __version__
from plait.errors import ConfigError, InvalidRequestError, PlaitError

USAGE_ERROR = 2
FAILURE = 1

# name -> (module, function, settings that become flags)
_COMMANDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "serve": ("plait.cli.serve", "serve", ("engine", "server", "concurrency")),
    "generate": ("plait.cli.generate", "generate", ("engine",)),
    "chat": ("plait.cli.chat", "chat", ("engine",)),
    "pull": ("plait.cli.pull", "pull", ()),
    "inspect": ("plait.cli.inspect", "inspect_model", ()),
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
        typer.echo(f"plait {__version__}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The ``plait`` program: always ends in SystemExit; 2 for wrong usage, 1 for other failures."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    rest, is_debug = _take_debug(given)
    rest = rest or ["--help"]
    wanted = next((argument for argument in rest if not argument.startswith("-")), None)
    try:
        build_app(wanted)(args=rest, prog_name="plait")
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
    print("plait: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)

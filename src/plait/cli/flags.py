"""Gives a command one flag per setting of plait.config, so that flags, environment and file never differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

_METAVARS: dict[type, str] = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def with_settings(function: Callable[..., None], *sections: str) -> Callable[..., None]:
    """``function`` with flags for every setting of ``sections`` in place of its argument ``settings``.

    The values reach ``settings`` as text, by field name; plait.config parses them as it does the environment.
    """
    from plait.config.load import all_fields

    places = [place for place in all_fields() if place.section in sections]
    names = [place.name for place in places]

    @wraps(function)
    def command(**values: Any) -> None:
        settings = {name: values.pop(name) for name in names}
        function(**values, settings=settings)

    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "settings"]
    added = [
        inspect.Parameter(place.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(place))
        for place in places
    ]
    command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    return command


def without_settings(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` for the list of commands only: its settings' flags are left out, which saves an import."""

    @wraps(function)
    def command(**values: Any) -> None:
        raise AssertionError(f"{function.__name__} was called without its settings")

    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "settings"]
    command.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    return command


def _option(place: Any) -> Any:
    from plait.config.load import field_info

    info = field_info(place)
    kind = _plain_type(info.annotation)
    default = "" if info.default is None else f" [default: {info.default}]"
    text = f"{info.description}{default} [env: {place.variable}]"
    if kind is bool:
        flag = place.flag
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)]
    metavar = "BYTES" if place.name.endswith("_bytes") else _METAVARS[kind]
    if get_origin(info.annotation) is Literal:
        metavar = "|".join(get_args(info.annotation))
    return Annotated[str | None, typer.Option(place.flag, help=text, metavar=metavar, show_default=False)]


def _plain_type(annotation: Any) -> type:
    """``int`` of ``int``, ``int | None`` or an annotated one; ``str`` of a choice of words."""
    if get_origin(annotation) is Literal:
        return str
    while not isinstance(annotation, type):
        annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
    return annotation

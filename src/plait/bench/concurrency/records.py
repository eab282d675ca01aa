"""Dataclasses from JSON objects, strictly: unknown, missing and ill-typed values are errors that name their place.

Knows: int, float, bool, str, lists (tuples), nested dataclasses and None. Must not know: what the values mean.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from plait.errors import ConfigError

T = TypeVar("T")


def read_record(kind: type[T], value: object, where: str) -> T:
    """A ``kind`` from the object ``value``; ``where`` names it in messages.

    Raises:
        ConfigError: a key is unknown or missing, or a value is of another type.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: an object is expected, not {_shown(value)}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
    values = {}
    for name, field in known.items():
        if name in value:
            values[name] = _read(hints[name], value[name], f"{where}: {name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: {name} is missing")
    return kind(**values)


def _read(hint: Any, value: object, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(argument for argument in get_args(hint) if argument is not type(None))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return read_record(hint, value, where)
    if get_origin(hint) is tuple:
        return _read_list(get_args(hint), value, where)
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: an object is expected, not {_shown(value)}")
        return {str(key): _read(get_args(hint)[1], item, f"{where}: {key}") for key, item in value.items()}
    if hint is float and type(value) is int:
        value = float(value)
    if hint is object:
        return value
    if type(value) is not hint:
        raise ConfigError(f"{where}: {_NAMES[hint]} is expected, not {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: a finite number is expected")
    return value


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _read_list(kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: a list is expected, not {_shown(value)}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise ConfigError(f"{where}: {len(kinds)} values are expected, not {len(value)}")
    return tuple(
        _read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

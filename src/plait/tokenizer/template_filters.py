"""The filters that chat templates may use. Those that could drop trust or grow without bound are our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import filters as jinja_filters
from jinja2 import pass_environment
from jinja2.runtime import Undefined

from plait.tokenizer.budget import BudgetError
from plait.tokenizer.provenance import joined
from plait.tokenizer.vocab import words

if TYPE_CHECKING:
    from plait.tokenizer.sandbox import TemplateEnvironment

_MAX_INDENT = 64
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _measured(function: _Function) -> _Function:
    """Its arguments are walked as a whole, so they are measured first."""
    function.is_measured = True  # type: ignore[attr-defined]
    return function


def _measured_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    if hasattr(function, "jinja_pass_arg"):
        measured.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return _measured(measured)


@_measured
def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON with no HTML escapes, as chat templates expect it."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise BudgetError(f"it indents JSON by more than {_MAX_INDENT}")
    if isinstance(value, Undefined):
        raise TypeError("an undefined value has no JSON")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@pass_environment
@_measured
def join(environment: TemplateEnvironment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [environment.getitem(item, attribute) for item in items]
    texts: list[Any] = []
    for item in items:
        if texts and d:
            texts.append(d)
        texts.append(item)
    return environment.join_values(texts)


@pass_environment
def replace(
    environment: TemplateEnvironment, value: Any, old: Any, new: Any, count: int | None = None
) -> str:
    text, old, new = (environment.to_text(item) for item in (value, old, new))
    places = text.count(old) if old else len(text) + 1
    environment.budget.check_size(len(text) + places * len(new))
    return text.replace(old, new, -1 if count is None else count)


@pass_environment
def indent(
    environment: TemplateEnvironment,
    value: Any,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> str:
    """Indent all lines but the first (``first``) and, unless ``blank``, empty ones."""
    prefix = width if isinstance(width, str) else " " * min(max(width, 0), _MAX_INDENT + 1)
    if len(prefix) > _MAX_INDENT:
        raise BudgetError(f"it indents by more than {_MAX_INDENT}")
    lines = environment.to_text(value).split("\n")
    environment.budget.check_size(sum(map(len, lines)) + len(lines) * (1 + len(prefix)))
    parts: list[str] = []
    for i, line in enumerate(lines):
        if i:
            parts.append("\n")
        if (first if i == 0 else bool(line) or blank) and prefix:
            parts.append(prefix)
        parts.append(line)
    return joined(parts)


@pass_environment
def string(environment: TemplateEnvironment, value: Any) -> str:
    return environment.to_text(value)


@pass_environment
def trim(environment: TemplateEnvironment, value: Any, chars: str | None = None) -> str:
    return environment.to_text(value).strip(chars)


@pass_environment
def upper(environment: TemplateEnvironment, value: Any) -> str:
    return environment.to_text(value).upper()


@pass_environment
def lower(environment: TemplateEnvironment, value: Any) -> str:
    return environment.to_text(value).lower()


@pass_environment
def title(environment: TemplateEnvironment, value: Any) -> str:
    return environment.to_text(value).title()


@pass_environment
def capitalize(environment: TemplateEnvironment, value: Any) -> str:
    return environment.to_text(value).capitalize()


@pass_environment
def format_percent(environment: TemplateEnvironment, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format takes positional or named values, not both")
    result: str = environment.call_binop(None, "%", environment.to_text(value), kwargs or args)
    return result


@pass_environment
@_measured
def add_up(
    environment: TemplateEnvironment, iterable: Iterable[Any], attribute: Any = None, start: Any = 0
) -> Any:
    total = start
    for item in iterable:
        value = item if attribute is None else environment.getitem(item, attribute)
        total = environment.call_binop(None, "+", total, value)
    return total


@pass_environment
def unchanged(environment: TemplateEnvironment, value: Any) -> str:
    """``safe``: there is no HTML here."""
    return environment.to_text(value)


@pass_environment
def batch(
    environment: TemplateEnvironment, value: Iterable[Any], linecount: int, fill_with: Any = None
) -> Any:
    environment.budget.check_size(linecount)
    return jinja_filters.do_batch(value, linecount, fill_with)


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "attr": jinja_filters.do_attr,
    "batch": batch,
    "capitalize": capitalize,
    "count": len,
    "d": jinja_filters.do_default,
    "default": jinja_filters.do_default,
    "dictsort": _measured_copy(jinja_filters.do_dictsort),
    "first": jinja_filters.sync_do_first,
    "float": jinja_filters.do_float,
    "format": format_percent,
    "groupby": _measured_copy(jinja_filters.sync_do_groupby),
    "indent": indent,
    "int": jinja_filters.do_int,
    "items": jinja_filters.do_items,
    "join": join,
    "last": jinja_filters.do_last,
    "length": len,
    "list": jinja_filters.sync_do_list,
    "lower": lower,
    "map": jinja_filters.sync_do_map,
    "max": _measured_copy(jinja_filters.do_max),
    "min": _measured_copy(jinja_filters.do_min),
    "reject": jinja_filters.sync_do_reject,
    "rejectattr": jinja_filters.sync_do_rejectattr,
    "replace": replace,
    "reverse": jinja_filters.do_reverse,
    "round": jinja_filters.do_round,
    "safe": unchanged,
    "select": jinja_filters.sync_do_select,
    "selectattr": jinja_filters.sync_do_selectattr,
    "sort": _measured_copy(jinja_filters.do_sort),
    "string": string,
    "sum": add_up,
    "title": title,
    "tojson": to_json,
    "trim": trim,
    "unique": _measured_copy(jinja_filters.do_unique),
    "upper": upper,
    "wordcount": jinja_filters.do_wordcount,
}

TESTS_THAT_COMPARE = words("eq == equalto ne != lt < lessthan le <= gt > greaterthan ge >= in")

"""Reads flags, environment and a YAML file into one PlaitConfig; the first of them that sets a value wins.

A key that nobody knows and a value that does not fit are errors that name the flag, variable or key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from plait.config.model import ALIASES, SECTIONS, PlaitConfig, fold_concurrency
from plait.config.values import MASK, Choices, Secret, Section
from plait.errors import ConfigError

PREFIX = "PLAIT_"
FALLBACKS = {"VLLM_NUM_COMPUTE_THREADS": "PLAIT_NUM_COMPUTE_THREADS"}
"""Variables that are read when the one on the right is not set; empty ones of both count as not set. A value that
cannot be read is an error unless something else sets the field: these variables are other programs' too."""

OTHER_VARIABLES = {
    "PLAIT_CONFIG": "Configuration file that is read when no --config is given.",
    "PLAIT_MODEL_DIR": "Folder in which models are looked for and stored.",
    "PLAIT_CACHE_DIR": "Folder of packed weights. Default: `plait/packed` in the XDG cache.",
    "PLAIT_FORCE_ISA": "Instruction set that the kernels must use (scalar, avx2, avx512, avx512vnni, neon); one "
    "that cannot run here is an error.",
    "PLAIT_DEBUG": "Set to 1: commands show the whole traceback of an error.",
}
"""Variables that are not fields of the configuration, with their meaning."""
TEST_PREFIXES = ("PLAIT_TEST_", "PLAIT_STRESS")
"""Left to the tests."""
_MAX_SHOWN_CHARS = 80
_QUOTED = re.compile(r"(['\"])[^'\"]{2,}\1|'[^']*\Z|\"[^\"]*\Z")


class FieldPlace(msgspec.Struct, frozen=True):
    """Where a setting lives: ``section`` is None for top-level fields."""

    section: str | None
    name: str

    @property
    def key(self) -> str:
        return self.name if self.section is None else f"{self.section}.{self.name}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def all_fields() -> list[FieldPlace]:
    """Every setting; names are unique over all sections."""
    places = [FieldPlace(None, name) for name in PlaitConfig.model_fields if name not in SECTIONS]
    places += [FieldPlace(section, name) for section, cls in SECTIONS.items() for name in cls.model_fields]
    return places


def field_info(place: FieldPlace) -> Any:
    """pydantic's description of a setting."""
    owner: type[Section] = PlaitConfig if place.section is None else SECTIONS[place.section]
    return owner.model_fields[place.name]


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    spell: Callable[[FieldPlace], str] = lambda place: place.flag,
) -> PlaitConfig:
    """The configuration from all sources.

    Args:
        file: a YAML file; None: the one that PLAIT_CONFIG names, if any.
        environment: usually ``os.environ``; None: no environment.
        overrides: values of flags by field name; None values are not set.
        spell: how whoever gave the overrides knows a setting; errors say it so.

    Raises:
        ConfigError: names the flag, variable, key or file at fault.
    """
    environment = environment or {}
    if file is None and environment.get("PLAIT_CONFIG"):
        file = Path(environment["PLAIT_CONFIG"])
    merged: dict[str, Any] = read_yaml(file) if file is not None else {}
    given = list(_read_overrides(overrides or {}, spell))
    for source in (_read_environment(environment, {place for place, _ in given}, merged), given):
        for place, value in source:
            target = merged if place.section is None else merged.setdefault(place.section, {})
            target[place.name] = value
    try:
        return PlaitConfig.model_validate(merged, strict=True)
    except ValidationError as error:
        raise ConfigError(f"configuration: {_describe(error)}") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """The checked values of a configuration file, with ``concurrency`` folded into its places."""
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        _check_repeated(file, yaml.compose(text, yaml.SafeLoader))
        raw = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {_yaml_reason(error)}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        # Dates and numbers that Python cannot hold; the text of such an error may show the value.
        raise ConfigError(
            f"{file}: not valid YAML: a value cannot be read ({type(error).__name__})"
        ) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: must hold keys and values, not {type(raw).__name__}")
    _check_known(file, "", raw, PlaitConfig.model_fields)
    values = {key: _read_section(file, key, raw[key]) if key in SECTIONS else raw[key] for key in raw}
    if "model" in raw:
        _parse(FieldPlace(None, "model"), raw["model"], f"{file}: model", strict=True)
    try:
        return fold_concurrency(values)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


def _read_section(file: Path, section: str, content: object) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        # Not the content itself: "api_key:x" without a blank is a text, too.
        raise ConfigError(f"{file}: {section} must hold keys and values, not {type(content).__name__}")
    places = {name: FieldPlace(section, name) for name in SECTIONS[section].model_fields}
    if section == "concurrency":
        places |= {alias: FieldPlace("engine", name) for alias, name in ALIASES.items()}
    _check_known(file, f"{section}.", content, places)
    return {
        key: _parse(places[key], value, f"{file}: {section}.{key}", strict=True)
        for key, value in content.items()
    }


def _check_known(file: Path, prefix: str, found: Iterable[object], known: Iterable[str]) -> None:
    known = list(known)
    for key in found:
        if key not in known:
            shown = _shown_key(key)
            raise ConfigError(f"{file}: unknown key {prefix}{shown}{_hint(shown, known)}")


def _check_repeated(file: Path, root: Any) -> None:
    """YAML forbids a key that stands twice in a mapping; PyYAML takes the last one and says nothing."""
    seen: set[int] = set()  # an alias stands for the same node
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        if node.id == "sequence":
            left.extend(node.value)
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            left.append(value)
            if not isinstance(key.value, str):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                shown = _shown_key(key.value)
                raise ConfigError(
                    f"{file}: {shown} stands on line {lines[key.value]} and again on line {line}"
                )
            lines[key.value] = line


def _shown_key(key: object) -> str:
    """A key that nobody knows may be a secret whose colon or blank was forgotten: only its first word is shown."""
    text = str(key)
    word = re.match(r"\w*", text)
    return text if word is None or word[0] == text else f"{word[0][:_MAX_SHOWN_CHARS]}..."


def _yaml_reason(error: Any) -> str:
    """What PyYAML found and where, without its excerpt of the file and its quotations: they may hold a secret."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    parts = [
        _QUOTED.sub("'...'", text)
        for text in (getattr(error, "context", ""), getattr(error, "problem", ""))
        if text
    ]
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(" ".join(parts or ["unreadable"]).split()) + where


def _hint(name: str, known: Iterable[str]) -> str:
    # What all environment variables begin with makes no two of them alike.
    by_rest = {full.removeprefix(PREFIX): full for full in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), list(by_rest), n=1)
    return f"; did you mean {by_rest[close[0]]}?" if close else ""


def _read_environment(
    environment: Mapping[str, str], overridden: Container[FieldPlace], file_values: Mapping[str, Any]
) -> Iterable[tuple[FieldPlace, Any]]:
    """What is ``overridden`` is not read: a value that is not used must not stop anything."""
    places = {place.variable: place for place in all_fields()}
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIXES) or name in OTHER_VARIABLES:
            continue
        place = places.get(name)
        if place is None:
            raise ConfigError(f"unknown environment variable {name}{_hint(name, places)}")
        if place not in overridden and (text.strip() or name not in FALLBACKS.values()):
            yield place, _parse(place, text, f"environment variable {name}")
    for fallback, name in FALLBACKS.items():
        place, text = places[name], environment.get(fallback, "").strip()
        if not text or place in overridden or environment.get(name, "").strip():
            continue
        try:
            yield place, _parse(place, text, f"environment variable {fallback}")
        except ConfigError:
            values = file_values if place.section is None else file_values.get(place.section, {})
            if values.get(place.name) is None:
                raise


def _read_overrides(
    overrides: Mapping[str, Any], spell: Callable[[FieldPlace], str]
) -> Iterable[tuple[FieldPlace, Any]]:
    places = {place.name: place for place in all_fields()}
    for name, value in overrides.items():
        if name not in places:
            raise ConfigError(f"unknown setting {name}{_hint(name, places)}")
        if value is not None:
            yield places[name], _parse(places[name], value, spell(places[name]))


def _parse(place: FieldPlace, value: Any, shown: str, *, strict: bool = False) -> Any:
    """One value of one field, alone; what fields ask of each other is checked on the merged whole.

    Not strict: text counts as a value, as in the environment.
    """
    info = field_info(place)
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config={"allow_inf_nan": False})
    try:
        parsed = adapter.validate_python(value.strip() if isinstance(value, str) else value, strict=strict)
    except ValidationError as error:
        reason = "; ".join(dict.fromkeys(_message(entry) for entry in error.errors()))
    else:
        choices = next((mark.values for mark in info.metadata if isinstance(mark, Choices)), None)
        if choices is None or parsed is None or parsed in choices:
            return parsed
        reason = f"must be one of {', '.join(str(choice) for choice in choices)}"
    is_secret = any(isinstance(mark, Secret) for mark in info.metadata)
    raise ConfigError(f"{shown}: {MASK if is_secret else _shown_value(value)} is wrong: {reason}")


def _shown_value(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of thousands of digits
        return f"this {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}


_KINDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be Unicode text",
    "none_required": "must be empty",
    "extra_forbidden": "is no known setting",
}


def _message(entry: Any) -> str:
    """What is wrong with a value, in our words where pydantic's are about its own inside."""
    kind, context = entry["type"], entry.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{words} {context[bound]}"
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        return "must not be empty" if least == 1 else f"must have at least {least} characters"
    if kind in ("too_long", "string_too_long"):
        return f"must have at most {context['max_length']} characters"
    if kind == "literal_error":
        return f"must be one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}"
    message: str = _KINDS.get(kind, entry["msg"])
    return message.removeprefix("Value error, ")


def _describe(error: ValidationError) -> str:
    parts = []
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"])
        message = _message(entry)
        parts.append(f"{where}: {message}" if where else message)
    return "; ".join(parts)

"""Types of configuration values that several sections share."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

MASK = "********"
"""Stands for every secret that is shown."""
MAX_BYTES = 1 << 50
MAX_SECONDS = 7 * 24 * 3600
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def parse_bytes(value: object) -> object:
    """``"2GiB"``, ``"512M"`` or ``"1.5 GB"`` as a number of bytes (all units are powers of 1024); other
    values are returned as they are, for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError("not a number of bytes; write for example 2147483648, 2GiB or 512MiB")
    whole, unit = match[1], _UNITS[match[2].upper()]
    return int(float(whole) * unit) if "." in whole else int(whole) * unit


def parse_weights(text: str) -> list[tuple[str, float]]:
    """``"a=2,b=0.5"`` as pairs; an empty text has none.

    Raises:
        ValueError: an entry is not NAME=WEIGHT with a weight from 0.001 to 1000, or a name is there twice.
    """
    weights: dict[str, float] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        name, _, number = entry.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not name or not 1e-3 <= weight <= 1e3:
            raise ValueError(f"{entry[:80]!r} is not NAME=WEIGHT with a weight from 0.001 to 1000")
        if name in weights:
            raise ValueError(f"{name[:80]!r} has two weights")
        weights[name] = weight
    return list(weights.items())


def _refuse_control_characters(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not hold control characters")
    return text


def _check_weights(text: str) -> str:
    parse_weights(text)
    return text


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Text = Annotated[str, AfterValidator(_refuse_control_characters)]
Weights = Annotated[Text, AfterValidator(_check_weights)]
"""See parse_weights."""


class Secret(msgspec.Struct, frozen=True):
    """Marks a field whose value no message, repr or dump shows."""


class Choices(msgspec.Struct, frozen=True):
    """Marks a field of which users may set these values only. Programs that bring an engine of their own parts
    may set others, so the model itself does not ask for it."""

    values: tuple[int, ...]


class Section(BaseModel):
    """Base of every section: immutable, every key known, secrets hidden."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """In Python True is 1: who writes it where a number belongs means something else."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            if annotation is not bool and bool not in get_args(annotation):
                raise ValueError(f"{value} is no value for this setting")
        return value

    @classmethod
    def secret_fields(cls) -> frozenset[str]:
        """The names of the fields that are marked as Secret."""
        fields = cls.model_fields.items()
        return frozenset(name for name, info in fields if any(isinstance(m, Secret) for m in info.metadata))

    def __repr_args__(self) -> Any:
        secrets = self.secret_fields()
        for name, value in super().__repr_args__():
            yield name, MASK if name in secrets and value is not None else value

    @model_serializer(mode="wrap")
    def _hide_secrets(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown: dict[str, Any] = serialize(self)
        return shown | {name: MASK for name in self.secret_fields() if shown.get(name) is not None}

"""Types of configuration values that several sections share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_bytes(value: object) -> object:
    """``"2GiB"``, ``"512M"`` or ``"1.5 GB"`` as a number of bytes (all units are powers of 1024); other
    values are returned as they are, for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError("not a number of bytes; write for example 2147483648, 2GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Section(BaseModel):
    """Base of every section: immutable, every key known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

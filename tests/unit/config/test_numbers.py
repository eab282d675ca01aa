"""No setting takes infinity or NaN: a wait, a Retry-After or a limit made of them would fail later."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from plait.config import EngineConfig, ServerConfig

FLOATS = [
    (model, name)
    for model in (EngineConfig, ServerConfig)
    for name, field in model.model_fields.items()
    if field.annotation is float
]


@pytest.mark.parametrize(("model", "name"), FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_floats_are_finite(model: type[EngineConfig] | type[ServerConfig], name: str, value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        model(**{name: value})


def test_there_are_such_settings() -> None:
    assert len(FLOATS) >= 6

"""Fixtures of every test: the real models."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    from plait.weights.catalog import resolve_model

    return resolve_model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    from plait.weights.catalog import resolve_model

    return resolve_model("gemma3-270m")

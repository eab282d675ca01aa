"""Fixtures that every test may use: the two real models of the catalogue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _model(name: str) -> Path:
    """The model's file: in PLAIT_MODEL_DIR or the cache; pulled once when it is not there."""
    from plait.weights.catalog import resolve_model

    return resolve_model(name)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: has a chat template."""
    return _model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: pretrained, no chat template."""
    return _model("gemma3-270m")


@pytest.fixture(scope="session")
def weight_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where engines of the tests keep packed weights: one folder for all, so that each model is packed once."""
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, weight_cache_folder: Path) -> None:
    """Settings in the environment of whoever runs the tests must not change what they check."""
    kept = {"PLAIT_MODEL_DIR", "PLAIT_STRESS", "PLAIT_FORCE_ISA"}
    for name in list(os.environ):
        if name.startswith("PLAIT_") and name not in kept:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(weight_cache_folder))

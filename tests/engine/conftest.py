"""For tests over FakeEngine: run over the fake parts and, when the extension is built, over the native ones."""

from __future__ import annotations

import importlib.util

import pytest

from tests.fakes.fake_engine import FakeEngine


@pytest.fixture(params=["fake", "native"])
def parts_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    if kind == "native" and importlib.util.find_spec("plait._native") is None:
        pytest.skip("the native extension is not built")
    monkeypatch.setattr(FakeEngine, "kind", kind)
    return kind

"""For tests over FakeEngine: run over the fake doorbells and rings, over the native ones, and in
the coroutine mode."""

from __future__ import annotations

import pytest

from tests.fakes.fake_engine import FakeEngine


@pytest.fixture(params=["fake", "native", "coroutine"])
def parts_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    monkeypatch.setattr(FakeEngine, "kind", kind)
    return kind


@pytest.fixture
def beside_steps(parts_kind: str) -> None:
    """For tests of what happens while a step runs."""
    if parts_kind == "coroutine":
        pytest.skip("here nothing is taken in while a step runs")

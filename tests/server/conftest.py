from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.fake_server import Served, serve_fake


@pytest.fixture
def fake() -> Iterator[Served]:
    """A server over a fresh fake engine."""
    with serve_fake() as talk:
        yield talk


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One server over a fake engine for all tests of a file that leave its knobs alone."""
    with serve_fake() as talk:
        yield talk

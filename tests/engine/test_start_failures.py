"""A thread of the engine that dies before it has done anything: the start tells why, at once, in every mode."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from plait import _native
from plait.config import EngineConfig
from plait.config.engine import EngineMode
from plait.engine import core, driver, start_engine
from plait.errors import EngineDeadError
from tests.fakes.tiny_gguf import write_tiny_llama

# Python threads by mode; the native ones run nothing that could fail before their loop.
THREADS: list[tuple[EngineMode, str]] = [
    ("threads", "plait-main"),
    ("threads", "plait-io"),
    ("coroutine", "plait-engine"),
    ("native", "plait-io"),
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(core, "_WARM_UP_TIMEOUT_S", 30.0)  # a failure of this test need not take minutes
    return write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")


def expect_death(model: Path, mode: EngineMode, reason: str) -> None:
    config = EngineConfig(engine_mode=mode, num_compute_threads=1, weight_cache=False)
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match=f"the engine's .*thread died: .*{reason}"):
        start_engine(model, config)
    assert time.monotonic() - begin < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("plait-")]


@pytest.mark.parametrize(("mode", "victim"), THREADS)
def test_a_thread_that_cannot_begin(
    model: Path, mode: EngineMode, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **keywords: Any) -> Any:
        if threading.current_thread().name == victim:
            raise ImportError("injected failure")
        return open(*arguments, **keywords)

    monkeypatch.setattr(driver, "open", fail, raising=False)
    expect_death(model, mode, "injected failure")


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("threads", "RealtimeMessenger"),
        ("threads", "favour_messenger_thread"),
        ("native", "favour_messenger_thread"),
    ],
)
def test_an_extension_that_lacks_what_a_thread_calls(
    model: Path, mode: EngineMode, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older() -> None:
        """Called with an argument: a TypeError, as of an extension that was built for other Python code."""

    monkeypatch.setattr(_native, name, older)
    expect_death(model, mode, "TypeError")


def test_an_event_loop_that_cannot_be_set(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ImportError("injected failure")

    monkeypatch.setattr(asyncio, "set_event_loop", fail)
    expect_death(model, "coroutine", "injected failure")

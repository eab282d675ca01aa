"""An EngineCore over fakes, and a collector of its outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from plait import _native
from plait.config import EngineConfig
from plait.engine.core import EngineCore
from plait.engine.parts import EngineParts
from plait.types import EngineInfo, FinishReason, TokenLogprob, TokenOutput
from tests.fakes.fake_executor import FakeComputeThread, FakeInlineExecutor, FakeModel, FakeStepInput
from tests.fakes.fake_sync import FakeDoorbell, FakeRing

VOCAB = 50
EOS = (3,)


class FakeEngine:
    """The core and its parts, for tests that look inside.

    ``kind``: "fake" for the fake doorbells and rings, "native" for the real ones, "coroutine" for the real ones in
    the coroutine mode. The model is always the fake one, scheduler and KV manager are always the real ones.
    """

    kind = "fake"

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        num_blocks: int = 256,
        max_model_len: int = 512,
        step_s: float = 0.0,
        stall_after_s: float = 30.0,
        fail_step: Callable[[FakeStepInput], str] | None = None,
        start: bool = True,
    ) -> None:
        self.config = config or EngineConfig(block_tokens=4, max_batch_size=16, max_batch_tokens=64)
        is_coroutine = self.kind == "coroutine"
        if is_coroutine:
            self.config = self.config.model_copy(update={"engine_mode": "coroutine"})
        block_tokens = self.config.block_tokens
        self.info = EngineInfo(
            "fake", "fake", VOCAB, max_model_len, EOS, num_blocks, block_tokens, 1, "scalar"
        )
        self.kv = _native.KvManager(num_blocks, block_tokens, b"fake")
        self.model = FakeModel(
            num_blocks,
            block_tokens,
            VOCAB,
            max_slots=self.config.max_batch_size,
            max_tokens=self.config.max_batch_tokens,
        )
        self.bells: list[Any] = []
        self.main_bell = self._new_bell()
        new_executor = FakeInlineExecutor if is_coroutine else FakeComputeThread
        self.compute = new_executor(self.model, self.main_bell.ring, step_s=step_s, fail_step=fail_step)
        self.parts = EngineParts(
            executor=self.compute,
            kv=self.kv,
            main_bell=self.main_bell,
            new_bell=self._new_bell,
            new_mpsc_ring=FakeRing if self.kind == "fake" else _native.ObjectRing,
            new_spsc_ring=FakeRing if self.kind == "fake" else _native.SpscObjectRing,
            run_next=self.compute.run_next if isinstance(self.compute, FakeInlineExecutor) else None,
        )
        self.core = EngineCore(self.parts, self.info, self.config, stall_after_s=stall_after_s)
        if start:
            self.core.start()

    def _new_bell(self) -> Any:
        bell = FakeDoorbell() if self.kind == "fake" else _native.Doorbell()
        self.bells.append(bell)
        return bell

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *args: object) -> None:
        self.compute.gate.set()
        self.core.close()

    def check_clean(self) -> None:
        """Nothing runs and every block came back. Call after close() or when all requests ended."""
        self.kv.check_consistency()
        assert self.kv.num_sequences == 0
        assert self.kv.num_free_blocks == self.kv.num_blocks
        assert not self.core._live


class Collector:
    """An output callback that checks the contract and lets a test wait for the end."""

    def __init__(self, n: int = 1, on_output: Callable[[TokenOutput], Any] | None = None) -> None:
        self.n = n
        self.outputs: list[TokenOutput] = []
        self.tokens: list[list[int]] = [[] for _ in range(n)]
        self.logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
        self.last: list[TokenOutput | None] = [None] * n
        self.violations: list[str] = []
        self.has_output = threading.Event()
        self._done = threading.Event()
        self._on_output = on_output

    def __call__(self, output: TokenOutput) -> None:
        self.outputs.append(output)
        if self.last[output.index] is not None:
            self.violations.append(f"an output after the last one: {output}")
        self.tokens[output.index] += output.token_ids
        self.logprobs[output.index] += output.logprobs
        if output.finish_reason is not None:
            self.last[output.index] = output
        self.has_output.set()
        if all(self.last):
            self._done.set()
        if self._on_output is not None:
            self._on_output(output)

    def wait(self, timeout_s: float = 20.0) -> Collector:
        assert self._done.wait(timeout_s), f"no end within {timeout_s} s: {self.last}"
        assert not self.violations
        return self

    @property
    def reasons(self) -> list[FinishReason | None]:
        return [output.finish_reason if output else None for output in self.last]

    @property
    def errors(self) -> list[str | None]:
        return [output.error if output else None for output in self.last]

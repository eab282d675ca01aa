"""Saves and fetches blocks of a FakeModel, at moments that a test chooses, and checks who touches what meanwhile."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from plait import _native
from tests.fakes.fake_executor import POISON, FakeModel

SKIP = -1


@dataclass
class _Transfer:
    kind: str
    ticket: int
    blocks: list[int]
    content: list[array[int]]
    """save: of the blocks when it was asked for."""
    is_dropped: bool = False


class FakeSwap:
    """``fail_share`` of the transfers fail. Transfers end in any order, when ``finish_some`` or ``finish_one``
    says so."""

    def __init__(self, model: FakeModel, *, seed: int = 0, fail_share: float = 0.0) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._fail_share = fail_share
        self._under_way: list[_Transfer] = []
        self._kept: dict[int, list[array[int]]] = {}
        self.num_asked = {"save": 0, "fetch": 0, "drop": 0}

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def ask(self, request: _native.SwapRequest) -> None:
        self.num_asked[request.kind] += 1
        if request.kind == "drop":
            self._drop(request.ticket)
            return
        blocks = request.blocks
        assert not any(transfer.ticket == request.ticket for transfer in self._under_way)
        if request.kind == "save":
            assert request.ticket not in self._kept
            assert len(blocks) * self._model.block_tokens >= request.num_tokens > 0
            content = [self._model.memory[block][:] for block in blocks]
            assert all(POISON not in values for values in content), "not computed, and yet saved"
        else:
            assert len(blocks) <= len(self._kept[request.ticket])
            content = []
            for block in blocks:
                if block != SKIP:
                    self._model.memory[block] = array("I", [POISON] * self._model.block_tokens)
        self._under_way.append(_Transfer(request.kind, request.ticket, blocks, content))

    def finish_some(self, scheduler: _native.Scheduler) -> bool:
        """Whether it finished any."""
        due = [transfer for transfer in self._under_way if self._rng.random() < 0.3]
        for transfer in due:
            self._finish(scheduler, transfer)
        return bool(due)

    def finish_one(self, scheduler: _native.Scheduler) -> bool:
        """False: none is under way."""
        if not self._under_way:
            return False
        self._finish(scheduler, self._rng.choice(self._under_way))
        return True

    def _finish(self, scheduler: _native.Scheduler, transfer: _Transfer) -> None:
        self._under_way.remove(transfer)
        is_ok = not transfer.is_dropped and self._rng.random() >= self._fail_share
        if transfer.kind == "save":
            now = [self._model.memory[block] for block in transfer.blocks]
            assert now == transfer.content, "a block was written while it was saved"
            if is_ok:
                self._kept[transfer.ticket] = transfer.content
        else:
            for i, block in enumerate(transfer.blocks):
                if block == SKIP:
                    continue
                assert set(self._model.memory[block]) == {POISON}, "a block was written while it was fetched"
                if is_ok:
                    self._model.memory[block] = self._kept[transfer.ticket][i][:]
            if transfer.is_dropped:
                del self._kept[transfer.ticket]
        scheduler.finish_transfer(transfer.ticket, is_ok, num_bytes=len(transfer.blocks), seconds=1e-6)

    def _drop(self, ticket: int) -> None:
        for transfer in self._under_way:
            if transfer.ticket == ticket:
                transfer.is_dropped = True
                return
        del self._kept[ticket]

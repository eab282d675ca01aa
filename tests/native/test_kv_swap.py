"""KvSwap from Python: what the engine's main thread sees of it. Bytes are compared in native tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait import _native

BLOCK_TOKENS = 16
LAYOUT = (2, 1, 16, BLOCK_TOKENS, "f16")
BLOCK_BYTES = 2 * 2 * 16 * BLOCK_TOKENS * 2


class Rig:
    def __init__(self, **options: Any) -> None:
        self.kv = _native.KvManager(16, BLOCK_TOKENS, b"model")
        self.storage = _native.KvStorage(_native.KvLayout(*LAYOUT), 16)
        self.bell = _native.Doorbell()
        self.swap = _native.KvSwap(self.storage, self.kv, self.bell, **options)

    def start(self, seq_id: int, num_tokens: int) -> Any:
        self.kv.open_sequence(seq_id, [], use_cache=False)
        assert self.kv.try_grow(seq_id, num_tokens)
        self.kv.commit(seq_id, [1] * num_tokens)
        return self.kv.capture(seq_id)

    def wait(self) -> Any:
        while True:
            epoch = self.bell.epoch()
            transfers = self.swap.pop_transfers()
            if transfers:
                assert len(transfers) == 1
                return transfers[0]
            assert self.bell.wait(epoch, timeout_s=30.0)


def test_layout_is_what_the_test_says() -> None:
    assert _native.KvLayout(*LAYOUT).block_bytes == BLOCK_BYTES


@pytest.mark.parametrize("is_file", [False, True])
def test_away_and_back(tmp_path: Path, is_file: bool) -> None:
    rig = Rig(dir=str(tmp_path)) if is_file else Rig(ram_bytes=8 * BLOCK_BYTES)
    snapshot = rig.start(1, 40)
    assert snapshot.num_tokens == 40
    assert rig.swap.has_room(3)
    assert rig.swap.try_save(7, snapshot)
    assert rig.swap.num_transfers == 1
    saved = rig.wait()
    assert (saved.ticket, saved.is_save, saved.ok, saved.error) == (7, True, True, "")
    assert (saved.is_file, saved.num_blocks, saved.num_bytes) == (is_file, 3, 3 * BLOCK_BYTES)
    assert 0 < saved.begin_ns <= saved.end_ns
    assert rig.swap.is_saved(7)
    used = rig.swap.counters()
    assert used["file_bytes_used" if is_file else "ram_bytes_used"] == 3 * BLOCK_BYTES
    rig.kv.close_sequence(1)

    rig.kv.open_sequence(1, [], use_cache=False)
    assert rig.kv.try_grow(1, 40)
    table = rig.kv.block_table(1)
    assert rig.swap.try_fetch(7, [-1, *table[1:]])
    fetched = rig.wait()
    assert (fetched.ticket, fetched.is_save, fetched.ok, fetched.num_blocks) == (7, False, True, 2)
    rig.swap.drop(7)
    assert not rig.swap.is_saved(7)
    assert rig.swap.counters() == {
        "num_saved_blocks": 3,
        "num_saved_bytes": 3 * BLOCK_BYTES,
        "num_fetched_blocks": 2,
        "num_fetched_bytes": 2 * BLOCK_BYTES,
        "num_failures": 0,
        "ram_bytes_used": 0,
        "file_bytes_used": 0,
    }
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_an_answer() -> None:
    rig = Rig(ram_bytes=2 * BLOCK_BYTES)
    assert not rig.swap.has_room(3)
    assert not rig.swap.try_save(1, rig.start(1, 33))
    assert rig.swap.try_save(2, rig.start(2, 32))
    assert rig.wait().ok
    assert not rig.swap.has_room(1)
    assert rig.swap.pop_transfers() == []


def test_what_was_written_meanwhile_is_not_saved() -> None:
    rig = Rig(ram_bytes=8 * BLOCK_BYTES)
    snapshot = rig.start(1, 20)
    assert rig.kv.try_grow(1, 21)
    assert rig.swap.try_save(1, snapshot)
    transfer = rig.wait()
    assert not transfer.ok
    assert "given to a writer" in transfer.error
    assert not rig.swap.is_saved(1)
    assert rig.swap.counters()["num_failures"] == 1
    assert rig.swap.last_error == transfer.error


def test_a_dropped_transfer_completes_as_cancelled() -> None:
    rig = Rig(ram_bytes=8 * BLOCK_BYTES)
    assert rig.swap.try_save(1, rig.start(1, 100))
    rig.swap.drop(1)
    transfer = rig.wait()
    assert (transfer.ok, transfer.error) == (False, "cancelled")
    assert rig.swap.num_transfers == 0
    assert rig.swap.counters()["num_failures"] == 0


def test_wrong_use_raises(tmp_path: Path) -> None:
    rig = Rig(ram_bytes=8 * BLOCK_BYTES)
    snapshot = rig.start(1, 20)
    for call in (
        lambda: rig.swap.try_fetch(1, [0]),
        lambda: rig.swap.try_save(1, rig.kv.capture(2)),
        lambda: Rig(ram_bytes=-1),
    ):
        with pytest.raises(_native.NativeError) as caught:
            call()
        assert caught.value.args[0] == "invalid_argument"
    with pytest.raises(_native.NativeError, match="nowhere") as caught:
        Rig(dir=str(tmp_path / "nowhere"))
    assert caught.value.args[0] == "system"
    assert rig.swap.try_save(1, snapshot)
    with pytest.raises(_native.NativeError, match="is kept already"):
        rig.swap.try_save(1, snapshot)

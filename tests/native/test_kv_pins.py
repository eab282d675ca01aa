"""Pinned prefixes of a KvManager: they stay through a flood, and never take more than their share."""

from __future__ import annotations

import pytest

from plait import _native
from tests.native.test_kv import make_kv, run_prompt


def test_pinned_prefix_outlives_a_flood() -> None:
    kv = make_kv(num_blocks=12)
    run_prompt(kv, 0, [1, 2, 3, 4, 5, 6, 7])
    run_prompt(kv, 1, [8] * 7)
    kv.close_sequence(0)
    kv.close_sequence(1)
    handle, num_tokens = kv.pin_prefix([1, 2, 3, 4, 5, 6, 7])
    assert num_tokens == 6
    assert kv.num_pinned_blocks == 2
    assert kv.num_free_blocks == 10
    for seq_id in range(2, 30):
        run_prompt(kv, seq_id, [seq_id * 100 + i for i in range(30)])  # every other block
        assert kv.num_free_blocks == 0
        kv.close_sequence(seq_id)
    assert kv.open_sequence(0, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert kv.open_sequence(1, [8] * 7) == 0
    kv.close_sequence(0)
    kv.close_sequence(1)
    kv.unpin(handle)
    run_prompt(kv, 0, [9] * 36)
    kv.close_sequence(0)
    assert kv.open_sequence(0, [1, 2, 3, 4, 5, 6, 7]) == 0


def test_pins_say_what_does_not_fit() -> None:
    kv = make_kv(num_blocks=12)
    assert kv.max_pinned_blocks == 3
    run_prompt(kv, 0, list(range(12)), b"t")
    run_prompt(kv, 1, [0, 1, 2, 9, 9, 9, 9], b"t")
    with pytest.raises(
        _native.NativeError, match=r"cannot pin 4 more blocks: 0 are pinned, and at most 3 of 12"
    ):
        kv.pin_prefix(list(range(12)), b"t")
    first, _ = kv.pin_prefix(list(range(6)), b"t")
    second, num_tokens = kv.pin_prefix([0, 1, 2, 9, 9, 9], b"t")  # shares its first block
    assert num_tokens == 6
    assert kv.num_pinned_blocks == 3
    with pytest.raises(_native.NativeError, match=r"cannot pin 1 more blocks: 3 are pinned"):
        kv.pin_prefix(list(range(9)), b"t")
    with pytest.raises(_native.NativeError, match="its first full block of 3 tokens is not in the cache"):
        kv.pin_prefix(list(range(6)), b"other tenant")
    kv.unpin(first)
    assert kv.num_pinned_blocks == 2
    kv.unpin(second)
    with pytest.raises(_native.NativeError, match="no prefix is pinned as"):
        kv.unpin(second)
    assert kv.num_pinned_blocks == 0
    kv.check_consistency()

"""Work of others on our CPUs, from made-up and real numbers of the system."""

from __future__ import annotations

import pytest

from plait.bench.other_work import OtherWork, busy_ticks


def test_busy_ticks_are_all_but_idle_and_of_our_cpus() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 99 99 8 16 32 0 0\ncpu1 1 0 0 5 0 0 0 0 0 0\ncpu10 7 0 0 0 0 0 0 0"
    assert busy_ticks(stat, {0}) == 1 + 2 + 4 + 8 + 16 + 32
    assert busy_ticks(stat, {0, 1}) == 64


def test_other_work_leaves_out_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work, and our share of it, in seconds: 10 s pass, 14 are worked, 11 of them by us."""
    moments = iter([(100.0, 50.0, 5.0), (110.0, 64.0, 16.0)])
    monkeypatch.setattr(OtherWork, "_now", staticmethod(lambda: next(moments)))
    assert OtherWork().num_cpus() == pytest.approx(0.3)


def test_real_numbers_are_sane() -> None:
    assert 0 <= OtherWork().num_cpus() < 10_000

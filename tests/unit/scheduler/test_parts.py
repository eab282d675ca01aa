"""The small parts of the scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.scheduler.budget import MIN_SLICE_TOKENS, PrefillPacer, share_prefill
from plait.scheduler.request import derive_seed
from plait.scheduler.tenants import Tenants


@given(
    remaining=st.lists(st.integers(1, 5000), max_size=40),
    budget=st.integers(0, 1000),
    max_slice=st.integers(1, 600),
)
def test_shares_use_the_budget_and_keep_the_caps(remaining: list[int], budget: int, max_slice: int) -> None:
    shares = share_prefill(remaining, budget, max_slice)
    caps = [min(need, max_slice) for need in remaining]
    assert all(0 <= share <= cap for share, cap in zip(shares, caps, strict=True))
    assert sum(shares) == min(budget, sum(caps))
    if remaining and budget:
        assert shares[0] > 0, "the oldest prompt always moves"
        assert shares[0] >= min(caps[0], budget // max(2, budget // MIN_SLICE_TOKENS))


@pytest.mark.parametrize(
    ("remaining", "budget", "expected"),
    [
        ([500], 100, [100]),
        ([2, 1], 1, [1, 0]),
        ([1000, 20], 100, [80, 20]),
        ([30, 30, 30], 200, [30, 30, 30]),
        ([128] * 4, 256, [64] * 4),
        ([400, 300, 200, 100], 128, [64, 0, 0, 64]),
    ],
)
def test_shares_by_example(remaining: list[int], budget: int, expected: list[int]) -> None:
    assert share_prefill(remaining, budget, 512) == expected


def test_the_pacer_learns_and_forgets_slowly() -> None:
    pacer = PrefillPacer(1000, 0.1)
    assert pacer.budget(num_decodes=8) == 992, "nothing is known yet"
    pacer.observe(400, 0, 0.4)
    assert pacer.token_s == pytest.approx(0.001)
    assert pacer.budget(num_decodes=0) == 1000, "nobody to hold up"
    assert pacer.budget(num_decodes=8) == 92
    assert pacer.budget(num_decodes=60) == MIN_SLICE_TOKENS
    pacer.observe(8, 8, 5.0)
    assert pacer.token_s == pytest.approx(0.001), "decode steps teach nothing"
    pacer.observe(400, 0, 0.8)
    assert 0.001 < pacer.token_s < 0.002


def test_seeds_of_choices_differ_and_the_first_is_the_request_s_own() -> None:
    seeds = {derive_seed(seed, index) for seed in range(50) for index in range(64)}
    assert len(seeds) == 50 * 64
    assert derive_seed(12, 0) == 12
    assert derive_seed(-1, 0) == 2**64 - 1
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_tenants_level_a_newcomer_and_forget_the_idle() -> None:
    tenants = Tenants()
    a, b = tenants.enter("a"), tenants.enter("b")
    a.served, b.served = 100, 40
    assert tenants.enter("c").served == 40
    assert tenants.enter("a") is a
    tenants.leave(a)
    assert len(tenants) == 3
    tenants.leave(a)
    assert tenants.enter("a").served == 40

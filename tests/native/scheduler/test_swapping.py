"""Preempted sequences that are saved and brought back: who holds what, and the tokens of a lone run."""

from __future__ import annotations

import random

import pytest

from plait._native import NativeError
from plait.types import FinishReason, GenerateRequest
from tests.fakes.driver import Driver
from tests.native.scheduler.test_scheduler import check_result, limits, request

SMALL = {"num_blocks": 12, "enable_prefix_cache": False, "kv_block_bytes": 1}


def four_requests() -> list[GenerateRequest]:
    return [request(6, 30, first=first, temperature=1.0, repetition_penalty=1.2) for first in range(4)]


def run_four(driver: Driver) -> None:
    asked = four_requests()
    for request_id, one in enumerate(asked):
        driver.add(request_id, one)
    driver.run()
    for request_id, one in enumerate(asked):
        check_result(driver, request_id, one)
    driver.check_clean()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_saved_sequence_goes_on_without_computing_again(depth: int) -> None:
    saving = Driver(limits(**SMALL), depth=depth, step_s=0.1)
    run_four(saving)
    stats = saving.scheduler.stats
    assert stats.saved_sequences_total > 0
    assert stats.fetched_sequences_total > 0
    assert stats.failed_transfers_total == 0
    assert saving.swap.num_asked["drop"] == saving.swap.num_asked["save"]
    computing = Driver(limits(**{**SMALL, "kv_block_bytes": 0}), depth=depth, step_s=0.1)
    run_four(computing)
    assert computing.scheduler.stats.preemptions_total > 0
    assert computing.swap.num_asked["save"] == 0
    assert stats.prefill_tokens_total < computing.scheduler.stats.prefill_tokens_total


def test_blocks_are_held_until_they_are_saved() -> None:
    driver = Driver(limits(**SMALL), step_s=0.1)
    driver.is_swap_stuck = True
    for request_id, one in enumerate(four_requests()[:2]):
        driver.add(request_id, one)
    while driver.swap.is_idle:
        assert driver.turn()
    assert driver.scheduler.stats.preemptions_total == 1
    assert driver.scheduler.has_transfers
    num_free = driver.kv.num_free_blocks
    assert num_free < 3
    before = len(driver.tokens[0, 0])
    while driver.plan() is not None or driver.take_result():  # all that runs without more blocks
        pass
    assert driver.kv.num_free_blocks <= num_free, "the saved one gave nothing back yet"
    assert driver.scheduler.stats.preemptions_total == 1, "whoever needs blocks waits for those"
    assert len(driver.tokens[0, 0]) <= before + driver.limits.block_tokens
    driver.swap.finish_one(driver.scheduler)
    assert driver.kv.num_free_blocks > num_free + 2
    driver.run()
    for request_id, one in enumerate(four_requests()[:2]):
        check_result(driver, request_id, one)
    driver.check_clean()


@pytest.mark.parametrize("swap_failures", [0.5, 1.0])
def test_what_fails_is_computed_again(swap_failures: float) -> None:
    failures = 0
    for seed in range(4):
        driver = Driver(limits(**SMALL), step_s=0.1, swap_seed=seed, swap_failures=swap_failures)
        run_four(driver)
        failures += driver.scheduler.stats.failed_transfers_total
        assert swap_failures < 1.0 or driver.scheduler.stats.fetched_sequences_total == 0
    assert failures > 0


@pytest.mark.parametrize("kind", ["save", "fetch"])
@pytest.mark.parametrize("is_asked", [False, True])
def test_an_abort_during_a_transfer_gives_everything_back(kind: str, is_asked: bool) -> None:
    """Before it is asked for (steps are in flight), and while it is under way."""
    driver = Driver(limits(**{**SMALL, "num_blocks": 16}), step_s=0.1)
    driver.is_swap_stuck = True
    asked = [request(5, 30), request(6, 30, first=1), request(7, 30, first=2)]
    for request_id in (0, 1):  # they need blocks in different steps: one runs when the other has none
        driver.add(request_id, asked[request_id])

    def is_there() -> bool:
        if is_asked:
            return driver.swap.num_asked[kind] > 0
        if kind == "save":
            return driver.scheduler.stats.preemptions_total > 0
        # It has blocks and is in no step: they come when the steps in flight have ended.
        num_rows = len(driver.plans[-1].rows) if driver.plans else 0
        return driver.swap.num_kept > 0 and 0 < num_rows < driver.scheduler.num_running

    while not is_there():
        assert driver.turn_a_little()
        if driver.swap.num_kept and 3 not in driver.given:
            driver.add(3, request(1, 24, first=9, tenant="x"))  # runs while the other one comes back
    assert driver.swap.num_asked[kind] == int(is_asked)
    driver.scheduler.abort(1)
    driver.collect()
    assert driver.reasons(1) == [FinishReason.ABORT]
    newcomer = asked[2]
    driver.add(2, newcomer)
    driver.run()
    check_result(driver, 0, asked[0])
    check_result(driver, 2, newcomer)
    for request_id in driver.given - {0, 1, 2}:
        check_result(driver, request_id, request(1, 24, first=9, tenant="x"))
    driver.check_clean()


@pytest.mark.parametrize("num_turns", range(0, 60, 3))
@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_at_any_moment_leaks_nothing(num_turns: int, n: int) -> None:
    driver = Driver(limits(**SMALL), step_s=0.1, swap_seed=num_turns)
    asked = [request(6, 30, first=first, n=n) for first in range(3)]
    for request_id, one in enumerate(asked):
        driver.add(request_id, one)
    for _ in range(num_turns):
        driver.turn()
        driver.kv.check_consistency()
    driver.scheduler.abort(1)
    driver.scheduler.abort(2)
    driver.run()
    check_result(driver, 0, asked[0])
    driver.check_clean()


def test_what_costs_more_to_move_than_to_compute_is_not_saved() -> None:
    driver = Driver(limits(**{**SMALL, "kv_block_bytes": 1 << 40}), step_s=0.1)
    run_four(driver)
    assert driver.scheduler.stats.preemptions_total > 0
    assert driver.swap.num_asked["save"] == 0


def test_nothing_is_saved_where_a_slot_is_short() -> None:
    """The prefix cache has the blocks still when the sequence comes back."""
    driver = Driver(limits(max_batch_size=4, kv_block_bytes=1), step_s=0.1)
    for request_id in range(8):
        driver.add(request_id, request(6, 40, tenant="heavy", first=request_id, ignore_eos=True))
    for _ in range(10):
        driver.turn()
    driver.add(8, request(20, 30, tenant="light", ignore_eos=True))
    driver.run()
    assert driver.scheduler.stats.preemptions_total > 0
    assert driver.swap.num_asked["save"] == 0
    driver.check_clean()


def test_prompt_logprobs_survive_a_save() -> None:
    driver = Driver(limits(num_blocks=12, prefill_chunk_tokens=4, kv_block_bytes=1), step_s=0.1)
    driver.add(1, request(10, 34))
    asked = request(12, 20, first=6, prompt_logprobs=1, logprobs=1)
    driver.add(2, asked)
    driver.run()
    assert driver.scheduler.stats.fetched_sequences_total > 0
    check_result(driver, 2, asked)
    driver.check_clean()


def test_what_the_prefix_cache_has_is_not_fetched() -> None:
    driver = Driver(limits(num_blocks=14, kv_block_bytes=1, max_batch_size=3), step_s=0.1)
    asked = [request(17, 18, first=5, seed=None), request(17, 18, first=5), request(17, 18, first=5)]
    for request_id, one in enumerate(asked):
        driver.add(request_id, one, seed=request_id)
    driver.run()
    for request_id, one in enumerate(asked):
        check_result(driver, request_id, one, seed=request_id)
    driver.check_clean()


def test_answers_to_nothing_are_our_bug() -> None:
    driver = Driver(limits(**SMALL))
    with pytest.raises(NativeError, match="nothing is asked of ticket 5"):
        driver.scheduler.finish_transfer(5, True)


@pytest.mark.parametrize("seed", range(20))
def test_crowds_in_a_pool_of_a_tenth_finish_with_their_tokens(seed: int) -> None:
    rng = random.Random(seed)
    asked = [
        request(
            rng.randrange(1, 30),
            rng.randrange(1, 30),
            first=rng.randrange(5),
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 0, -1]),
            tenant=rng.choice(["a", "b"]),
        )
        for _ in range(16)
    ]
    driver = Driver(
        limits(num_blocks=16, kv_block_bytes=1, enable_prefix_cache=seed % 2 == 0),
        depth=1 + seed % 2,
        step_s=0.1,
        swap_seed=seed,
        swap_failures=0.1 * (seed % 3),
    )
    for request_id, one in enumerate(asked):
        driver.add(request_id, one)
    while driver.turn():
        driver.kv.check_consistency()
    for request_id, one in enumerate(asked):
        check_result(driver, request_id, one)
    assert driver.scheduler.stats.saved_sequences_total > 0
    driver.check_clean()

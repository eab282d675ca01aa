"""Scheduler policy, step by step, on a fake clock."""

from __future__ import annotations

import msgspec
import pytest

from plait._native import SchedulerLimits
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.driver import VOCAB, Driver, replace_limits
from tests.fakes.reference import expected_choices, expected_prompt_logprobs

LIMITS = SchedulerLimits(
    num_blocks=64, block_tokens=4, max_batch_size=8, max_batch_tokens=32, prefill_chunk_tokens=32
)
EOS = (3,)


def limits(**changes: object) -> SchedulerLimits:
    return replace_limits(LIMITS, **changes)


def request(num_prompt: int, max_tokens: int = 8, *, first: int = 5, **fields: object) -> GenerateRequest:
    envelope = {
        k: fields.pop(k) for k in ("tenant", "priority", "deadline_s", "produced_token_ids") if k in fields
    }
    sampling = SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
    prompt = tuple((first + 7 * i) % VOCAB for i in range(num_prompt))
    return GenerateRequest(prompt, sampling, **envelope)  # type: ignore[arg-type]


def check_result(driver: Driver, request_id: int, asked: GenerateRequest, seed: int = 7) -> None:
    max_tokens = asked.sampling.max_tokens
    assert max_tokens is not None
    choices = expected_choices(
        asked, seed=seed, max_tokens=max_tokens, eos=tuple(driver.limits.eos_token_ids), vocab_size=VOCAB
    )
    for index, choice in enumerate(choices):
        key = (request_id, index)
        assert driver.tokens[key] == choice.token_ids
        assert driver.logprobs[key] == choice.logprobs
        assert driver.finished[key].finish_reason == choice.finish_reason


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_request_gives_the_reference_tokens(depth: int, temperature: float) -> None:
    driver = Driver(limits(eos_token_ids=EOS), depth=depth)
    asked = request(10, 30, temperature=temperature)
    driver.add(1, asked)
    driver.run()
    check_result(driver, 1, asked)
    driver.check_clean()


def test_a_step_is_planned_before_the_result_of_the_one_before() -> None:
    driver = Driver(LIMITS)
    driver.add(1, request(4, 3))
    first, second, third = driver.plan(), driver.plan(), driver.plan()
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.step.token_ids == third.step.token_ids == [-1]
    assert driver.plan() is None, "max_tokens is known ahead: no step past it"
    while driver.take_result():
        pass
    assert driver.reasons(1) == [FinishReason.LENGTH]
    driver.check_clean()


def test_a_late_eos_frees_blocks_at_once_and_drops_the_token_in_flight() -> None:
    asked = request(6, 30, temperature=0.0)
    token = expected_choices(asked, seed=7, max_tokens=30, eos=(), vocab_size=VOCAB)[0].token_ids[0]
    driver = Driver(limits(eos_token_ids=(token,)))
    driver.add(1, asked)
    driver.plan()
    driver.plan()
    driver.take_result()
    assert driver.reasons(1) == [FinishReason.STOP]
    assert driver.finished[1, 0].stop_token_id == token
    assert driver.tokens[1, 0] == [token]
    assert driver.kv.num_free_blocks == driver.limits.num_blocks
    driver.take_result()
    assert driver.tokens[1, 0] == [token]
    assert driver.scheduler.stats.dropped_tokens_total == 1
    driver.check_clean()


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_frees_slots_and_blocks_while_steps_use_them(n: int) -> None:
    """Whoever comes next may have them at once, and nothing of the old owner shows in its tokens."""
    driver = Driver(limits(num_blocks=6, max_batch_size=n))
    driver.add(1, request(14, 30, n=n, ignore_eos=True))
    for _ in range(3):
        driver.turn()
    assert driver.plan() is not None
    driver.scheduler.abort(1)
    assert driver.kv.num_free_blocks == driver.limits.num_blocks
    newcomer = request(18, 4, first=6)
    driver.add(2, newcomer)
    plan = driver.plan()
    assert plan is not None
    assert plan.rows == [2]
    driver.run()
    check_result(driver, 2, newcomer)
    driver.check_clean()


def test_ignore_eos_and_min_tokens() -> None:
    greedy = request(6, 12, temperature=0.0)
    token = expected_choices(greedy, seed=7, max_tokens=12, eos=(), vocab_size=VOCAB)[0].token_ids[0]
    driver = Driver(limits(eos_token_ids=(token,)))
    ignoring = request(6, 12, temperature=0.0, ignore_eos=True)
    at_least = request(6, 12, temperature=0.0, min_tokens=5)
    driver.add(1, ignoring)
    driver.add(2, at_least)
    driver.run()
    check_result(driver, 1, ignoring)
    check_result(driver, 2, at_least)
    assert driver.reasons(1) == [FinishReason.LENGTH]
    assert len(driver.tokens[2, 0]) >= 5
    driver.check_clean()


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    driver = Driver(limits(max_batch_tokens=128, prefill_chunk_tokens=128, num_blocks=400), depth=1)
    driver.add(1, request(4, 100))
    driver.turn()
    driver.add(2, request(1000, 4))
    driver.add(3, request(80, 4, first=6))
    plan = driver.plan()
    assert plan is not None
    assert plan.rows == [1, 2, 3]
    assert plan.step.token_ids[0] >= 0
    assert plan.slices == [1, 64, 63]


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    driver = Driver(limits(max_batch_tokens=256, prefill_chunk_tokens=256, num_blocks=3000), depth=1)
    driver.add(1, request(10_000, 2))
    driver.turn()
    driver.add(2, request(100, 2, first=6))
    for _ in range(3):
        driver.turn()
    assert driver.reasons(2) == [FinishReason.LENGTH]
    assert not driver.finished.get((1, 0))
    driver.run()
    driver.check_clean()


def test_prefill_slices_shrink_to_the_time_target_while_others_decode() -> None:
    wide = limits(max_batch_tokens=1024, prefill_chunk_tokens=1024, num_blocks=4000, target_step_s=0.1)
    driver = Driver(wide, depth=1, step_s=lambda step: 0.001 * len(step.token_ids))
    driver.add(1, request(1024, 100, ignore_eos=True))
    for _ in range(30):
        driver.turn()
    driver.add(2, request(4000, 2, first=6))
    for _ in range(10):
        plan = driver.plan()
        assert plan is not None
        driver.take_result()
    assert 90 <= plan.num_prefill_tokens <= 110


def test_without_a_target_slices_go_by_what_the_decodes_take() -> None:
    wide = limits(max_batch_tokens=1024, prefill_chunk_tokens=1024, num_blocks=4000, max_batch_size=32)
    driver = Driver(wide, depth=1, step_s=lambda step: 0.001 * len(step.token_ids))
    for request_id in range(20):
        driver.add(request_id, request(10, 200, first=request_id, ignore_eos=True))
    for _ in range(30):
        driver.turn()
    driver.add(100, request(4000, 2, first=6))
    for _ in range(10):
        plan = driver.plan()
        assert plan is not None
        driver.take_result()
    assert 14 <= plan.num_prefill_tokens <= 20, "0.8 times 20 ms, and some more since contexts grow"


def test_chunks_respect_their_cap() -> None:
    driver = Driver(limits(prefill_chunk_tokens=5))
    asked = request(23, 3)
    driver.add(1, asked)
    driver.run()
    assert max(plan.num_prefill_tokens for plan in driver.plans) == 5
    check_result(driver, 1, asked)


def test_the_prefix_cache_skips_what_is_known() -> None:
    driver = Driver(LIMITS)
    asked = request(21, 4)
    driver.add(1, asked)
    driver.run()
    rows = driver.model.num_rows
    driver.add(2, asked)
    driver.run()
    assert driver.first[2, 0].num_cached_tokens == 20
    assert driver.model.num_rows - rows == 1 + 3
    check_result(driver, 2, asked)
    driver.add(3, msgspec.structs.replace(asked, tenant="other"))
    driver.run()
    assert driver.first[3, 0].num_cached_tokens == 0
    check_result(driver, 3, asked)
    driver.check_clean()


def test_without_the_prefix_cache_nothing_is_reused() -> None:
    driver = Driver(limits(enable_prefix_cache=False))
    for request_id in (1, 2):
        driver.add(request_id, request(21, 4))
        driver.run()
        assert driver.first[request_id, 0].num_cached_tokens == 0
    driver.check_clean()


@pytest.mark.parametrize("num_prompt", [8, 9, 11])
def test_n_choices_share_one_prefill(num_prompt: int) -> None:
    driver = Driver(limits(enable_prefix_cache=False))
    asked = request(num_prompt, 9, n=5, temperature=1.0, logprobs=2)
    driver.add(1, asked)
    driver.run()
    check_result(driver, 1, asked)
    assert len({tuple(driver.tokens[1, i]) for i in range(5)}) == 5
    assert sum(plan.num_prefill_tokens for plan in driver.plans) == num_prompt
    driver.check_clean()


def test_more_choices_than_slots_wait_for_their_turn() -> None:
    driver = Driver(limits(max_batch_size=3))
    asked = request(9, 6, n=10)
    driver.add(1, asked)
    driver.run()
    check_result(driver, 1, asked)
    driver.check_clean()


def test_choices_of_a_tiny_pool_preempt_each_other() -> None:
    driver = Driver(limits(num_blocks=8, max_batch_size=8))
    asked = request(9, 20, n=6)
    driver.add(1, asked)
    driver.run()
    check_result(driver, 1, asked)
    assert driver.scheduler.stats.preemptions_total > 0
    driver.check_clean()


def test_preempted_sequences_are_the_youngest_and_give_the_same_tokens() -> None:
    driver = Driver(limits(num_blocks=12, enable_prefix_cache=False))
    asked = [request(6, 30, first=first, temperature=1.0, repetition_penalty=1.2) for first in range(4)]
    for request_id, one in enumerate(asked):
        driver.add(request_id, one)
    driver.run()
    for request_id, one in enumerate(asked):
        check_result(driver, request_id, one)
    assert driver.scheduler.stats.preemptions_total > 0
    order = [key[0] for key in driver.finished]
    assert order[0] == 0, "the oldest is never preempted"
    driver.check_clean()


def test_priorities_rank_admission_and_preemption() -> None:
    driver = Driver(limits(num_blocks=12, max_batch_size=2))
    driver.add(1, request(6, 30))
    driver.add(2, request(6, 30, first=6))
    driver.add(3, request(6, 30, first=7, priority=-1))
    driver.run()
    assert next(iter(driver.finished)) == (3, 0)
    driver.check_clean()


def test_growth_beyond_the_pool_ends_that_request_only() -> None:
    driver = Driver(limits(num_blocks=4))
    driver.add(1, request(6, 100))  # validation would refuse it
    driver.add(2, request(6, 4, first=6))
    driver.run()
    assert driver.reasons(1) == [FinishReason.ERROR]
    assert "whole pool has 4" in (driver.finished[1, 0].error or "")
    assert driver.reasons(2) == [FinishReason.LENGTH]
    driver.check_clean()


def test_a_prompt_beyond_the_pool_is_an_error_and_blocks_nobody() -> None:
    driver = Driver(limits(num_blocks=4))
    driver.add(1, request(60, 4))
    driver.add(2, request(6, 4))
    driver.run()
    assert driver.reasons(1) == [FinishReason.ERROR]
    assert driver.reasons(2) == [FinishReason.LENGTH]
    driver.check_clean()


def test_a_large_prompt_is_not_passed_over_by_small_ones() -> None:
    driver = Driver(limits(num_blocks=20, max_batch_size=8))
    driver.add(1, request(40, 20))
    driver.turn()
    driver.add(2, request(60, 2, first=6))
    for request_id in range(3, 9):
        driver.add(request_id, request(4, 2, first=request_id))
    driver.run()
    first_step = {}
    for plan in driver.plans:
        for request_id, _ in plan.names.starts:
            first_step.setdefault(request_id, plan.step_id)
    assert first_step[2] == min(first_step[i] for i in range(2, 9)) > 1
    driver.check_clean()


def test_tenants_take_turns_by_tokens() -> None:
    driver = Driver(limits(max_batch_size=1, num_blocks=200), depth=1)
    for i in range(6):
        driver.add(i, request(40, 4, first=i, tenant="greedy"))
    for i in range(6, 9):
        driver.add(i, request(4, 4, first=i, tenant="modest"))
    driver.run()
    order = [key[0] for key in driver.finished]
    assert max(order.index(i) for i in range(6, 9)) < 5
    driver.check_clean()


def test_a_tenant_that_was_away_has_no_credit() -> None:
    driver = Driver(limits(max_batch_size=1), depth=1)
    for i in range(4):
        driver.add(i, request(8, 8, first=i, tenant="steady"))
    while len(driver.finished) < 2:
        driver.turn()
    driver.add(10, request(8, 8, tenant="late"))
    driver.add(11, request(8, 8, first=6, tenant="late"))
    driver.run()
    order = [key[0] for key in driver.finished]
    assert order.index(3) < order.index(11)


@pytest.mark.parametrize("num_turns", range(8))
@pytest.mark.parametrize("n", [1, 4])
def test_an_abort_at_any_moment_ends_every_choice_once(num_turns: int, n: int) -> None:
    driver = Driver(limits(prefill_chunk_tokens=4, num_blocks=14))
    driver.add(1, request(14, 10, n=n))
    driver.add(2, request(9, 10, first=6))
    for _ in range(num_turns):
        driver.turn()
    driver.scheduler.abort(1)
    driver.scheduler.abort(1)
    driver.scheduler.abort(99)
    driver.collect()
    assert driver.reasons(1) == [FinishReason.ABORT] * n
    driver.run()
    check_result(driver, 2, request(9, 10, first=6))
    driver.check_clean()


def test_a_failed_step_ends_its_sequences_only() -> None:
    driver = Driver(LIMITS)
    driver.add(1, request(6, 10, n=3))
    for _ in range(3):
        driver.turn()
    driver.fail_steps = {len(driver.plans)}
    driver.turn()
    driver.add(2, request(6, 10, first=6))
    driver.run()
    assert driver.reasons(1) == [FinishReason.ERROR] * 3
    assert "injected failure" in (driver.finished[1, 0].error or "")
    check_result(driver, 2, request(6, 10, first=6))
    driver.check_clean()


def test_a_failed_prefill_step_ends_choices_that_were_not_forked() -> None:
    driver = Driver(limits(prefill_chunk_tokens=4))
    driver.fail_steps = {1}
    driver.add(1, request(20, 10, n=3))
    driver.run()
    assert driver.reasons(1) == [FinishReason.ERROR] * 3
    driver.check_clean()


def test_an_exception_of_the_kv_manager_ends_one_request() -> None:
    driver = Driver(LIMITS)
    driver.kv.open_sequence(1, [5])  # the id that the second request's sequence will ask for
    driver.add(1, request(6, 10))
    driver.add(2, request(13, 10))
    driver.add(3, request(7, 10, first=6))
    driver.run()
    assert driver.reasons(2) == [FinishReason.ERROR]
    assert "already open" in (driver.finished[2, 0].error or "")
    check_result(driver, 1, request(6, 10))
    check_result(driver, 3, request(7, 10, first=6))
    driver.check_clean()


def test_choices_forked_off_a_failed_prompt_step_end_with_it() -> None:
    driver = Driver(limits(prefill_chunk_tokens=8))
    driver.fail_steps = {0}
    driver.add(1, request(13, 10, n=3))
    driver.plan()
    plan = driver.plan()
    assert plan is not None
    assert len(plan.names.forked) == 2, "the fork is planned before the failure shows"
    driver.run()
    assert driver.reasons(1) == [FinishReason.ERROR] * 3
    driver.check_clean()


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_prompt_logprobs_are_whole_whatever_the_chunks(chunk: int) -> None:
    driver = Driver(limits(prefill_chunk_tokens=chunk))
    asked = request(13, 4, n=2, prompt_logprobs=3, logprobs=0)
    for request_id in (1, 2):  # the second would find its prompt cached
        driver.add(request_id, asked)
        driver.run()
        expected = expected_prompt_logprobs(asked, VOCAB)
        assert list(driver.first[request_id, 0].prompt_logprobs) == expected
        assert driver.first[request_id, 1].prompt_logprobs == ()
        assert driver.first[request_id, 0].num_cached_tokens == 0
        check_result(driver, request_id, asked)
    driver.check_clean()


def test_prompt_logprobs_survive_a_preemption() -> None:
    driver = Driver(limits(num_blocks=12, prefill_chunk_tokens=4))
    driver.add(1, request(10, 34))
    asked = request(12, 20, first=6, prompt_logprobs=1)
    driver.add(2, asked)
    driver.run()
    assert driver.scheduler.stats.preemptions_total > 0
    assert list(driver.first[2, 0].prompt_logprobs) == expected_prompt_logprobs(asked, VOCAB)
    check_result(driver, 2, asked)
    driver.check_clean()


def test_a_request_goes_on_after_produced_tokens() -> None:
    whole = request(9, 12, temperature=1.0)
    tokens = expected_choices(whole, seed=7, max_tokens=12, eos=(), vocab_size=VOCAB)[0].token_ids
    driver = Driver(LIMITS)
    driver.add(1, msgspec.structs.replace(whole, produced_token_ids=tuple(tokens[:5])))
    driver.run()
    assert driver.tokens[1, 0] == tokens[5:]
    assert driver.reasons(1) == [FinishReason.LENGTH]
    driver.check_clean()

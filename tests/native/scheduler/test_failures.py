"""What the scheduler refuses, and what ends when something around it fails."""

from __future__ import annotations

import pytest

from plait._native import KvManager, NativeError, Scheduler, StepResult
from plait.engine.scheduling import new_request
from plait.types import FinishReason
from tests.fakes.driver import VOCAB, Driver
from tests.fakes.reference import expected_choices
from tests.native.scheduler.test_scheduler import LIMITS, check_result, limits, request


def test_a_choice_that_cannot_be_forked_ends_alone() -> None:
    driver = Driver(LIMITS)
    driver.kv.open_sequence(2, [5])  # the id of the third choice
    driver.add(1, request(9, 6, n=4))
    driver.run()
    assert driver.reasons(1) == [
        FinishReason.LENGTH,
        FinishReason.LENGTH,
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    assert "no KV cache for this choice" in (driver.finished[1, 2].error or "")
    choices = expected_choices(request(9, 6, n=4), seed=7, max_tokens=6, eos=(), vocab_size=VOCAB)
    for index in (0, 1, 3):
        assert driver.tokens[1, index] == choices[index].token_ids
    driver.kv.close_sequence(2)
    driver.check_clean()


def test_a_request_is_taken_once_and_its_id_is_used_once() -> None:
    driver = Driver(LIMITS)
    native = new_request(1, request(6, 4), max_tokens=4, seed=7, now_ns=driver.now_ns)
    twin = new_request(1, request(6, 4), max_tokens=4, seed=7, now_ns=driver.now_ns)
    driver.scheduler.add(native)
    assert (native.request_id, native.n, native.num_prompt) == (1, 1, 6)
    for again, message in ((native, "taken already"), (twin, "already here")):
        with pytest.raises(NativeError, match=message):
            driver.scheduler.add(again)
    driver.run()
    check_result(driver, 1, request(6, 4))
    driver.scheduler.add(twin)  # a refusal takes nothing
    driver.tokens.clear()
    driver.finished.clear()
    driver.run()
    check_result(driver, 1, request(6, 4))
    driver.check_clean()


def test_a_refused_request_has_its_endings_and_is_counted() -> None:
    driver = Driver(LIMITS)
    native = new_request(1, request(6, 4, n=3), max_tokens=4, seed=7, now_ns=driver.now_ns)
    driver.scheduler.refuse(native, FinishReason.ERROR, "no")
    driver.collect()
    assert driver.reasons(1) == [FinishReason.ERROR] * 3
    assert driver.finished[1, 2].error == "no"
    stats = driver.scheduler.stats
    assert stats.dequeued_choices_total == stats.choices_failed_total == 3
    assert stats.requests_dequeued_total == stats.requests_finished_total == 1
    assert stats.dequeued_prompt_tokens_total == 6
    driver.check_clean()


def test_results_out_of_order_are_our_bug() -> None:
    driver = Driver(LIMITS)
    with pytest.raises(NativeError, match="the result of step 0 came, none was due"):
        driver.scheduler.finish_step(StepResult(0))
    driver.add(1, request(6, 4))
    driver.plan()
    driver.plan()
    with pytest.raises(NativeError, match="step 1 came, 0 was due"):
        driver.scheduler.finish_step(StepResult(1))
    with pytest.raises(NativeError, match="step 0 was not planned last"):
        driver.scheduler.fail_step(0, "refused")
    driver.run()
    check_result(driver, 1, request(6, 4))
    driver.check_clean()


def test_a_step_that_was_not_submitted_ends_its_sequences_before_older_results_come() -> None:
    driver = Driver(LIMITS)
    driver.add(1, request(6, 10))
    assert driver.plan() is not None
    driver.add(2, request(6, 10, first=6))
    step = driver.scheduler.schedule(driver.now_ns)
    assert step is not None
    driver.scheduler.fail_step(step.step_id, "the ring is full")
    driver.collect()
    assert driver.reasons(1) == driver.reasons(2) == [FinishReason.ERROR]
    assert "the ring is full" in (driver.finished[2, 0].error or "")
    driver.add(3, request(6, 10, first=7))
    driver.run()
    check_result(driver, 3, request(6, 10, first=7))
    driver.check_clean()


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_a_result_of_another_shape_fails_the_step(num_tokens: int) -> None:
    driver = Driver(LIMITS)
    driver.add(1, request(6, 10))
    step = driver.scheduler.schedule(driver.now_ns)
    assert step is not None
    driver.scheduler.finish_step(StepResult(step.step_id, tokens=[1] * num_tokens))
    driver.collect()
    assert driver.reasons(1) == [FinishReason.ERROR]
    assert f"{num_tokens} tokens" in (driver.finished[1, 0].error or "")
    driver.check_clean()


def test_limits_that_are_not_the_kv_manager_s_are_refused() -> None:
    with pytest.raises(NativeError, match="must be those of the KV manager"):
        Scheduler(LIMITS, KvManager(63, 4, b""))
    with pytest.raises(NativeError, match="max_batch_size must be at least 1"):
        limits(max_batch_size=0)


def test_a_failed_step_teaches_the_pacer_nothing() -> None:
    driver = Driver(LIMITS)
    driver.fail_steps = {0}
    driver.add(1, request(30, 10))
    driver.run()
    assert driver.scheduler.prefill_token_s == 0.0
    driver.add(2, request(30, 10, first=6))
    driver.run()
    assert driver.scheduler.prefill_token_s > 0.0

"""Steps that are planned when the last of their sequences ends: compute need not do them."""

from __future__ import annotations

import pytest

from plait.types import FinishReason
from tests.fakes.driver import VOCAB, Driver, Plan
from tests.fakes.reference import expected_choices
from tests.native.scheduler.test_scheduler import LIMITS, limits, request


def planned(driver: Driver) -> Plan:
    plan = driver.plan()
    assert plan is not None
    return plan


def test_steps_of_an_aborted_request_are_unwanted() -> None:
    driver = Driver(limits(max_batch_tokens=8), skips_unwanted=True)
    driver.add(1, request(20, 4))
    first, second = planned(driver), planned(driver)
    assert not first.is_unwanted
    assert not second.is_unwanted
    driver.scheduler.abort(1)
    assert first.is_unwanted
    assert second.is_unwanted
    driver.add(2, request(20, 4, first=6))
    assert not planned(driver).is_unwanted
    driver.run()
    assert driver.scheduler.stats.skipped_steps_total == 2
    assert driver.reasons(1) == [FinishReason.ABORT]
    assert driver.reasons(2) == [FinishReason.LENGTH]
    driver.check_clean()


def test_a_step_is_wanted_while_one_of_its_requests_runs() -> None:
    driver = Driver(LIMITS, skips_unwanted=True)
    driver.add(1, request(4, 8))
    driver.add(2, request(4, 8, first=6))
    plans = [planned(driver), planned(driver)]
    driver.scheduler.abort(1)
    assert not any(plan.is_unwanted for plan in plans)
    driver.scheduler.abort(2)
    assert all(plan.is_unwanted for plan in plans)
    driver.run()
    driver.check_clean()


@pytest.mark.parametrize("n", [1, 2])
def test_a_deadline_and_a_late_eos_leave_steps_unwanted(n: int) -> None:
    driver = Driver(limits(max_batch_size=2), skips_unwanted=True)
    driver.add(1, request(4, 100, n=n, deadline_s=0.1))
    plans = [planned(driver), planned(driver)]
    driver.scheduler.expire(int((driver.now + 0.2) * 1e9))
    assert all(plan.is_unwanted for plan in plans)
    driver.run()
    driver.check_clean()

    asked = request(6, 30, n=n, temperature=0.0)
    token = expected_choices(asked, seed=7, max_tokens=30, eos=(), vocab_size=VOCAB)[0].token_ids[0]
    driver = Driver(limits(eos_token_ids=(token,)), skips_unwanted=True)
    driver.add(1, asked)
    planned(driver)
    after = planned(driver)
    driver.take_result()
    assert driver.reasons(1) == [FinishReason.STOP] * n
    assert after.is_unwanted
    driver.take_result()
    assert driver.scheduler.stats.skipped_steps_total == 1
    assert driver.scheduler.stats.dropped_tokens_total == 0
    driver.check_clean()


def test_a_step_is_wanted_until_all_choices_have_ended() -> None:
    """Prompt positions are for the choices that are forked off them later, too."""
    driver = Driver(limits(max_batch_tokens=8), skips_unwanted=True)
    driver.add(1, request(12, 4, n=3))
    first, second = planned(driver), planned(driver)
    assert second.names.forked
    assert not first.is_unwanted
    assert not second.is_unwanted
    driver.run()
    assert driver.scheduler.stats.skipped_steps_total == 0
    assert driver.reasons(1) == [FinishReason.LENGTH] * 3
    driver.check_clean()


def test_a_wanted_step_that_was_skipped_ends_its_requests() -> None:
    """No executor does that; but then nobody may wait for ever, or get tokens of what was not computed."""
    driver = Driver(LIMITS, skips_unwanted=True)
    driver.add(1, request(4, 8))
    plan = planned(driver)
    driver.is_skipping_all = True
    driver.take_result()
    assert plan.names.rows
    assert driver.reasons(1) == [FinishReason.ERROR]
    assert "skipped" in (driver.finished[1, 0].error or "")
    driver.check_clean()

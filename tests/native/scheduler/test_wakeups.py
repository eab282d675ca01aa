"""What ends or begins because time has passed: deadlines and the wait for a fuller batch."""

from __future__ import annotations

import pytest

from plait.types import FinishReason
from tests.fakes.driver import Driver
from tests.native.scheduler.test_scheduler import LIMITS, limits, request


def test_deadlines_end_waiting_and_running_requests() -> None:
    driver = Driver(limits(max_batch_size=1))
    driver.add(1, request(4, 100, deadline_s=0.1))
    driver.add(2, request(4, 4, first=6, deadline_s=0.05))
    driver.add(3, request(4, 4, first=7))
    driver.run()
    assert driver.reasons(1) == [FinishReason.ABORT]
    assert 3 < len(driver.tokens[1, 0]) < 20
    assert driver.reasons(2) == [FinishReason.ABORT]
    assert not driver.tokens[2, 0]
    assert driver.reasons(3) == [FinishReason.LENGTH]
    assert driver.next_wakeup is None
    driver.check_clean()


def test_a_stale_deadline_wakes_nobody() -> None:
    driver = Driver(LIMITS)
    driver.add(1, request(4, 2, deadline_s=1000.0))
    driver.run()
    assert driver.reasons(1) == [FinishReason.LENGTH]
    assert driver.next_wakeup is None


def test_what_is_held_wakes_nobody_who_cannot_plan() -> None:
    driver = Driver(limits(batch_timeout_s=0.5, max_batch_size=3))
    driver.add(1, request(4, 8))
    assert driver.scheduler.next_wakeup_ns(can_plan=True) is not None
    assert driver.scheduler.next_wakeup_ns(can_plan=False) is None
    driver.add(2, request(4, 8, first=6, deadline_s=0.1))
    assert driver.scheduler.next_wakeup_ns(can_plan=False) == pytest.approx((driver.now + 0.1) * 1e9)
    driver.scheduler.expire(int((driver.now + 0.11) * 1e9))
    assert driver.scheduler.next_wakeup_ns(can_plan=False) is None
    assert len(driver.scheduler.take_outputs()) == 1


def test_a_hold_that_has_ended_wakes_nobody() -> None:
    driver = Driver(limits(max_batch_size=1))
    driver.add(1, request(4, 8))
    assert driver.plan() is not None
    driver.scheduler.abort(1)
    driver.now += 1.0
    assert driver.next_wakeup is None


def test_the_batch_timeout_waits_for_a_fuller_batch_only_when_idle() -> None:
    driver = Driver(limits(batch_timeout_s=0.5, max_batch_size=3))
    driver.add(1, request(4, 8))
    assert driver.plan() is None
    assert driver.next_wakeup == pytest.approx(driver.now + 0.5)
    driver.now += 0.4
    driver.add(2, request(4, 8, first=6))
    assert driver.plan() is None
    driver.now += 0.11
    plan = driver.plan()
    assert plan is not None
    assert len(plan.rows) == 2
    driver.add(3, request(4, 8, first=7))
    plan = driver.plan()
    assert plan is not None
    assert len(plan.rows) == 3, "a running engine takes new requests at once"
    driver.run()
    driver.check_clean()
    for request_id in (4, 5, 6):
        driver.add(request_id, request(4, 2, first=request_id))
    assert driver.plan() is not None, "a full batch does not wait"
    driver.run()

"""Tenants share what runs, not only who is next."""

from __future__ import annotations

import pytest

from tests.fakes.driver import Driver
from tests.native.scheduler.test_scheduler import check_result, limits, request


@pytest.mark.parametrize("is_short_of", ["slots", "blocks"])
def test_a_tenant_that_holds_everything_makes_room_for_another(is_short_of: str) -> None:
    """Up to half of what runs, one sequence a step; both tenants get the tokens that they get alone."""
    sizes = {"max_batch_size": 4} if is_short_of == "slots" else {"num_blocks": 4 * 25 + 4}
    driver = Driver(limits(**sizes))
    heavy = {number: request(6, 80, tenant="heavy", first=number, ignore_eos=True) for number in range(1, 9)}
    light = {
        number: request(20, 60, tenant="light", first=number, ignore_eos=True) for number in range(9, 14)
    }
    for number, asked in heavy.items():
        driver.add(number, asked)
    for _ in range(30):
        driver.turn()
    assert not driver.finished
    for number, asked in light.items():
        driver.add(number, asked)
    for _ in range(10):
        driver.turn()
    running = [(heavy | light)[number].tenant for number in driver.plans[-1].rows]
    assert running.count("light") >= min(2, len(running) // 2)
    assert running.count("heavy") >= running.count("light")
    assert driver.scheduler.stats.preemptions_total >= 1
    driver.run()
    assert is_short_of == "blocks" or driver.scheduler.stats.preemptions_total <= len(heavy | light)
    for number, asked in (heavy | light).items():
        check_result(driver, number, asked)
    driver.check_clean()


def test_a_higher_priority_is_not_preempted_for_fairness() -> None:
    driver = Driver(limits(max_batch_size=2))
    driver.add(1, request(6, 40, tenant="a", priority=-1, ignore_eos=True))
    driver.add(2, request(6, 40, tenant="a", priority=-1, first=7, ignore_eos=True))
    driver.turn()
    driver.add(3, request(6, 4, tenant="b", first=8))
    driver.run()
    assert driver.scheduler.stats.preemptions_total == 0
    driver.check_clean()


def test_a_tenant_with_twice_the_weight_is_served_twice_the_tokens() -> None:
    driver = Driver(limits(max_batch_size=1, num_blocks=200, tenant_weights=[(b"heavy", 2.0)]), depth=1)
    for number in range(30):
        driver.add(
            number,
            request(4, 4, tenant="heavy" if number % 2 else "plain", first=number % 7, ignore_eos=True),
        )
    while len(driver.finished) < 15:
        driver.turn()
    heavy = sum(number % 2 for number, _ in driver.finished)
    assert heavy in (9, 10, 11)
    driver.run()
    driver.check_clean()

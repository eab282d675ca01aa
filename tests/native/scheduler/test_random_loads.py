"""Random arrivals, aborts, failures and pool sizes: the tokens are those of a lone run, nothing leaks."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait._native import SchedulerLimits
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.driver import VOCAB, Driver
from tests.fakes.reference import expected_choices, expected_prompt_logprobs


@dataclass(frozen=True)
class Arrival:
    request: GenerateRequest
    turn: int
    abort_turn: int | None
    seed: int


LIMITS = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(12, 40),
    block_tokens=st.sampled_from([1, 2, 4, 7]),
    max_batch_size=st.integers(1, 9),
    max_batch_tokens=st.integers(1, 40),
    prefill_chunk_tokens=st.integers(1, 40),
    batch_timeout_s=st.sampled_from([0.0, 0.0, 0.05]),
    enable_prefix_cache=st.booleans(),
    target_step_s=st.sampled_from([0.0, 0.001, 0.1]),
    eos_token_ids=st.sampled_from([[], [3], [3, 4, 5, 6]]),
    kv_block_bytes=st.sampled_from([0, 1]),
)

SAMPLING = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2, 5]),
    temperature=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    max_tokens=st.integers(1, 25),
    min_tokens=st.sampled_from([0, 0, 1]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 3]),
)

ARRIVAL = st.builds(
    Arrival,
    request=st.builds(
        GenerateRequest,
        # Few different tokens: shared prefixes are the rule.
        prompt_token_ids=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=30).map(tuple),
        sampling=SAMPLING,
        tenant=st.sampled_from(["", "", "a", "b"]),
        priority=st.sampled_from([0, 0, 0, -1, 5]),
    ),
    turn=st.integers(0, 60),
    abort_turn=st.one_of(st.none(), st.none(), st.integers(0, 80)),
    seed=st.integers(0, 3),
)


def fits(arrival: Arrival, limits: SchedulerLimits) -> bool:
    num_tokens = len(arrival.request.prompt_token_ids) + (arrival.request.sampling.max_tokens or 0) - 1
    return -(-num_tokens // limits.block_tokens) <= limits.num_blocks


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    limits=LIMITS,
    arrivals=st.lists(ARRIVAL, min_size=1, max_size=14),
    depth=st.integers(1, 2),
    fail_steps=st.sets(st.integers(0, 60), max_size=1),
    swap_failures=st.sampled_from([0.0, 0.0, 0.3]),
    step_seed=st.integers(0, 1000),
)
def test_random_loads(
    limits: SchedulerLimits,
    arrivals: list[Arrival],
    depth: int,
    fail_steps: set[int],
    swap_failures: float,
    step_seed: int,
) -> None:
    # Some steps take so long that it pays to save what was computed.
    rng = random.Random(step_seed)
    driver = Driver(
        limits,
        depth=depth,
        step_s=lambda step: rng.choice([0.1, 0.1, 0.001, 0.001 * len(step.token_ids)]),
        swap_seed=step_seed,
        swap_failures=swap_failures,
        skips_unwanted=step_seed % 2 == 0,
    )
    driver.fail_steps = fail_steps
    arrivals = [arrival for arrival in arrivals if fits(arrival, limits)]
    for turn in range(82):
        for request_id, arrival in enumerate(arrivals):
            if arrival.turn == turn:
                driver.add(request_id, arrival.request, seed=arrival.seed)
            if arrival.abort_turn == turn:
                driver.scheduler.abort(request_id)
        driver.turn()
        driver.kv.check_consistency()
    driver.run()
    driver.check_clean()
    check_plans(driver)
    for request_id, arrival in enumerate(arrivals):
        check_arrival(driver, request_id, arrival)


def check_arrival(driver: Driver, request_id: int, arrival: Arrival) -> None:
    request = arrival.request
    assert request.sampling.max_tokens is not None
    choices = expected_choices(
        request,
        seed=arrival.seed,
        max_tokens=request.sampling.max_tokens,
        eos=tuple(driver.limits.eos_token_ids),
        vocab_size=VOCAB,
    )
    for index, expected in enumerate(choices):
        key = (request_id, index)
        reason = driver.finished[key].finish_reason
        tokens = driver.tokens[key]
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            assert reason is FinishReason.ABORT or driver.fail_steps
            assert arrival.abort_turn is not None or driver.fail_steps
            assert tokens == expected.token_ids[: len(tokens)]
        else:
            assert reason == expected.finish_reason
            assert tokens == expected.token_ids
            assert driver.logprobs[key] == expected.logprobs
        if request.sampling.prompt_logprobs is not None and index == 0 and tokens:
            assert list(driver.first[key].prompt_logprobs) == expected_prompt_logprobs(request, VOCAB)


def check_plans(driver: Driver) -> None:
    """Every step keeps its limits."""
    for plan in driver.plans:
        assert 1 <= len(plan.step.token_ids) <= driver.limits.max_batch_tokens
        assert len(plan.rows) <= driver.limits.max_batch_size
        assert max(plan.slices) <= max(driver.limits.prefill_chunk_tokens, 1)


def test_decodes_are_never_starved_and_long_prompts_move() -> None:
    """While prompts keep coming, each running decode is in every step, and each prompt gets on."""
    rng = random.Random(5)
    limits = SchedulerLimits(
        num_blocks=2000, block_tokens=4, max_batch_size=16, max_batch_tokens=64, prefill_chunk_tokens=64
    )
    driver = Driver(limits, depth=1)

    def add(request_id: int, num_prompt: int, max_tokens: int) -> None:
        prompt = tuple(rng.randrange(VOCAB) for _ in range(num_prompt))
        driver.add(
            request_id, GenerateRequest(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        )

    add(0, 8, 300)
    driver.turn()
    add(1, 2000, 4)
    progress = []
    for turn in range(200):
        if turn % 3 == 0:
            add(2 + turn, rng.randrange(10, 120), 3)
        driver.turn()
        plan = driver.plans[-1]
        ends = dict(zip(plan.rows, plan.step.context_lens, strict=True))
        assert 0 in ends, "a decode was left out of a step"
        if 1 in ends:
            progress.append(ends[1])
    assert (1, 0) in driver.finished or progress[-1] > 1000
    driver.run()
    driver.check_clean()


@pytest.mark.parametrize("seed", range(80, 92))
def test_tenants_in_a_small_pool_never_stick(seed: int) -> None:
    """What the costs say changes from step to step, so that tenants are cut, preempted and let go at odd moments."""
    rng = random.Random(seed)
    limits = SchedulerLimits(
        num_blocks=26,
        block_tokens=4,
        max_batch_size=16,
        max_batch_tokens=64,
        prefill_chunk_tokens=64,
        enable_prefix_cache=False,
        eos_token_ids=[3],
    )
    driver = Driver(limits, step_s=lambda step: rng.choice([1e-4, 1e-3, 1e-3 * len(step.token_ids), 1e-2]))
    for request_id in range(40):
        prompt = tuple(rng.choice([1, 2]) for _ in range(rng.choice([1, 2, 7, 8, 20, 60])))
        sampling = SamplingParams(
            n=rng.choice([1, 1, 2, 5]), max_tokens=rng.randrange(1, 40), ignore_eos=rng.random() < 0.5
        )
        driver.add(
            request_id,
            GenerateRequest(prompt, sampling, tenant=rng.choice("ab"), priority=rng.choice([0, 0, 1])),
        )
    driver.run()
    driver.check_clean()

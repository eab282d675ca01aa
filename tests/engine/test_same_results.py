"""The same tokens, bit for bit, whatever the batch, the chunks, the blocks, the pool and the cache."""

from __future__ import annotations

import random
import threading
import time

import pytest

from plait.config import EngineConfig
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.fake_engine import EOS, VOCAB, Collector, FakeEngine
from tests.fakes.fake_executor import FakeStepInput
from tests.fakes.reference import expected_choices, expected_prompt_logprobs

pytestmark = pytest.mark.usefixtures("parts_kind")

CONFIGS = {
    "plain": (EngineConfig(block_tokens=16, max_batch_size=32, max_batch_tokens=256), 128),
    "alone": (EngineConfig(block_tokens=4, max_batch_size=1, max_batch_tokens=64), 64),
    "tiny_blocks": (EngineConfig(block_tokens=1, max_batch_size=8, max_batch_tokens=32), 300),
    "tiny_chunks": (
        EngineConfig(block_tokens=4, max_batch_size=8, max_batch_tokens=16, prefill_chunk_tokens=3),
        96,
    ),
    "one_token_steps": (EngineConfig(block_tokens=4, max_batch_size=1, max_batch_tokens=1), 32),
    "tiny_pool": (EngineConfig(block_tokens=4, max_batch_size=16, max_batch_tokens=64), 26),
    "tiny_pool_no_cache": (
        EngineConfig(block_tokens=4, max_batch_size=16, max_batch_tokens=64, enable_prefix_cache=False),
        26,
    ),
    "no_cache": (
        EngineConfig(block_tokens=4, max_batch_size=16, max_batch_tokens=64, enable_prefix_cache=False),
        256,
    ),
    "batch_timeout": (
        EngineConfig(block_tokens=4, max_batch_size=4, max_batch_tokens=64, batch_timeout_s=0.02),
        64,
    ),
}


def random_requests(rng: random.Random, count: int) -> list[GenerateRequest]:
    requests = []
    for _ in range(count):
        num_prompt = rng.choice([1, 2, 7, 8, 9, 20, 60])
        # Two tokens only, so that prompts share beginnings.
        prompt = tuple(rng.choice([1, 2]) for _ in range(num_prompt))
        sampling = SamplingParams(
            n=rng.choice([1, 1, 2, 5]),
            temperature=rng.choice([0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.1]),
            seed=rng.randrange(1000),
            max_tokens=rng.randrange(1, 40),
            logprobs=rng.choice([None, 0, 3]),
            prompt_logprobs=rng.choice([None, None, 2]),
            ignore_eos=rng.random() < 0.5,
        )
        requests.append(
            GenerateRequest(prompt, sampling, tenant=rng.choice(["", "a"]), priority=rng.choice([0, 0, 1]))
        )
    return requests


def check_whole(collector: Collector, request: GenerateRequest) -> None:
    sampling = request.sampling
    assert sampling.seed is not None
    assert sampling.max_tokens is not None
    choices = expected_choices(
        request, seed=sampling.seed, max_tokens=sampling.max_tokens, eos=EOS, vocab_size=VOCAB
    )
    assert collector.reasons == [choice.finish_reason for choice in choices], collector.errors
    assert collector.tokens == [choice.token_ids for choice in choices]
    assert collector.logprobs == [choice.logprobs for choice in choices]
    if sampling.prompt_logprobs is not None:
        first = next(output for output in collector.outputs if output.index == 0)
        assert list(first.prompt_logprobs) == expected_prompt_logprobs(request, VOCAB)


def check_part(collector: Collector, request: GenerateRequest) -> None:
    """An aborted or failed request has the beginning of what it would have given."""
    sampling = request.sampling
    assert sampling.seed is not None
    assert sampling.max_tokens is not None
    choices = expected_choices(
        request, seed=sampling.seed, max_tokens=sampling.max_tokens, eos=EOS, vocab_size=VOCAB
    )
    for tokens, choice in zip(collector.tokens, choices, strict=True):
        assert tokens == choice.token_ids[: len(tokens)]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_gives_the_tokens_of_a_lone_run(name: str) -> None:
    config, num_blocks = CONFIGS[name]
    requests = random_requests(random.Random(name), 40)
    with FakeEngine(config, num_blocks=num_blocks) as engine:
        for _ in range(2):  # the second time prompts are cached
            collectors = [Collector(request.sampling.n) for request in requests]
            for request, collector in zip(requests, collectors, strict=True):
                engine.core.submit(request, collector)
            for request, collector in zip(requests, collectors, strict=True):
                check_whole(collector.wait(60.0), request)
        if name.startswith("tiny_pool"):
            assert engine.core.metrics()["preemptions_total"] > 0
        else:
            assert (engine.core.metrics()["cached_tokens_total"] > 0) == config.enable_prefix_cache
        engine.core.close()
        engine.check_clean()


class _Load:
    """Threads that submit, abort at random moments and check."""

    def __init__(self, engine: FakeEngine, seed: int, abort_share: float) -> None:
        self._engine = engine
        self._rng = random.Random(seed)
        self._abort_share = abort_share
        self.failures: list[BaseException] = []
        self.num_whole = 0

    def run(self, num_requests: int) -> None:
        try:
            for request in random_requests(self._rng, num_requests):
                self._run_one(request)
        except BaseException as error:
            self.failures.append(error)

    def _run_one(self, request: GenerateRequest) -> None:
        collector = Collector(request.sampling.n)
        request_id = self._engine.core.submit(request, collector)
        if self._rng.random() < self._abort_share:
            time.sleep(self._rng.random() * 0.02)
            self._engine.core.abort(request_id)
        collector.wait(60.0)
        if set(collector.reasons) <= {FinishReason.STOP, FinishReason.LENGTH}:
            check_whole(collector, request)
            self.num_whole += 1
        else:
            check_part(collector, request)


def _storm(num_threads: int, num_requests: int, num_blocks: int, fail_share: float, seed: int) -> None:
    rng = random.Random(seed)

    def fail_step(step: FakeStepInput) -> str:
        return "injected" if step.step_id > 10 and rng.random() < fail_share else ""

    config = EngineConfig(block_tokens=4, max_batch_size=12, max_batch_tokens=48)
    with FakeEngine(config, num_blocks=num_blocks, fail_step=fail_step) as engine:
        loads = [_Load(engine, seed * 1000 + i, abort_share=0.4) for i in range(num_threads)]
        threads = [threading.Thread(target=load.run, args=(num_requests,)) for load in loads]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for load in loads:
            assert not load.failures, load.failures[0]
        assert sum(load.num_whole for load in loads) > 0
        assert engine.core.health().is_alive
        engine.core.close()
        engine.check_clean()


def test_aborts_and_failed_steps_among_others_leak_nothing() -> None:
    _storm(num_threads=8, num_requests=12, num_blocks=40, fail_share=0.01, seed=1)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(6))
def test_storms(seed: int) -> None:
    _storm(num_threads=32, num_requests=40, num_blocks=26 + 20 * seed, fail_share=0.003 * seed, seed=seed)


@pytest.mark.stress
def test_starting_and_closing_under_load() -> None:
    for i in range(20):
        with FakeEngine(num_blocks=64, step_s=0.0005) as engine:
            requests = random_requests(random.Random(i), 20)
            collectors = [Collector(request.sampling.n) for request in requests]
            for request, collector in zip(requests, collectors, strict=True):
                engine.core.submit(request, collector)
            time.sleep(0.002 * i)
            engine.core.close()
            for request, collector in zip(requests, collectors, strict=True):
                check_part(collector.wait(0.5), request)
            engine.check_clean()

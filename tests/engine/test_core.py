"""EngineCore over fakes: the contract of EngineClient, life and death of the threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from plait.config import EngineConfig
from plait.engine.in_process import InProcessClient
from plait.errors import EngineDeadError, InvalidRequestError, OverloadedError, ShuttingDownError
from plait.types import FinishReason, GenerateRequest, SamplingParams
from tests.fakes.fake_engine import EOS, VOCAB, Collector, FakeEngine
from tests.fakes.reference import expected_choices

pytestmark = pytest.mark.usefixtures("parts_kind")


def request(num_prompt: int = 9, max_tokens: int | None = 8, **fields: object) -> GenerateRequest:
    envelope = {k: fields.pop(k) for k in ("tenant", "priority", "deadline_s") if k in fields}
    first = int(fields.pop("first", 5))  # type: ignore[call-overload]
    fields.setdefault("seed", 11)
    sampling = SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
    return GenerateRequest(tuple((first + 7 * i) % VOCAB for i in range(num_prompt)), sampling, **envelope)  # type: ignore[arg-type]


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def check(collector: Collector, asked: GenerateRequest) -> None:
    max_tokens = asked.sampling.max_tokens
    assert max_tokens is not None
    assert asked.sampling.seed is not None
    choices = expected_choices(
        asked, seed=asked.sampling.seed, max_tokens=max_tokens, eos=EOS, vocab_size=VOCAB
    )
    assert collector.tokens == [choice.token_ids for choice in choices]
    assert collector.logprobs == [choice.logprobs for choice in choices]
    assert collector.reasons == [choice.finish_reason for choice in choices]


def test_a_request_through_the_client() -> None:
    with FakeEngine() as engine:
        client = InProcessClient(engine.core)
        assert client.info is engine.info
        asked = request(n=3, logprobs=2, temperature=1.0)
        collector = Collector(3)
        request_id = client.submit(asked, collector)
        collector.wait()
        check(collector, asked)
        assert {output.request_id for output in collector.outputs} == {request_id}
        assert client.health().is_ready
        client.close()
        client.close()
        engine.check_clean()


def test_the_same_tokens_through_the_threads_64_at_once() -> None:
    asked = [
        request(3 + i, 5 + i % 20, first=i, n=1 + i % 3, temperature=i % 2, tenant=str(i % 4))
        for i in range(64)
    ]
    with FakeEngine(num_blocks=160) as engine:
        collectors = [Collector(one.sampling.n) for one in asked]
        threads = [
            threading.Thread(target=engine.core.submit, args=pair)
            for pair in zip(asked, collectors, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one, collector in zip(asked, collectors, strict=True):
            check(collector.wait(), one)
        eventually(lambda: engine.core.metrics()["requests_live"] == 0)
        eventually(lambda: engine.core.metrics()["requests_running"] == 0)
        metrics = engine.core.metrics()
        assert metrics["requests_total"] == metrics["requests_finished_total"] == 64
        assert metrics["generated_tokens_total"] == sum(len(t) for c in collectors for t in c.tokens)
        assert metrics["kv_blocks_free"] == metrics["kv_blocks"] == 160
        assert metrics["requests_waiting"] == metrics["queue_depth_requests"] == 0
        engine.check_clean()


def test_max_tokens_none_is_what_is_left() -> None:
    with FakeEngine(max_model_len=40) as engine:
        collector = Collector()
        engine.core.submit(request(30, None, ignore_eos=True), collector)
        collector.wait()
        assert len(collector.tokens[0]) == 10
        assert collector.reasons == [FinishReason.LENGTH]


def test_an_invalid_request_is_refused_at_once() -> None:
    with FakeEngine() as engine:
        for bad in (request(0), request(temperature=float("nan")), request(600), request(n=0)):
            with pytest.raises(InvalidRequestError) as caught:
                engine.core.submit(bad, Collector())
            assert caught.value.param
        assert engine.core.metrics()["requests_live"] == 0


def test_unseeded_requests_differ_and_a_configured_seed_repeats_them() -> None:
    def tokens(config: EngineConfig) -> list[list[int]]:
        out = []
        with FakeEngine(config) as engine:
            for _ in range(2):
                collector = Collector()
                engine.core.submit(request(5, 20, seed=None, ignore_eos=True), collector)
                out += collector.wait().tokens
        return out

    free = EngineConfig(block_tokens=4)
    seeded = EngineConfig(block_tokens=4, seed=5)
    first, second = tokens(free)
    assert first != second
    assert tokens(free) != [first, second]
    first, second = tokens(seeded)
    assert first == second
    assert tokens(seeded) == [first, first]


def test_each_choice_takes_room_in_the_queue() -> None:
    config = EngineConfig(block_tokens=4, max_batch_size=1, max_queued_requests=10)
    with FakeEngine(config) as engine:
        engine.compute.gate.clear()
        collectors = [Collector(), Collector(12)]
        engine.core.submit(request(5, 4), collectors[0])
        eventually(lambda: engine.core.metrics()["queue_depth_requests"] == 0)
        engine.core.submit(request(5, 4, n=12), collectors[1])
        with pytest.raises(OverloadedError, match="12 choices wait"):
            engine.core.submit(request(5, 4), Collector())
        engine.compute.gate.set()
        for collector in collectors:
            collector.wait()
        for n in (9, 9):  # nothing is left of the count
            collector = Collector(n)
            engine.core.submit(request(5, 4, n=n), collector)
            collector.wait()


def test_the_batch_timeout_holds_neither_the_warm_up_nor_the_health() -> None:
    config = EngineConfig(block_tokens=4, batch_timeout_s=10.0)
    began = time.monotonic()
    with FakeEngine(config, stall_after_s=0.05) as engine:
        assert time.monotonic() - began < 5.0
        engine.core.submit(request(5, 4), Collector())
        time.sleep(0.2)
        assert engine.core.metrics()["queue_depth_requests"] == 1
        assert engine.core.health().is_progressing


def test_abort_of_running_and_waiting_requests() -> None:
    with FakeEngine(EngineConfig(block_tokens=4, max_batch_size=1), step_s=0.002) as engine:
        running, waiting = Collector(), Collector(2)
        first = engine.core.submit(request(5, 400, ignore_eos=True), running)
        second = engine.core.submit(request(5, 4, n=2), waiting)
        assert running.has_output.wait(10)
        for request_id in (second, first, first, 999):
            engine.core.abort(request_id)
        assert running.wait().reasons == [FinishReason.ABORT]
        assert waiting.wait().reasons == [FinishReason.ABORT] * 2
        after = Collector()
        engine.core.submit(request(), after)
        check(after.wait(), request())
        eventually(lambda: engine.core.metrics()["kv_blocks_free"] == engine.kv.num_blocks)
        engine.check_clean()


def test_abort_from_inside_the_callback() -> None:
    with FakeEngine(step_s=0.001) as engine:
        collector = Collector(on_output=lambda output: engine.core.abort(output.request_id))
        engine.core.submit(request(5, 400, ignore_eos=True), collector)
        assert collector.wait().reasons == [FinishReason.ABORT]


def test_a_callback_that_raises_ends_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the callback is broken")

    with FakeEngine(step_s=0.001) as engine:
        broken, healthy = Collector(on_output=fail), Collector()
        engine.core.submit(request(5, 400, ignore_eos=True), broken)
        engine.core.submit(request(), healthy)
        assert broken.wait().reasons == [FinishReason.ABORT]
        check(healthy.wait(), request())
        assert engine.core.health().is_alive
    assert "callback raised" in caplog.text


def test_deadlines_end_requests() -> None:
    with FakeEngine(step_s=0.005) as engine:
        collector = Collector()
        engine.core.submit(request(5, 400, ignore_eos=True, deadline_s=0.1), collector)
        assert collector.wait().reasons == [FinishReason.ABORT]


@pytest.mark.usefixtures("beside_steps")
def test_deadlines_are_kept_while_enough_steps_are_planned() -> None:
    config = EngineConfig(block_tokens=4, max_batch_size=1, max_batch_tokens=8)
    with FakeEngine(config) as engine:
        engine.compute.gate.clear()
        running, waiting = Collector(), Collector()
        engine.core.submit(request(40, 4, deadline_s=0.1), running)
        engine.core.submit(request(5, 4, deadline_s=0.1), waiting)
        for collector in (running, waiting):
            assert collector.wait().reasons == [FinishReason.ABORT]


@pytest.mark.usefixtures("beside_steps")
def test_main_sleeps_while_steps_of_an_aborted_prompt_run() -> None:
    config = EngineConfig(block_tokens=4, max_batch_size=2, max_batch_tokens=8)
    with FakeEngine(config) as engine:
        engine.compute.gate.clear()
        aborted, next_one = Collector(), Collector()
        request_id = engine.core.submit(request(40, 4), aborted)
        eventually(lambda: engine.core.metrics()["queue_depth_requests"] == 0)
        engine.core.abort(request_id)
        aborted.wait()
        engine.core.submit(request(5, 4), next_one)
        begin = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - begin < 0.25  # a thread that does not sleep takes all of it
        engine.compute.gate.set()
        next_one.wait()


def test_the_queue_is_bounded_by_requests_and_by_tokens() -> None:
    config = EngineConfig(block_tokens=4, max_batch_size=1, max_queued_requests=3, max_queued_tokens=40)
    with FakeEngine(config) as engine:
        engine.compute.gate.clear()
        collectors = [Collector()]
        engine.core.submit(request(5, 4), collectors[0])
        eventually(lambda: engine.core.metrics()["queue_depth_requests"] == 0)
        for _ in range(2):
            collectors.append(Collector())
            engine.core.submit(request(15, 4), collectors[-1])
        with pytest.raises(OverloadedError, match="prompt tokens wait") as caught:
            engine.core.submit(request(15, 4), Collector())
        assert 1.0 <= caught.value.retry_after_s <= 60.0
        collectors.append(Collector())
        engine.core.submit(request(2, 4), collectors[-1])
        with pytest.raises(OverloadedError, match="3 choices wait"):
            engine.core.submit(request(2, 4), Collector())
        assert engine.core.metrics()["requests_overloaded_total"] == 2
        engine.compute.gate.set()
        for collector in collectors:
            collector.wait()
        last = Collector()
        engine.core.submit(request(15, 4), last)
        last.wait()


@pytest.mark.usefixtures("beside_steps")
def test_aborted_requests_leave_the_queue_count() -> None:
    config = EngineConfig(block_tokens=4, max_batch_size=1, max_queued_requests=2)
    with FakeEngine(config) as engine:
        engine.compute.gate.clear()
        engine.core.submit(request(5, 4), Collector())
        eventually(lambda: engine.core.metrics()["queue_depth_requests"] == 0)
        for _ in range(5):
            collector = Collector()
            engine.core.abort(engine.core.submit(request(5, 4), collector))
            collector.wait()
            eventually(lambda: engine.core.metrics()["queue_depth_requests"] == 0)


def test_a_failed_step_ends_its_requests_and_the_engine_lives() -> None:
    fail_next = threading.Event()

    def fail_step(_: object) -> str:
        if fail_next.is_set():
            fail_next.clear()
            return "injected"
        return ""

    with FakeEngine(fail_step=fail_step, step_s=0.001) as engine:
        first = Collector(2)
        engine.core.submit(request(5, 400, n=2, ignore_eos=True), first)
        assert first.has_output.wait(10)
        fail_next.set()
        assert first.wait().reasons == [FinishReason.ERROR] * 2
        assert "injected" in (first.errors[0] or "")
        second = Collector()
        engine.core.submit(request(), second)
        check(second.wait(), request())
        assert engine.core.metrics()["failed_steps_total"] == 1
        assert engine.core.metrics()["failed_total"] == 2
        eventually(lambda: engine.kv.num_sequences == 0)
        engine.check_clean()


def test_values_that_the_native_side_refuses_never_reach_the_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.engine.core.validate_request", lambda request, info: None)
    with FakeEngine() as engine:
        fine = Collector()
        with pytest.raises(InvalidRequestError):
            engine.core.submit(request(top_k=2**40), Collector())
        engine.core.submit(request(), fine)
        check(fine.wait(), request())
        assert engine.core.metrics()["requests_live"] == 0


def test_a_request_that_the_scheduler_refuses_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.engine.core.validate_request", lambda request, info: None)
    with FakeEngine() as engine:
        odd, fine = Collector(2), Collector()
        engine.core.submit(GenerateRequest((5, VOCAB), SamplingParams(n=2, max_tokens=4)), odd)
        engine.core.submit(request(), fine)
        assert odd.wait().reasons == [FinishReason.ERROR] * 2
        assert "not in the vocabulary" in (odd.errors[0] or "")
        check(fine.wait(), request())
        metrics = engine.core.metrics()
        assert metrics["requests_live"] == metrics["queue_depth_requests"] == 0
        assert metrics["requests_finished_total"] == 2
        assert metrics["failed_total"] == 2
        engine.check_clean()


def test_a_step_that_is_refused_ends_its_requests_only() -> None:
    with FakeEngine() as engine:
        submit = engine.compute.submit

        def refuse(step: object) -> bool:
            engine.compute.submit = submit  # type: ignore[method-assign]
            raise ValueError("bad step")

        engine.compute.submit = refuse  # type: ignore[method-assign]
        first, second = Collector(), Collector()
        engine.core.submit(request(), first)
        assert first.wait().reasons == [FinishReason.ERROR]
        engine.core.submit(request(), second)
        check(second.wait(), request())
        engine.check_clean()


def test_a_crash_of_the_main_thread_ends_everything_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine(step_s=0.002) as engine:
        running = Collector(3)
        engine.core.submit(request(5, 400, n=3, ignore_eos=True), running)
        assert running.has_output.wait(10)

        class Broken:
            def __getattr__(self, name: str) -> object:
                if name == "schedule":
                    raise MemoryError("injected crash")
                return getattr(engine.core._scheduler, name)

        engine.core._driver._steps.scheduler = Broken()
        assert running.wait().reasons == [FinishReason.ERROR] * 3
        assert "injected crash" in (running.errors[0] or "")
        health = engine.core.health()
        assert not health.is_alive
        assert not health.is_ready
        assert "injected crash" in health.detail
        with pytest.raises(EngineDeadError, match="injected crash"):
            engine.core.submit(request(), Collector())
        engine.core.abort(1)
    assert "thread of the engine died" in caplog.text


def test_a_crash_of_the_io_thread_ends_everything_loudly() -> None:
    with FakeEngine(step_s=0.002) as engine:
        running = Collector()

        def explode() -> None:
            raise MemoryError("injected crash")

        engine.core.submit(request(5, 400, ignore_eos=True), running)
        assert running.has_output.wait(10)
        driver = engine.core._driver
        getattr(driver, "_io", driver)._deliver_all = explode
        assert running.wait().reasons == [FinishReason.ERROR]
        with pytest.raises(EngineDeadError):
            engine.core.submit(request(), Collector())
        begin = time.monotonic()
        engine.core.close()
        assert time.monotonic() - begin < 5.0
        assert engine.core._driver.join(0.0)


def test_close_aborts_what_runs_and_refuses_what_comes() -> None:
    with FakeEngine(step_s=0.002) as engine:
        collectors = [Collector(2) for _ in range(5)]
        for collector in collectors:
            engine.core.submit(request(5, 400, n=2, ignore_eos=True), collector)
        engine.core.close()
        for collector in collectors:
            assert collector.wait(0.1).reasons == [FinishReason.ABORT] * 2
        with pytest.raises(ShuttingDownError):
            engine.core.submit(request(), Collector())
        assert not engine.core.health().is_ready
        assert engine.core._driver.join(0.0)
        engine.check_clean()


def test_health_tells_a_stall_from_idleness() -> None:
    with FakeEngine(stall_after_s=0.1) as engine:
        time.sleep(0.15)
        assert engine.core.health().is_progressing, "idle is not stalled"
        engine.compute.gate.clear()
        collector = Collector()
        engine.core.submit(request(), collector)
        assert engine.core.health().is_progressing, "work has only just come"
        eventually(lambda: not engine.core.health().is_progressing)
        assert "no step ended" in engine.core.health().detail
        engine.compute.gate.set()
        collector.wait()
        assert engine.core.health().is_progressing


def test_an_idle_engine_sleeps() -> None:
    with FakeEngine() as engine:
        eventually(lambda: engine.core.metrics()["requests_live"] == 0)
        time.sleep(0.1)
        cpu_s = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - cpu_s < 0.01


def test_warm_up_runs_prefill_and_decode_and_is_not_counted() -> None:
    with FakeEngine() as engine:
        assert engine.model.num_steps >= 2
        metrics = engine.core.metrics()
        assert all(value == 0 for name, value in metrics.items() if name.endswith("_total"))
        assert metrics["kv_blocks_free"] == engine.kv.num_blocks


def test_the_warm_up_is_not_among_those_that_waited() -> None:
    """Its own way to acceptance, while everything is new, would be the slowest for ever."""
    with FakeEngine() as engine:
        accepts = engine.core._driver.accepts
        assert (accepts.count, accepts.max_s) == (0, 0.0)
        metrics = engine.core.metrics()
        assert metrics["accept_p50_seconds"] == metrics["accept_p99_seconds"] == 0.0
        collector = Collector()
        engine.core.submit(request(), collector)
        collector.wait()
        metrics = engine.core.metrics()
        assert (accepts.count, metrics["requests_accepted_total"]) == (1, 1)
        assert 0.0 < metrics["accept_p50_seconds"] == metrics["accept_p99_seconds"] == accepts.max_s


def test_a_failed_warm_up_is_an_error_at_start() -> None:
    engine = FakeEngine(start=False, fail_step=lambda step: "the kernels are broken")
    with pytest.raises(EngineDeadError, match="the kernels are broken"):
        engine.core.start()
    assert not engine.core.health().is_alive
    engine.core.close()


def test_threads_carry_their_names() -> None:
    def names() -> set[str]:
        found = set()
        for thread in threading.enumerate():
            if not thread.name.startswith("plait-"):
                continue
            with open(f"/proc/self/task/{thread.native_id}/comm", encoding="ascii") as comm:
                found.add(comm.read().strip())
        return found

    with FakeEngine() as engine:
        assert names() == ({"plait-engine"} if engine.kind == "coroutine" else {"plait-main", "plait-io"})

"""Which runs there are and in which order, over made-up results; and what a process of its own may do."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import plait.bench.concurrency.runner as runner
from plait.bench.concurrency.job import (
    Candidate,
    Job,
    JobResult,
    ProbeSizes,
    engine_config,
    offered,
    pool_blocks,
)
from plait.bench.concurrency.runner import (
    ConcurrencySettings,
    default_threads,
    run_concurrency_bench,
    run_in_process,
)
from plait.bench.concurrency.scenario import KvPool, load_scenario
from plait.bench.concurrency.work import draw_work
from plait.config import EngineConfig
from plait.errors import ConfigError, PlaitError
from plait.types import EngineInfo
from tests.fakes.made_up_runs import accept_run, disturbance_run, figures

CHAT = load_scenario("chat")
IO = load_scenario("io")


@pytest.fixture(autouse=True)
def _many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the engine offered all modes and both parallelisms."""
    words = {
        "engine_mode": ("threads", "coroutine", "native"),
        "compute_parallelism": ("tensor", "pipeline"),
    }
    monkeypatch.setattr(runner, "offered", lambda field, _: words[field])
    monkeypatch.setattr(runner, "has_setting", lambda _: True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"12345")
    return path


class Jobs:
    """Answers jobs and keeps them."""

    def __init__(self) -> None:
        self.done: list[Job] = []
        self.refused: tuple[str, str] | None = None

    def __call__(self, job: Job) -> JobResult:
        self.done.append(job)
        candidate = job.candidate
        if self.refused is not None and candidate.parallelism == self.refused[0]:
            return JobResult(not_offered=self.refused[1])
        result = JobResult("avx2", "some-model")
        if job.accept is not None:
            return replace(result, accept=accept_run(candidate.mode, 0.001).figures)
        if job.disturbance is not None:
            run = disturbance_run(is_unpaced=job.is_unpaced, first_token_s=1.0, max_s=0.1)
            return replace(result, disturbance=run.figures)
        return replace(result, figures=figures())


def settings(**changes: object) -> ConcurrencySettings:
    base = ConcurrencySettings((CHAT,), threads=(2,), clients=(4,), rounds=2, has_probes=False)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_rounds_alternate(model: Path) -> None:
    jobs = Jobs()
    report = run_concurrency_bench(model, settings(), run_job=jobs)
    ways = [(job.candidate.mode, job.candidate.parallelism) for job in jobs.done]
    assert len(ways) == 2 * 6
    assert len(set(ways[:6])) == 6
    assert ways[6:] == ways[:6][::-1]
    assert all(job.clients == 4 and job.scenario == CHAT for job in jobs.done)
    assert (report.model, report.machine["isa"]) == ("some-model", "avx2")
    assert len(report.rows) == 6
    assert report.settings["rounds"] == 2


def test_everything_that_is_asked_for_is_run(model: Path) -> None:
    jobs = Jobs()
    wanted = settings(
        loads=(CHAT, IO),
        threads=(3, 1),
        clients=(),
        modes=("native", "threads"),
        parallelisms=("tensor",),
        rounds=1,
    )
    told: list[str] = []
    run_concurrency_bench(model, wanted, told.append, jobs)
    seen = {(job.scenario.name, job.clients, job.candidate) for job in jobs.done if job.scenario is not None}
    expected = {
        (load.name, clients, Candidate(mode, "tensor", threads))
        for load in (CHAT, IO)
        for clients in load.clients
        for mode in ("native", "threads")
        for threads in (1, 3)
    }
    assert seen == expected
    assert len(jobs.done) == len(expected) == len(told)
    assert told[0] == "round 1: chat, 1 clients, native, tensor, 1 thread"


def test_probes_use_the_most_threads(model: Path) -> None:
    jobs = Jobs()
    report = run_concurrency_bench(
        model, settings(threads=(1, 2), modes=("threads",), rounds=1, has_probes=True), run_job=jobs
    )
    probes = [job for job in jobs.done if job.scenario is None]
    assert {job.candidate.threads for job in probes} == {2}
    kinds = [
        (job.accept is not None, job.is_unpaced) for job in probes if job.candidate.parallelism == "tensor"
    ]
    assert kinds == [(True, False), (False, False), (False, True)]
    assert len(report.accept) == 2
    assert [run.is_unpaced for run in report.disturbance] == [False, True, False, True]


def test_probes_alone(model: Path) -> None:
    jobs = Jobs()
    alone = settings(loads=(), modes=("threads",), rounds=1, has_probes=True)
    report = run_concurrency_bench(model, alone, run_job=jobs)
    assert all(job.scenario is None for job in jobs.done)
    assert len(report.accept) == 2
    assert report.rows == ()


def test_what_the_engine_refuses_is_told_and_not_tried_again(model: Path) -> None:
    jobs = Jobs()
    jobs.refused = ("pipeline", "pipeline needs two threads")
    report = run_concurrency_bench(model, settings(modes=("threads",), rounds=3), run_job=jobs)
    assert report.not_offered == {"threads, pipeline, 2 threads": "pipeline needs two threads"}
    assert [job.candidate.parallelism for job in jobs.done].count("pipeline") == 1
    assert [row.candidate.parallelism for row in report.rows] == ["tensor"]


def test_nothing_that_runs_is_an_error(model: Path) -> None:
    jobs = Jobs()
    jobs.refused = ("tensor", "no")
    with pytest.raises(ConfigError, match="runs in none of these ways: threads, tensor, 2 threads: no"):
        run_concurrency_bench(model, settings(modes=("threads",), parallelisms=("tensor",)), run_job=jobs)


def test_quick_loads_are_tiny(model: Path) -> None:
    jobs = Jobs()
    report = run_concurrency_bench(
        model, settings(clients=(), modes=("threads",), is_quick=True, has_probes=True), run_job=jobs
    )
    scenarios = [job.scenario for job in jobs.done if job.scenario is not None]
    assert {scenario.longest_tokens for scenario in scenarios} == {CHAT.reduced().longest_tokens}
    assert report.settings["rounds"] == 1
    assert all((job.accept or job.disturbance or ProbeSizes()).streams <= 8 for job in jobs.done)


def test_a_failed_run_says_which(model: Path) -> None:
    def fail(job: Job) -> JobResult:
        raise PlaitError("it broke")

    with pytest.raises(PlaitError, match=r"round 1: chat, 4 clients, threads, tensor, 2 threads: it broke"):
        run_concurrency_bench(model, settings(), run_job=fail)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loads": (), "has_probes": False}, "name a load"),
        ({"loads": (CHAT, CHAT)}, "two loads have one name"),
        ({"rounds": 0}, "rounds"),
        ({"threads": (0,)}, "threads"),
        ({"clients": (0,)}, "clients"),
        ({"modes": ("fibers",)}, "--modes: 'fibers' is not offered; use threads, coroutine, native"),
        ({"parallelisms": ("expert",)}, "--parallelism: 'expert' is not offered; use tensor, pipeline"),
    ],
)
def test_senseless_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**changes).check()


def test_default_threads() -> None:
    assert default_threads(1) == [1]
    assert default_threads(2) == [1, 2]
    assert default_threads(6) == [1, 2, 3, 4, 6]
    assert default_threads(24) == [1, 2, 3, 4, 8, 16, 24]


def test_choices_come_from_the_configuration() -> None:
    assert offered("kv_cache_dtype", "x") == ("f16", "q8")
    assert offered("no_such_setting", "only") == ("only",)


def test_the_pool_is_as_small_as_asked_but_holds_one_request() -> None:
    pool = KvPool(0.25)
    longest = -(-IO.longest_tokens // 16) + 1
    assert pool_blocks(IO, pool, 1, 16) == longest
    assert pool_blocks(IO, pool, 32, 16) == 8 * longest
    job = Job("m", Candidate("threads", "tensor", 2), 32, replace(IO, kv_pool=pool))
    config = engine_config(job, 1000)
    assert config.kv_cache_bytes == 8 * longest * 1000
    assert config.num_compute_threads == 2
    assert engine_config(replace(job, scenario=CHAT), 0).kv_cache_bytes == EngineConfig().kv_cache_bytes


def test_memory_of_the_cache_is_there_before_the_clock_starts() -> None:
    job = Job("m", Candidate("threads", "tensor", 2), 32, CHAT)
    info = EngineInfo("m", "llama", 1000, 1 << 20, (0,), 1000, 16, 2, "avx2")
    requests = [item.request for item in draw_work(CHAT, 32, info)]
    tokens = [len(request.prompt_token_ids) + (request.sampling.max_tokens or 0) for request in requests]
    num_blocks = sum(-(-num // 16) for num in tokens)
    assert engine_config(job, 1000).kv_prefault_bytes == num_blocks * 1000
    sizes = ProbeSizes(streams=2, context_tokens=100, probes=10, long_prompt_tokens=1600, quiet_tokens=50)
    accept = replace(job, scenario=None, accept=sizes)
    assert engine_config(accept, 1000).kv_prefault_bytes == (10 + 2 * 7) * 1000
    disturbance = replace(job, scenario=None, disturbance=sizes)
    assert engine_config(disturbance, 1000).kv_prefault_bytes == (200 + 2 * 35) * 1000


JOB = Job("model.gguf", Candidate("threads", "tensor", 1), 2, CHAT)


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_a_job_crosses_the_pipe_both_ways(tmp_path: Path) -> None:
    result = JobResult("avx2", "m", figures(digests=("x", "y")))
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"result": asdict(result)}))
    copy = tmp_path / "job.json"
    text = (
        f"import sys; open({str(copy)!r}, 'w').write(sys.stdin.read()); print('noise'); "
        f"print(open({str(answer)!r}).read())"
    )
    assert run_in_process(JOB, program(text)) == result
    assert json.loads(copy.read_text()) == json.loads(json.dumps(asdict(JOB)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('print(\'{"error": "no memory"}\')', "no memory"),
        ("import sys; sys.exit('out of cheese')", "died with exit code 1: out of cheese"),
        ("print('hello')", "died with exit code 0: it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", "died with exit code -9"),
        ('print(\'{"result": {"isa": 5}}\')', "isa: a text is expected"),
    ],
)
def test_a_run_that_breaks_is_told(text: str, message: str) -> None:
    with pytest.raises(PlaitError, match=message):
        run_in_process(JOB, program(text))


def test_a_run_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "RUN_TIMEOUT_S", 0.5)
    note = tmp_path / "pid"
    text = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    begin = time.monotonic()
    with pytest.raises(PlaitError, match="did not end within"):
        run_in_process(JOB, program(text))
    assert time.monotonic() - begin < 60
    if note.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)

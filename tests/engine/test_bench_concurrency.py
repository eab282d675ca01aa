"""plait bench concurrency over real engines with a tiny model: every way that this build offers, in processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plait.bench.concurrency.accept import measure_accept
from plait.bench.concurrency.disturbance import measure_disturbance
from plait.bench.concurrency.job import Candidate, Job, offered, read_kv_block_bytes, run_job
from plait.bench.concurrency.runner import ConcurrencySettings, run_concurrency_bench
from plait.bench.concurrency.scenario import KvPool, load_scenario
from plait.bench.concurrency.streams import RunningStreams
from plait.client import EngineClient
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.errors import ConfigError, PlaitError
from tests.fakes.tiny_gguf import HEADS, HIDDEN, KV_HEADS, LAYERS, write_tiny_llama

pytest.importorskip("plait._native")

WAY = Candidate(offered("engine_mode", "threads")[0], "tensor", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", "Q4_0")


@pytest.fixture
def client(model: Path) -> EngineClient:
    client = start_engine(model, EngineConfig(num_compute_threads=1))
    yield client  # type: ignore[misc]
    client.close()


def test_every_way_gives_the_same_tokens(model: Path) -> None:
    loads = tuple(load_scenario(name) for name in ("chat", "mixed", "io"))
    settings = ConcurrencySettings(loads, threads=(1, 2), is_quick=True)
    report = run_concurrency_bench(model, settings)
    assert report.differences == ()
    candidates = {row.candidate for row in report.rows}
    assert {candidate.mode for candidate in candidates} == set(offered("engine_mode", "threads"))
    assert {candidate.parallelism for candidate in candidates} == set(
        offered("compute_parallelism", "tensor")
    )
    assert {(row.load, row.clients) for row in report.rows} == {
        (name, clients) for name in ("chat", "mixed", "io") for clients in (1, 3)
    }
    for run in report.runs:
        figures = run.figures
        assert figures.requests + figures.aborted == len(figures.digests) == 6
        assert figures.requests_per_s > 0
        assert 0 < figures.busy_share <= 1
        assert figures.cpu_seconds > 0
        assert figures.pss_bytes > 1 << 20
        assert figures.steps > 0
        assert (figures.cached_tokens > 0) == (run.load != "chat")
    assert {run.candidate.mode for run in report.accept} == set(offered("engine_mode", "threads"))
    assert report.disturbance


def test_a_small_pool_preempts_and_changes_no_token(model: Path) -> None:
    scenario = replace(
        load_scenario("io").reduced(),
        prompt_tokens=(40, 60),
        output_tokens=(60, 90),
        aborts=None,
        slow=None,
        kv_pool=None,
    )
    roomy = run_job(Job(str(model), WAY, 6, scenario)).figures
    tight = run_job(Job(str(model), WAY, 6, replace(scenario, kv_pool=KvPool(0.34)))).figures
    assert roomy is not None
    assert tight is not None
    assert roomy.preemptions == 0
    assert tight.preemptions > 0
    assert tight.digests == roomy.digests
    assert tight.requests == roomy.requests == 12


def test_what_does_not_fit_the_model_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="do not fit the engine's 512"):
        run_job(Job(str(model), WAY, 1, load_scenario("mixed")))


def test_settings_that_contradict_each_other_are_not_offered(model: Path) -> None:
    job = Job(str(model), replace(WAY, threads=5000), 1, load_scenario("chat").reduced())
    result = run_job(job)
    assert result.figures is None
    assert "num_compute_threads" in (result.not_offered or "")


def test_kv_block_bytes(model: Path) -> None:
    # keys and values of 16 tokens as float16
    assert read_kv_block_bytes(model) == 2 * 2 * 16 * LAYERS * KV_HEADS * (HIDDEN // HEADS)


def test_accept_probes(client: EngineClient) -> None:
    figures = measure_accept(client, num_streams=2, context_tokens=16, num_probes=4)
    assert (figures.probes, figures.streams) == (4, 2)
    assert 0 < figures.submit_call.p50_s <= figures.accepted.max_s
    assert figures.accepted.p50_s > 0
    assert figures.step_mean_s > 0
    if figures.is_counted:
        assert 0 <= (figures.within_2ms_share or 0.0) <= 1
        assert figures.engine_mean_s is not None
        assert 0 < figures.engine_mean_s <= figures.accepted.max_s
    assert client.metrics()["requests_live"] == 0


def test_a_long_prompt(client: EngineClient) -> None:
    figures = measure_disturbance(client, num_streams=2, prompt_tokens=300, quiet_tokens=8)
    assert figures.prompt_tokens == 300
    assert figures.before.max_s > 0
    assert figures.undisturbed.max_s > 0
    assert figures.disturbed.max_s > 0
    assert figures.alone_first_token_s > 0
    assert figures.first_token_s > 0
    assert client.metrics()["requests_live"] == 0
    with pytest.raises(ConfigError, match="does not fit"):
        measure_disturbance(client, num_streams=2, prompt_tokens=512, quiet_tokens=8)


def test_streams_go_on_when_their_context_is_full(client: EngineClient) -> None:
    with RunningStreams(client, 2, 400) as streams:
        streams.wait_tokens(300)
        assert streams.pace_s() > 0
    assert client.metrics()["requests_live"] == 0
    with pytest.raises(ConfigError, match="do not fit the engine"):
        RunningStreams(client, 2, 500)


def test_a_stream_that_fails_is_told(client: EngineClient) -> None:
    with RunningStreams(client, 1, 16) as streams:
        client.close()
        with pytest.raises(PlaitError, match="a stream in the background failed"):
            streams.wait_tokens(1000)

"""plait bench step over an engine whose every step takes 2 ms of forward pass and 0.5 ms around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import plait.bench.step as step
from plait.bench.step import StepSettings, measure_steps, run_step_bench
from plait.errors import ConfigError, EngineDeadError, PlaitError
from tests.fakes.timed_client import FORWARD_NS, OUTSIDE_NS, TimedClient

STEP_S = (FORWARD_NS + OUTSIDE_NS) / 1e9
SMALL = StepSettings(batches=(1, 3), contexts=(40,), prompts=(100,), decode_tokens=8, repeats=2)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_HEALTH_INTERVAL_S", 0.0)


def test_speeds_are_exact() -> None:
    client = TimedClient()
    prefill, single, three = measure_steps(client, SMALL, client.clock)
    # 100 prompt tokens at 64 a step: two steps
    assert (prefill.kind, prefill.batch, prefill.context, prefill.tokens) == ("prefill", 1, 100, 100)
    assert prefill.tokens_per_s == pytest.approx(100 / (2 * STEP_S))
    assert (single.kind, single.batch, single.context, single.tokens) == ("decode", 1, 40, 8)
    assert single.tokens_per_s == pytest.approx(1 / STEP_S)
    # Though the three began in different steps: the window holds only steps with all three.
    assert (three.batch, three.tokens) == (3, 24)
    assert three.tokens_per_s == pytest.approx(3 / STEP_S)
    assert three.seconds == pytest.approx(8 * STEP_S)
    for row in (prefill, single, three):
        assert row.outside_share == pytest.approx(OUTSIDE_NS / (FORWARD_NS + OUTSIDE_NS))
        assert row.runs_tokens_per_s == pytest.approx((row.tokens_per_s,) * 2)


def test_a_step_on_its_way_does_not_count() -> None:
    """The engine may have counted the next step already when the outputs that end the window arrive."""
    client = TimedClient()
    client.steps_ahead = lambda call: 1 if call % 3 == 0 else 0  # calls: submission, begin, end
    settings = StepSettings(batches=(2,), contexts=(8,), prompts=(8,), decode_tokens=4, repeats=1)
    _, decode = measure_steps(client, settings, client.clock)
    assert client.num_metrics_calls == 4 * 3
    assert decode.outside_share == pytest.approx(OUTSIDE_NS / (FORWARD_NS + OUTSIDE_NS))


def test_what_is_left_after_the_window_is_aborted() -> None:
    client = TimedClient()
    measure_steps(client, SMALL, client.clock)
    # A warm-up and two runs, each of 1 and then of 3 sequences; prefill ends by itself.
    assert client.num_aborted == 3 * (1 + 3)
    assert len(client.requests) == 3 * (1 + 1 + 3)


def test_prompts_differ_and_are_valid() -> None:
    client = TimedClient()
    measure_steps(client, SMALL, client.clock)
    prompts = [request.prompt_token_ids for request in client.requests]
    assert len(set(prompts)) == len(prompts)
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert all(request.sampling.ignore_eos for request in client.requests)


def test_the_median_run_is_reported() -> None:
    client = TimedClient()
    extra_ms = [0, 0.5, 7.5, 2.5]
    client.step_extra_ns = lambda: (
        int(extra_ms[len(client.requests) - 1] * 1e6) if len(client.requests) <= 4 else 0
    )
    settings = StepSettings(batches=(1,), contexts=(1,), prompts=(10,), decode_tokens=1, repeats=3)
    prefill, _ = measure_steps(client, settings, client.clock)
    # Steps of 3, 10 and 5 ms; the one of the warm-up, 2.5 ms, does not count.
    assert prefill.runs_tokens_per_s == pytest.approx((10 / 0.003, 10 / 0.010, 10 / 0.005))
    assert prefill.seconds == pytest.approx(0.005)
    assert prefill.outside_share == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (StepSettings(batches=(0,)), "--batches must be from 1 to 4096, not 0"),
        (StepSettings(decode_tokens=0), "--decode-tokens must be 1 or more, not 0"),
        (StepSettings(repeats=-1), "--repeats must be 1 or more, not -1"),
        (StepSettings(prompts=()), "--prompts is empty"),
        (StepSettings(batches=(5000,)), "--batches must be from 1 to 4096, not 5000"),
        (StepSettings(num_compute_threads=0), "threads"),
        (StepSettings(kv_cache_dtype="q4"), "f16, q8"),  # type: ignore[arg-type]
        (StepSettings(compute_parallelism="rows"), "tensor, pipeline"),  # type: ignore[arg-type]
    ],
)
def test_senseless_settings_are_refused_before_anything_starts(settings: StepSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_step_bench(Path("no-such-file.gguf"), settings)


def test_what_does_not_fit_the_model_is_refused() -> None:
    client = TimedClient(max_model_len=100)
    with pytest.raises(ConfigError, match=r"101 tokens do not fit the model's 100"):
        measure_steps(
            client, StepSettings(batches=(1,), contexts=(1,), prompts=(100,), decode_tokens=1), client.clock
        )


def test_what_does_not_fit_the_kv_cache_is_refused() -> None:
    client = TimedClient(num_kv_blocks=8)
    with pytest.raises(ConfigError, match="the engine has 8"):
        measure_steps(client, SMALL, client.clock)


def test_a_stuck_engine_is_an_error_and_no_hang() -> None:
    client = TimedClient()
    client.is_stuck = True
    with pytest.raises(EngineDeadError, match="stuck"):
        measure_steps(client, SMALL, client.clock)


def test_a_failed_request_is_an_error() -> None:
    client = TimedClient()
    client.error = "step 1 failed"
    with pytest.raises(PlaitError, match="step 1 failed"):
        measure_steps(client, SMALL, client.clock)


def test_sequences_that_never_decode_together_are_an_error() -> None:
    client = TimedClient()
    client.max_tokens_cap = 1
    settings = StepSettings(batches=(3,), contexts=(40,), prompts=(8,), decode_tokens=8, repeats=1)
    with pytest.raises(PlaitError, match="never decoded together"):
        measure_steps(client, settings, client.clock)


def test_the_report_is_json_with_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TimedClient()
    configs = []

    def start(path: Path, config: object) -> TimedClient:
        configs.append(config)
        return client

    monkeypatch.setattr(step, "start_engine", start)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"12345")
    # The wall clock and the made-up forward time do not belong together here: only the form is looked at.
    report = json.loads(json.dumps(run_step_bench(model, SMALL).to_json()))
    assert (report["bench"], report["model"], report["model_bytes"]) == ("step", "timed", 5)
    assert (report["machine"]["isa"], report["machine"]["num_compute_threads"]) == ("none", 2)
    assert {"cpu", "num_cores", "versions", "date"} <= report["machine"].keys()
    assert report["settings"]["batches"] == [1, 3]
    assert [row["kind"] for row in report["measurements"]] == ["prefill", "decode", "decode"]
    assert all(0 <= row["outside_share"] <= 1 for row in report["measurements"])
    assert client.is_closed
    assert not configs[0].enable_prefix_cache
    assert configs[0].max_batch_size == 3

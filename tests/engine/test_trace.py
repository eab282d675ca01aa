"""``--trace FILE`` with a small random llama: every thread has its lane, and times agree with the metrics."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from read_trace import TraceContent, busy_share, main, overlaps, read_trace, step_gaps

from plait import _native
from plait.config import EngineConfig
from plait.engine import start_engine
from plait.engine.tracing import Trace, new_span
from plait.errors import ConfigError, PlaitError
from plait.types import GenerateRequest, SamplingParams
from tests.fakes.answers import run
from tests.fakes.tiny_gguf import VOCAB, write_tiny_llama

NUM_LAYERS = 2
EARLIER = '{"displayTimeUnit":"ms","traceEvents":[]}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", "Q4_1")


def config(**settings: object) -> EngineConfig:
    defaults = {
        "max_batch_size": 8,
        "max_batch_tokens": 64,
        "max_model_len": 512,
        "kv_cache_bytes": 16 << 20,
        "num_compute_threads": 2,
    }
    return EngineConfig.model_validate({**defaults, **settings})


def make_requests() -> list[GenerateRequest]:
    return [
        GenerateRequest(
            tuple((7 * i + k) % VOCAB for k in range(length)),
            SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True),
        )
        for i, length in enumerate((3, 40, 90))
    ]


class Run:
    """Requests through an engine with a trace, and the metrics just before and after them."""

    def __init__(self, model: Path, path: Path, **settings: object) -> None:
        client = start_engine(model, config(trace=str(path), **settings))
        try:
            self.before = client.metrics()
            self.begin_ns = time.monotonic_ns()
            self.answers = [a.content() for choices in run(client, make_requests()) for a in choices]
            # A result reaches the metrics before the outputs of its step reach anyone.
            self.after = client.metrics()
            self.end_ns = time.monotonic_ns()
        finally:
            client.close()
        self.trace = read_trace(path)

    def delta(self, name: str) -> float:
        return self.after[name] - self.before[name]

    @property
    def window(self) -> tuple[int, int]:
        start = self.trace.start_monotonic_ns
        return self.begin_ns - start, self.end_ns - start


@pytest.fixture(scope="module")
def traced(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(model, tmp_path_factory.mktemp("trace") / "trace.json")


def test_every_thread_has_a_lane(traced: Run) -> None:
    trace = traced.trace
    assert trace.num_dropped_events == 0
    assert {"plait-main", "plait-io", "plait-compute", "plait-team-1"} <= set(trace.lanes)
    main_lane, io, compute = (trace.lane(f"plait-{name}") for name in ("main", "io", "compute"))
    for name in ("schedule", "submit", "results", "wait"):
        assert main_lane.named(name), name
    for name in ("deliver", "wait"):
        assert io.named(name), name
    for name in (
        "step",
        "wait",
        "begin",
        "embed",
        "qkv",
        "attention",
        "matmul",
        "gated",
        "add_norm",
        "logits",
    ):
        assert compute.named(name), name
    assert {event.name for event in trace.lane("plait-team-1").events} <= {e.name for e in compute.events}
    assert any(lane.named("load") for lane in trace.all_lanes())
    assert 0 < trace.ready_ns < traced.window[0]


def test_events_nest(traced: Run) -> None:
    for lane in traced.trace.all_lanes():
        assert overlaps(lane) == [], lane.name


def test_steps_hold_their_operations_and_sizes(traced: Run) -> None:
    compute = traced.trace.lane("plait-compute")
    steps = compute.named("step")
    assert len(steps) == traced.after["steps_total"] + steps_of_warm_up(traced)
    assert [step.args["step"] for step in steps] == list(range(len(steps)))
    first = next(step for step in steps if step.begin_ns > traced.window[0])
    assert first.args["tokens"] >= 3
    assert max(step.args["sequences"] for step in steps) == 3
    for name, per_step in (("qkv", NUM_LAYERS), ("attention", NUM_LAYERS), ("logits", 1)):
        operations = compute.named(name)
        assert len(operations) == per_step * len(steps)
        assert all(op.args["tokens"] >= 1 for op in operations)
    for operation in compute.named("attention"):
        (step,) = (s for s in steps if s.begin_ns <= operation.begin_ns and operation.end_ns <= s.end_ns)
        assert operation.args["tokens"] == step.args["tokens"]
    planned = {event.args["step"]: event for event in traced.trace.lane("plait-main").named("schedule")}
    for step in steps:
        assert planned[step.args["step"]].args["tokens"] == step.args["tokens"]
        assert planned[step.args["step"]].end_ns <= step.begin_ns


def steps_of_warm_up(traced: Run) -> int:
    ready_ns = traced.trace.ready_ns
    return sum(step.end_ns <= ready_ns for step in traced.trace.lane("plait-compute").named("step"))


def test_trace_and_metrics_agree_on_how_busy_compute_was(traced: Run) -> None:
    begin_ns, end_ns = traced.window
    steps = traced.trace.lane("plait-compute").named("step")
    share = busy_share(steps, begin_ns, end_ns)
    metric = traced.delta("step_seconds_total") / ((end_ns - begin_ns) * 1e-9)
    assert 0 < metric <= share, "the event of a step is a little longer than what the metric counts"
    # What lies between: some microseconds a step.
    assert share - metric < 0.02 + len(steps) * 20e-6 / ((end_ns - begin_ns) * 1e-9)
    # The same by the names that users see: shares since the engine was ready, times the time since then.
    seconds = [m["compute_busy_share"] * m["uptime_seconds"] for m in (traced.before, traced.after)]
    assert seconds[1] - seconds[0] == pytest.approx(traced.delta("step_seconds_total"), rel=1e-6, abs=1e-6)


def test_trace_and_metrics_agree_on_the_gaps_between_steps(traced: Run) -> None:
    gaps = [gap * 1e-9 for gap in step_gaps(traced.trace.lane("plait-compute"), *traced.window)]
    total = traced.delta("step_gap_seconds_total")
    # The metric counts the gap before the first step, too, from the arrival of the requests on.
    assert total > 0
    assert max(gaps) <= traced.after["step_gap_max_seconds"] + 1e-4
    assert total == pytest.approx(sum(gaps), abs=0.02 + len(gaps) * 50e-6)


def test_an_idle_engine_has_no_gaps(model: Path) -> None:
    client = start_engine(model, config())
    try:
        run(client, make_requests()[:1])
        time.sleep(0.3)
        before = client.metrics()["step_gap_seconds_total"]
        run(client, make_requests()[:1])
        after = client.metrics()
        assert after["step_gap_seconds_total"] - before < 0.3
        for name in ("submissions", "outputs", "ready_steps", "results"):
            assert after[f"queue_depth_{name}"] == 0
    finally:
        client.close()


def test_a_trace_changes_no_answer(traced: Run, model: Path, tmp_path: Path) -> None:
    client = start_engine(model, config())
    try:
        plain = [a.content() for choices in run(client, make_requests()) for a in choices]
        assert "trace_events_total" not in client.metrics()
    finally:
        client.close()
    assert traced.answers == plain
    assert traced.after["trace_events_total"] >= 0
    assert traced.after["trace_dropped_events_total"] == 0


@pytest.mark.parametrize("settings", [{"engine_mode": "coroutine"}, {"compute_parallelism": "pipeline"}])
def test_other_modes_have_traces_too(
    traced: Run, model: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    other = Run(model, tmp_path / "trace.json", **settings)
    assert other.answers == traced.answers
    for lane in other.trace.all_lanes():
        assert overlaps(lane) == [], lane.name
    names = {event.name for lane in other.trace.all_lanes() for event in lane.events}
    assert {"schedule", "submit", "results", "deliver", "step", "attention", "sample"} <= names


@pytest.mark.model
def test_a_real_model_gives_a_whole_trace(smollm2_path: Path, tmp_path: Path) -> None:
    real = Run(smollm2_path, tmp_path / "trace.json", kv_cache_bytes=256 << 20)
    trace = real.trace
    assert trace.num_dropped_events == 0
    assert {"plait-main", "plait-io", "plait-compute", "plait-team-1"} <= set(trace.lanes)
    assert all(overlaps(lane) == [] for lane in trace.all_lanes())
    steps = trace.lane("plait-compute").named("step")
    begin_ns, end_ns = real.window
    metric = real.delta("step_seconds_total") / ((end_ns - begin_ns) * 1e-9)
    assert busy_share(steps, begin_ns, end_ns) == pytest.approx(metric, abs=0.02)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_loaded(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace: .*none/trace\.json: No such file or directory"):
        start_engine(model, config(trace=str(tmp_path / "none" / "trace.json")))
    with pytest.raises(ConfigError, match="Is a directory"):
        start_engine(Path("no-such-model.gguf"), config(trace=str(tmp_path)))
    assert not _native.trace_is_on()


def test_one_trace_at_a_time(model: Path, tmp_path: Path) -> None:
    first = start_engine(model, config(trace=str(tmp_path / "a.json")))
    try:
        with pytest.raises(ConfigError, match="already"):
            start_engine(model, config(trace=str(tmp_path / "b.json")))
        assert _native.trace_is_on()
    finally:
        first.close()
    assert not _native.trace_is_on()
    assert read_trace(tmp_path / "a.json").lanes


def test_an_engine_that_does_not_start_leaves_an_earlier_trace(model: Path, tmp_path: Path) -> None:
    from plait.errors import ModelFileError

    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    earlier = tmp_path / "a.json"
    earlier.write_text(EARLIER)
    with pytest.raises(ModelFileError):
        start_engine(bad, config(trace=str(earlier)))
    with pytest.raises(ConfigError, match="kv_cache does not fit"):
        start_engine(model, config(trace=str(earlier), kv_cache_bytes=1 << 49))
    assert not _native.trace_is_on()
    assert earlier.read_text() == EARLIER
    assert sorted(tmp_path.iterdir()) == [earlier, bad]


def test_a_model_is_not_overwritten_whatever_links_lead_to_it(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "trace.json"
    link.symlink_to(model)
    content = model.read_bytes()
    with pytest.raises(ConfigError, match="which is read"):
        start_engine(model, config(trace=str(link)))
    assert model.read_bytes() == content
    assert not _native.trace_is_on()


def test_a_file_is_replaced_when_the_trace_is_whole(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(EARLIER)
    client = start_engine(model, config(trace=str(path)))
    try:
        assert path.read_text() == EARLIER
    finally:
        client.close()
    assert read_trace(path).lanes
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_reported_at_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(EARLIER)
    monkeypatch.setattr("plait.engine.tracing.part_of", lambda path: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda *arguments, **options: None)
    trace = Trace(path)
    span = new_span("event", "test")
    for _ in range(200):
        for _ in range(200):
            span.mark()
        trace.look()
        if caplog.records:
            break
        time.sleep(0.03)
    assert "No space left on device; there is no trace of this run" in caplog.text
    assert not _native.trace_is_on()
    with pytest.raises(PlaitError, match=r"--trace: .*trace\.json: .*No space left on device"):
        trace.close()
    trace.close()
    assert path.read_text() == EARLIER


def test_the_tool_prints_what_a_trace_shows(
    traced: Run, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "again.json"
    Run(model, path)
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    for text in ("plait-compute:", "  step ", "between steps:", "plait-io:", "deliver"):
        assert text in printed
    assert "incomplete" not in printed
    assert main([str(tmp_path / "none.json")]) == 1


def test_the_process_of_the_trace_is_named_in_each_event(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    Run(model, path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {os.getpid()}


def test_overlaps_are_found() -> None:
    from read_trace import Event, Lane

    def lane(*spans: tuple[int, int]) -> Lane:
        return Lane("x", [Event("e", begin, end, {}) for begin, end in spans])

    assert overlaps(lane((0, 10), (2, 5), (5, 10), (10, 12))) == []
    assert overlaps(lane((0, 10), (5, 11)))
    assert overlaps(lane((0, 10), (2, 5), (4, 6)))
    assert isinstance(TraceContent({}, 0, 0).end_ns, int)
    assert busy_share(lane((0, 10), (20, 30)).events, 5, 25) == 0.5

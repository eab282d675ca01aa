"""The scripts in benchmarks/ that drive an engine run on a small model and report what they measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.client import OutputCallback
from plait.errors import OverloadedError
from plait.types import FinishReason, GenerateRequest, TokenOutput
from tests.fakes.tiny_gguf import write_tiny_llama

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load_bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script as a module, by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        bench = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, bench)  # its dataclasses look their module up
        spec.loader.exec_module(bench)
        return bench

    return load


@pytest.fixture
def run_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], load_bench: Any) -> Any:
    """Runs a script on a small model: what the last line of its output says."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")

    def run(name: str, *arguments: str) -> Any:
        load_bench(name).main([str(model), *arguments])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_both_kv_caches_are_measured_in_each_round(run_bench: Any) -> None:
    result = run_bench(
        "kv_cache", "--contexts", "8,24", "--rounds", "3", "--decode-tokens", "4", "--threads", "1"
    )
    assert [row["context"] for row in result["rows"]] == [8, 24]
    for row in result["rows"]:
        assert {dtype: len(times) for dtype, times in row["token_s"].items()} == {"f16": 3, "q8": 3}
        assert all(seconds > 0 for times in row["token_s"].values() for seconds in times)
        assert row["q8_over_f16"] > 0


def test_both_tenants_make_progress_in_every_mode(run_bench: Any) -> None:
    result = run_bench(
        "tenants", "--flood", "20", "--requests", "3", "--prompt-tokens", "8", "--output-tokens", "4"
    )
    assert [row["mode"] for row in result["rows"]] == ["threads", "coroutine", "native"]
    for row in result["rows"]:
        assert len(row["alone_s"]) == len(row["beside_s"]) == 3
        assert row["ratio"] > 0
        assert row["crowd_tokens_per_s"] > 0


class ScriptedClient:
    """Requests end when the test says so, on the thread of the test, which stands for the engine's."""

    def __init__(self, max_open: int) -> None:
        self.info = SimpleNamespace(vocab_size=50)
        self.max_open = max_open
        self.open: dict[int, OutputCallback] = {}
        self.num_submitted = 0

    def submit(self, _: GenerateRequest, on_output: OutputCallback) -> int:
        if len(self.open) == self.max_open:
            raise OverloadedError("no room", retry_after_s=1.0)
        self.num_submitted += 1
        self.open[self.num_submitted] = on_output
        return self.num_submitted

    def abort(self, request_id: int) -> None:
        self.end(request_id, FinishReason.ABORT)

    def end(self, request_id: int, reason: FinishReason = FinishReason.LENGTH) -> None:
        self.open.pop(request_id)(TokenOutput(request_id, 0, (1,), finish_reason=reason))


def test_a_crowd_stays_whole_however_busy_the_machine(load_bench: Any) -> None:
    """No thread of the benchmark has to run between the end of a request and the next one."""
    client = ScriptedClient(max_open=5)
    crowd = load_bench("tenants").Tenant(client, "crowd", 3, 4)
    crowd.flood(5)
    for request_id in range(1, 11):
        client.end(request_id)
        assert sorted(client.open) == list(range(request_id + 1, request_id + 6))
    crowd.check()
    crowd.abort_all()
    assert not client.open


def test_a_crowd_that_is_refused_is_an_error(load_bench: Any) -> None:
    client = ScriptedClient(max_open=2)
    crowd = load_bench("tenants").Tenant(client, "crowd", 3, 4)
    crowd.flood(2)
    client.max_open = 1
    client.end(1)
    with pytest.raises(SystemExit, match="no room"):
        crowd.check()


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("kv_cache", ["no-such-model"], 1, "no-such-model"),
        ("kv_cache", ["MODEL", "--contexts", "8,a"], 2, "'a' is not a whole number from 1"),
        ("kv_cache", ["MODEL", "--contexts", "0"], 2, "'0' is not a whole number from 1"),
        ("kv_cache", ["MODEL", "--contexts", "8", "--rounds", "0"], 2, "--rounds"),
        ("kv_cache", ["MODEL", "--contexts", "99999"], 1, "kv_cache: "),
        ("tenants", ["MODEL", "--modes", "threads,foo"], 2, "'foo' is not one of threads, coroutine, native"),
        ("tenants", ["MODEL", "--threads", "0"], 2, "--threads"),
        ("peer_llamacpp", ["MODEL", "--batches", "1,0"], 2, "'0' is not a whole number from 1"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    tmp_path: Path, name: str, arguments: list[str], code: int, said: str
) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")
    given = [str(model) if argument == "MODEL" else argument for argument in arguments]
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *given],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr

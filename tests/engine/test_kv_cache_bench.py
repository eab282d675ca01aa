"""The benchmark of KV cache types runs on a small model and reports what it measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.fakes.tiny_gguf import write_tiny_llama

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kv_cache.py"


def test_both_caches_are_measured_in_each_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("kv_cache_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, bench)  # its dataclasses look their module up
    spec.loader.exec_module(bench)
    model = write_tiny_llama(tmp_path / "tiny.gguf", "Q8_0")
    bench.main([str(model), "--contexts", "8,24", "--rounds", "3", "--decode-tokens", "4", "--threads", "1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["context"] for row in result["rows"]] == [8, 24]
    for row in result["rows"]:
        assert {dtype: len(times) for dtype, times in row["token_s"].items()} == {"f16": 3, "q8": 3}
        assert all(seconds > 0 for times in row["token_s"].values() for seconds in times)
        assert row["q8_over_f16"] > 0

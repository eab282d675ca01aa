"""The weight cache under whole engines and processes, with a real model."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from plait.config import EngineConfig
from plait.engine import start_engine
from plait.engine.loading import LoadedModel, load_model
from plait.weights.packed import CacheSettings

pytestmark = pytest.mark.model

MIB = 1 << 20
EXTRA_BYTES = 150 * MIB
"""What a load may take beyond the size of the file, interpreter and libraries included."""


def load(path: Path, folder: Path | None, share: bool | None = None) -> LoadedModel:
    cache = None if folder is None else CacheSettings(folder, 1 << 40, share)
    return load_model(path, num_threads=2, cache=cache)


def logits_of(model: LoadedModel) -> str:
    return hashlib.sha256(model.evaluate_logits(list(range(100, 120)), num_threads=2)).hexdigest()


def test_same_bits_wherever_the_weights_are(smollm2_path: Path, tmp_path: Path) -> None:
    plain = load(smollm2_path, None)
    assert set(plain.phases_s) == {"read", "pack", "plan"}
    expected = logits_of(plain)
    first = load(smollm2_path, tmp_path)
    assert "pack" in first.phases_s
    assert logits_of(first) == expected
    for share in (None, True, False):
        again = load(smollm2_path, tmp_path, share)
        assert "fetch" in again.phases_s
        assert logits_of(again) == expected
        if share is not None:
            assert again.has_shared_weights is share


def test_an_engine_says_where_its_weights_come_from(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))

    def metrics(**settings: object) -> dict[str, float]:
        config = EngineConfig.model_validate({"max_model_len": 64, "max_batch_size": 1, **settings})
        client = start_engine(smollm2_path, config)
        try:
            return dict(client.metrics())
        finally:
            client.close()

    off = metrics(weight_cache=False)
    assert (off["weights_from_cache"], off["weights_are_shared"]) == (0, 0)
    assert list(tmp_path.iterdir()) == []
    first = metrics(share_weights=True)
    assert (first["weights_from_cache"], first["weights_are_shared"]) == (0, 1)
    assert first["load_pack_seconds"] > 0
    second = metrics(share_weights=True)
    assert (second["weights_from_cache"], second["weights_are_shared"]) == (1, 1)
    assert second["load_fetch_seconds"] > 0
    assert metrics(share_weights=False)["weights_are_shared"] == 0


LOAD = """
import sys
from pathlib import Path
from plait.engine.loading import load_model
from plait.weights.packed import CacheSettings
cache = None if sys.argv[2] == "-" else CacheSettings(Path(sys.argv[2]), 1 << 40, eval(sys.argv[3]))
model = load_model(Path(sys.argv[1]), num_threads=2, cache=cache)
print("pack" in model.phases_s, flush=True)
sys.stdin.read()
"""


@contextmanager
def loaded_process(path: Path, folder: Path | None, share: bool | None = True) -> Iterator[tuple[int, bool]]:
    """The id of a process that has the model loaded, and whether it packed it."""
    command = [sys.executable, "-c", LOAD, str(path), "-" if folder is None else str(folder), repr(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child.pid, child.stdout.readline() == "True\n"
        finally:
            child.stdin.close()
            child.wait(30)


def kib(pid: int, file: str, name: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def test_four_processes_share_one_copy(smollm2_path: Path, tmp_path: Path) -> None:
    weight_bytes = smollm2_path.stat().st_size
    with ExitStack() as stack:
        loaded = [stack.enter_context(loaded_process(smollm2_path, tmp_path)) for _ in range(4)]
        assert [was_packed for _, was_packed in loaded] == [True, False, False, False]
        resident = [kib(pid, "smaps_rollup", "Rss") for pid, _ in loaded]
        proportional = [kib(pid, "smaps_rollup", "Pss") for pid, _ in loaded]
    for rss, pss in zip(resident, proportional, strict=True):
        assert rss > weight_bytes
        # Of the weights each has a quarter to its name; the rest of the sum is Python's own.
        assert pss < rss - 0.7 * weight_bytes
    assert sum(proportional) < sum(resident) - 2.8 * weight_bytes


@pytest.mark.parametrize("share", [True, False])
def test_a_load_never_holds_the_model_twice(smollm2_path: Path, tmp_path: Path, share: bool) -> None:
    bound = smollm2_path.stat().st_size + EXTRA_BYTES
    for should_pack in (True, False):
        with loaded_process(smollm2_path, tmp_path, share) as (pid, was_packed):
            assert was_packed is should_pack
            assert kib(pid, "status", "VmHWM") < bound
    with loaded_process(smollm2_path, None) as (pid, _):
        assert kib(pid, "status", "VmHWM") < bound


def test_a_large_table_is_packed_piece_by_piece(gemma3_path: Path, tmp_path: Path) -> None:
    """Most of this model is one matrix, the embedding table."""
    bound = gemma3_path.stat().st_size + EXTRA_BYTES
    for folder in (tmp_path, tmp_path, None):
        with loaded_process(gemma3_path, folder) as (pid, _):
            assert kib(pid, "status", "VmHWM") < bound

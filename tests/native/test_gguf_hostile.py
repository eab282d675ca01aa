"""Hostile GGUF files: each is refused with its own error, quickly, in little memory, and none crashes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from gen_bad_gguf import BadFile, all_cases, good_files, write_case

from plait.errors import ModelFileError
from plait.weights.gguf import GgufFile
from plait.weights.hyperparameters import check_hyperparameters, open_model

MAX_SECONDS = 1.0
MAX_EXTRA_BYTES = 64 << 20
CASES = all_cases()
CONTAINER_CASES = [case for case in CASES if case.is_container]
MODEL_CASES = [case for case in CASES if not case.is_container]


def case_id(case: BadFile) -> str:
    return case.name


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What happened to each malformed container: by name."""
    directory = tmp_path_factory.mktemp("bad")
    paths = {case.name: str(write_case(case, directory)) for case in CONTAINER_CASES}
    probe = Path(__file__).with_name("gguf_probe.py")
    command = [sys.executable, str(probe), *paths.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    results = json.loads(done.stdout)
    return {name: results[path] for name, path in paths.items()}


def test_there_are_enough_cases() -> None:
    assert len(CONTAINER_CASES) >= 60
    assert len({case.content for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CONTAINER_CASES, ids=case_id)
def test_malformed_file_is_refused(case: BadFile, outcomes: dict[str, dict[str, Any]]) -> None:
    result = outcomes[case.name]
    assert case.expected in result["outcome"]
    assert f"{case.name}.gguf: " in result["outcome"]
    assert len(result["outcome"]) < 600
    assert result["seconds"] < MAX_SECONDS
    assert result["extra_bytes"] < MAX_EXTRA_BYTES


@pytest.mark.parametrize("case", MODEL_CASES, ids=case_id)
def test_senseless_hyperparameters_are_refused(case: BadFile, tmp_path: Path) -> None:
    path = write_case(case, tmp_path)
    file = GgufFile(path)
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    assert case.expected in str(caught.value)
    assert str(caught.value).startswith(f"{file.path}: ")


@pytest.mark.parametrize("name", good_files())
def test_well_formed_file_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(good_files()[name])
    file = GgufFile(path)
    assert isinstance(file.metadata, dict)
    for tensor in file.tensors.values():
        assert len(file.tensor_bytes(tensor.name)) == tensor.num_bytes


def test_tiny_model_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(good_files()["tiny-model"])
    assert open_model(path).metadata["llama.block_count"] == 2


def open_fully(content: bytes) -> str:
    """Opens a file of that content and touches all that it offers; "refused" for a ModelFileError."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as temporary:
        temporary.write(content)
        temporary.flush()
        try:
            file = GgufFile(temporary.name)
            for tensor in file.tensors:
                bytes(file.tensor_bytes(tensor))
            check_hyperparameters(file.metadata, file.tensors)
        except ModelFileError:
            return "refused"
    return "parsed"


GOOD = good_files()
GOOD_NAMES = sorted(name for name in GOOD if name != "no-tensors")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(name=st.sampled_from(GOOD_NAMES), data=st.data())
def test_any_prefix_is_refused(name: str, data: st.DataObject) -> None:
    content = GOOD[name]
    # The data section's padding behind the last tensor may be missing.
    size = data.draw(st.integers(0, len(content) - 128))
    assert open_fully(content[:size]) == "refused"


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(name=st.sampled_from(GOOD_NAMES), data=st.data())
def test_any_single_byte_change_parses_or_is_refused(name: str, data: st.DataObject) -> None:
    content = bytearray(GOOD[name])
    at = data.draw(st.integers(0, min(len(content), 3000) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    assert open_fully(bytes(content)) in ("parsed", "refused")


@settings(max_examples=500, deadline=None, derandomize=True)
@given(tail=st.binary(max_size=400))
def test_any_bytes_behind_the_magic_parse_or_are_refused(tail: bytes) -> None:
    assert open_fully(b"GGUF\x03\0\0\0" + tail) in ("parsed", "refused")


def test_every_boundary_of_the_header(tmp_path: Path) -> None:
    """Cut at each byte of the header: all counts, types, strings and tensor descriptions end somewhere."""
    content = GOOD["every-kind"]
    path = tmp_path / "cut.gguf"
    path.write_bytes(content)
    header_size = min(tensor.offset for tensor in GgufFile(path).tensors.values())
    for size in range(header_size):
        path.write_bytes(content[:size])
        with pytest.raises(ModelFileError):
            GgufFile(path)

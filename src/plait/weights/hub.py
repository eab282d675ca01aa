"""Models of the Hugging Face hub, through the optional package ``huggingface_hub``.

Must not know: the catalogue. The package keeps its own cache, resumes and verifies downloads by itself.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from plait.errors import ModelFileError

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w./ +-]+))?")
_SPLIT_FILE = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_NETWORK_ERRORS = frozenset(
    ["TransportError", "ConnectionError", "Timeout", "TimeoutError", "gaierror", "LocalEntryNotFoundError"]
)
"""Names of classes: which of the HTTP libraries is there depends on the package's version."""


def is_hub_name(name: str) -> bool:
    """True for ``org/name`` and ``org/name:file``."""
    return _HUB_NAME.fullmatch(name) is not None and ".." not in name


def pull_from_hub(name: str) -> Path:
    """Downloads the file that the name stands for, or finds it in the hub's cache. Blocks on the network.

    Raises:
        ModelFileError: the package is not installed, the hub refuses or cannot be reached, or it is not clear
            which of the repository's files is meant.
    """
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise ModelFileError(f"{name!r} is not of the form org/name or org/name:file.gguf")
    repository, file_name = match.group(1), match.group(2)
    hub = _load_hub(name)
    try:
        if file_name is None:
            file_name = _only_file(repository, hub.list_repo_files(repository))
        return Path(hub.hf_hub_download(repository, file_name))
    except ModelFileError:
        raise
    except Exception as error:
        # The package raises classes of its own, of the HTTP library and of the system.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if any(cls.__name__ in _NETWORK_ERRORS for cls in type(error).__mro__):
            reason = f"it cannot be reached ({reason}); check the network, the proxy and HF_ENDPOINT"
        raise ModelFileError(f"cannot get {name} from the hub: {reason}") from error


def _load_hub(name: str) -> Any:
    try:
        hub = import_module("huggingface_hub")
    except ImportError as error:
        raise ModelFileError(
            f"{name} is a name of the Hugging Face hub, which needs the package huggingface_hub: "
            "pip install 'plait[hub]'"
        ) from error
    # Each of its retries would be a warning; what comes of them is told at the end. Its module for logging sets the
    # level when it is first imported.
    with suppress(ImportError):
        import_module("huggingface_hub.utils.logging")
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return hub


def _only_file(repository: str, files: list[str]) -> str:
    """The repository's GGUF file when there is exactly one that is a whole model."""
    candidates = sorted(f for f in files if f.endswith(".gguf") and not _SPLIT_FILE.search(f))
    models = [f for f in candidates if "mmproj" not in f] or candidates
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelFileError(f"the hub's repository {repository} holds no GGUF file")
    choices = ", ".join(f"{repository}:{f}" for f in models)
    raise ModelFileError(f"the hub's repository {repository} holds several models; choose one: {choices}")

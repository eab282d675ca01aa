"""EngineCore: the scheduler, the native compute thread and the KV manager put together. Level 3.

Knows: token ids, threads, native parts. Must not know: text, HTTP.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plait.engine.core import EngineCore
from plait.engine.in_process import InProcessClient
from plait.engine.parts import EngineParts

if TYPE_CHECKING:
    from plait.client import EngineClient
    from plait.config import EngineConfig
    from plait.weights.gguf import GgufFile

__all__ = ["EngineCore", "EngineParts", "InProcessClient", "favour_this_thread", "start_engine"]


def start_engine(
    model: Path | GgufFile, config: EngineConfig, *, eos_token_ids: tuple[int, ...] | None = None
) -> EngineClient:
    """Load a model and start an engine for it in this process; returns when it is warm.

    Args:
        model: its file, or what ``open_model`` made of it, so that it need not be read twice.
        eos_token_ids: from whoever has the model's tokenizer already; None: read from the file.

    Raises:
        ModelFileError: the file is bad or of a kind that plait does not run.
        ConfigError: the settings do not fit the model or the machine; the message shows the sums.
        EngineDeadError: the warm-up failed.
    """
    # The rest of this package runs without the native extension.
    from plait.engine.start import start_native_engine

    return start_native_engine(model, config, eos_token_ids)


def favour_this_thread() -> bool:
    """Let the calling thread have the CPU soon whenever it wakes, beside compute threads that never sleep.

    For a thread that passes requests and tokens on and does little else. It may hold the interpreter's lock while it
    waits for a CPU; then the engine's threads wait, too. Threads that it starts later are not favoured.

    Returns:
        False where the kernel refuses.
    """
    from plait import _native

    return _native.favour_messenger_thread()

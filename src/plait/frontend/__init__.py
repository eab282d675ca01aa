"""Text in, text out over an EngineClient; shared by the server, the offline library and the CLI.

Knows text, token ids and the client interface. Must not know HTTP, JSON schemas or where the engine runs.
"""

from __future__ import annotations

from plait.frontend.delta import TextDelta, TextLogprob, TopLogprob, Usage
from plait.frontend.frontend import Frontend
from plait.frontend.generation import Generation, SyncGeneration

__all__ = ["Frontend", "Generation", "SyncGeneration", "TextDelta", "TextLogprob", "TopLogprob", "Usage"]

"""The EngineClient of an engine in this process."""

from __future__ import annotations

from plait.client import EngineClient, OutputCallback
from plait.engine.core import EngineCore
from plait.types import EngineInfo, GenerateRequest, Health


class InProcessClient(EngineClient):
    """Owns a started EngineCore. Calls never run a kernel or wait for a step."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    def submit(self, request: GenerateRequest, on_output: OutputCallback) -> int:
        return self._core.submit(request, on_output)

    def abort(self, request_id: int) -> None:
        self._core.abort(request_id)

    def health(self) -> Health:
        return self._core.health()

    def metrics(self) -> dict[str, float]:
        return self._core.metrics()

    def close(self) -> None:
        self._core.close()

"""AsyncLLM: the same engine for asyncio programs, streaming."""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from plait.errors import InvalidRequestError, PlaitError
from plait.frontend import Frontend, Generation
from plait.offline.open import close_frontend, open_frontend, read_model, resolve_engine
from plait.offline.outputs import RequestOutput, empty_output, extend
from plait.offline.prompts import (
    Messages,
    Prompt,
    read_chat,
    read_prompt,
    read_request_id,
    read_sampling,
    read_tools,
)
from plait.tokenizer import Tokenizer
from plait.types import FinishReason, GenerateRequest, SamplingParams
from plait.weights.catalog import DEFAULT_MODEL


class AsyncLLM:
    """A model with an engine of its own in this process. Any event loop, and several, may use it.

    The constructor blocks while the model loads; ``await AsyncLLM.create(...)`` does not block the loop. With
    ``async with await AsyncLLM.create(...) as llm`` the engine stops at the end of the block. The arguments and
    errors are those of ``plait.LLM``.
    """

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **engine_kwargs: Any) -> None:
        self._attach(open_frontend(read_model(model), resolve_engine(engine_kwargs).config.engine))

    @classmethod
    async def create(cls, model: str | os.PathLike[str] = DEFAULT_MODEL, **engine_kwargs: Any) -> AsyncLLM:
        """Load in a thread."""
        return await asyncio.to_thread(cls, model, **engine_kwargs)

    @classmethod
    def from_frontend(cls, frontend: Frontend) -> AsyncLLM:
        """An AsyncLLM over an engine that runs already; closing the AsyncLLM closes it."""
        llm = cls.__new__(cls)
        llm._attach(frontend)
        return llm

    def _attach(self, frontend: Frontend) -> None:
        self.frontend = frontend
        self._ids = itertools.count()
        self._running: dict[str, Generation] = {}
        self._finalizer = weakref.finalize(self, close_frontend, frontend)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Stream the answer: each output holds all that was produced so far, the last one is ``finished``.

        Leaving the iterator early aborts the request.

        Raises:
            InvalidRequestError: the request can never be served, or its id is in use.
            OverloadedError: the queue is full.
            EngineDeadError: the engine is gone.
            PlaitError: the request failed while it ran.
        """
        text = read_prompt(prompt)
        request = await self.frontend.prepare_completion(text, read_sampling(sampling_params))
        async for output in self._stream(text if isinstance(text, str) else None, request, request_id):
            yield output

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Stream the answer to a chat; like ``generate``."""
        request = await self.frontend.prepare_chat(
            read_chat(messages),
            read_sampling(sampling_params),
            add_generation_prompt=add_generation_prompt,
            tools=read_tools(tools),
        )
        async for output in self._stream(None, request, request_id):
            yield output

    async def abort(self, request_id: str) -> None:
        """End a request: its stream ends with the finish reason "abort". Unknown ids are ignored."""
        generation = self._running.get(request_id)
        if generation is not None:
            generation.abort()

    def get_tokenizer(self) -> Tokenizer:
        return self.frontend.tokenizer

    def shutdown(self) -> None:
        """Stop the engine; what runs ends as aborted. Idempotent."""
        self._finalizer()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    async def _stream(
        self, prompt: str | None, request: GenerateRequest, request_id: str | None
    ) -> AsyncIterator[RequestOutput]:
        key = read_request_id(request_id)
        key = f"plait-{next(self._ids)}" if key is None else key
        if key in self._running:
            raise InvalidRequestError(f"There is a running request with the id {key!r}.", param="request_id")
        output = empty_output(key, prompt, request)
        with self.frontend.submit([request]) as generation:
            self._running[key] = generation
            try:
                while deltas := await generation.next_batch():
                    for delta in deltas:
                        if delta.finish_reason is FinishReason.ERROR:
                            raise PlaitError(f"request {key} failed: {delta.error}")
                    output = extend(output, deltas)
                    yield output
            finally:
                del self._running[key]

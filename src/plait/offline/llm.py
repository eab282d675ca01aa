"""LLM: prompts in, finished answers out. Thread-safe: calls at the same time share the engine's batches."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from plait.errors import OverloadedError, PlaitError, ShuttingDownError
from plait.frontend import Frontend, SyncGeneration
from plait.offline.open import close_frontend, open_frontend, read_model, resolve_engine
from plait.offline.outputs import RequestOutput, empty_output, extend
from plait.offline.prompts import Messages, Prompt, read_tools, split_chats, split_prompts, spread_sampling
from plait.tokenizer import Tokenizer
from plait.types import FinishReason, GenerateRequest, SamplingParams
from plait.weights.catalog import DEFAULT_MODEL

_RETRY_S = 0.02

Job = tuple[str | None, GenerateRequest]


class LLM:
    """A model with an engine of its own in this process.

    Args:
        model: path of a GGUF file or a catalogue name; pulled when it is not here yet.
        engine_kwargs: fields of ``plait.config.EngineConfig``, e.g. ``max_model_len=2048``.

    Raises:
        ModelFileError: the model cannot be had or is not supported.
        ConfigError: a setting is wrong or does not fit this machine.
    """

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **engine_kwargs: Any) -> None:
        self._attach(open_frontend(read_model(model), resolve_engine(engine_kwargs).config.engine))

    @classmethod
    def from_frontend(cls, frontend: Frontend) -> LLM:
        """An LLM over an engine that runs already; closing the LLM closes it."""
        llm = cls.__new__(cls)
        llm._attach(frontend)
        return llm

    def _attach(self, frontend: Frontend) -> None:
        self.frontend = frontend
        self._ids = itertools.count()
        # Also runs at interpreter exit, so a program that forgets close() still ends.
        self._finalizer = weakref.finalize(self, close_frontend, frontend)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; blocks until all are finished. The order is that of the prompts.

        Raises:
            InvalidRequestError: one of them can never be served; nothing was run.
            EngineDeadError: the engine is gone.
            PlaitError: a request failed while it ran.
        """
        texts = split_prompts(prompts)
        jobs = [
            (
                prompt if isinstance(prompt, str) else None,
                self.frontend.build_completion(prompt, sampling, param=f"prompts[{idx}]"),
            )
            for idx, (prompt, sampling) in enumerate(
                zip(texts, spread_sampling(sampling_params, len(texts)), strict=True)
            )
        ]
        return self._run(jobs)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer one chat or several; blocks and raises like ``generate``."""
        chats = split_chats(messages)
        read_tools(tools)
        jobs: list[Job] = [
            (
                None,
                self.frontend.build_chat(
                    chat, sampling, add_generation_prompt=add_generation_prompt, tools=tools
                ),
            )
            for chat, sampling in zip(chats, spread_sampling(sampling_params, len(chats)), strict=True)
        ]
        return self._run(jobs)

    def get_tokenizer(self) -> Tokenizer:
        return self.frontend.tokenizer

    def close(self) -> None:
        """Stop the engine; calls that still run end with aborted answers. Idempotent."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, jobs: Sequence[Job]) -> list[RequestOutput]:
        """Submits as much as the engine's queue takes and collects in order."""
        waiting = deque(jobs)
        running: deque[tuple[RequestOutput, SyncGeneration]] = deque()
        finished: list[RequestOutput] = []
        try:
            while waiting or running:
                while waiting and (generation := self._try_submit(waiting[0][1])) is not None:
                    prompt, request = waiting.popleft()
                    running.append((empty_output(str(next(self._ids)), prompt, request), generation))
                if running:
                    finished.append(_collect(*running[0]))
                    running.popleft()
                else:
                    time.sleep(_RETRY_S)  # other threads fill the queue
        finally:
            for _, generation in running:
                generation.abort()
        return finished

    def _try_submit(self, request: GenerateRequest) -> SyncGeneration | None:
        """None: the queue is full, which for a batch is no error but a reason to wait."""
        try:
            return self.frontend.submit_sync([request])
        except ShuttingDownError:
            raise
        except OverloadedError:
            return None


def _collect(output: RequestOutput, generation: SyncGeneration) -> RequestOutput:
    deltas = list(generation)
    for delta in deltas:
        if delta.finish_reason is FinishReason.ERROR:
            raise PlaitError(f"request {output.request_id} failed: {delta.error}")
    return extend(output, deltas)

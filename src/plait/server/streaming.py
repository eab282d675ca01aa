"""Server-sent events of a running generation.

INVARIANT: a stream that began ends with exactly one finish_reason per choice and ``[DONE]``; when something
fails, an error event stands before them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from plait.frontend import Generation, TextDelta
from plait.server.endpoint import Call
from plait.server.errors import GenerationFailedError, to_http_error
from plait.server.replies import (
    ChatChunkChoice,
    ChatDelta,
    CompletionChoice,
    UsageCounter,
    chat_logprobs,
    completion_logprobs,
    encode,
)
from plait.server.timing import RequestTimer
from plait.types import FinishReason

DONE = b"data: [DONE]\n\n"
FAILED = "error"

# Unicode's other line ends, which many clients cut lines at although server-sent events do not end there.
LINE_ENDS = {text.encode(): f"\\u{ord(text):04x}".encode() for text in "\x85\u2028\u2029"}


def _one_line(encoded: bytes) -> bytes:
    for raw, escaped in LINE_ENDS.items():
        if raw in encoded:
            encoded = encoded.replace(raw, escaped)
    return encoded


class EventWriter(ABC):
    """Turns deltas into events. Only ``choices`` differs between chunks, so the rest is encoded once."""

    def __init__(
        self,
        envelope: dict[str, Any],
        num_choices: int,
        usage: UsageCounter,
        *,
        include_usage: bool,
        is_usage_continuous: bool,
    ) -> None:
        """Args: envelope: id, object, created, model."""
        self._head = b"data: " + encode(envelope)[:-1] + b',"choices":['
        self._usage = usage
        self._include_usage = include_usage
        self._is_usage_continuous = is_usage_continuous
        self._plain_tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._open = set(range(num_choices))

    @abstractmethod
    def begin(self) -> bytes:
        """What stands before the first delta."""

    @abstractmethod
    def _choice(self, delta: TextDelta, index: int) -> msgspec.Struct | None:
        """The chunk's choice; None: nothing to say."""

    @abstractmethod
    def _failed_choice(self, index: int) -> msgspec.Struct: ...

    @abstractmethod
    def index_of(self, delta: TextDelta) -> int:
        """The index of the choice in the reply."""

    def write(self, batch: list[TextDelta]) -> bytes:
        events = []
        for delta in batch:
            index = self.index_of(delta)
            self._usage.add(delta)
            choice = self._choice(delta, index)
            if choice is not None:
                events.append(self._chunk(choice))
            if delta.finish_reason is not None:
                self._open.discard(index)
        return b"".join(events)

    def end(self) -> bytes:
        """The usage chunk, if asked for, and the end."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + encode(self._usage.reply()) + b"}\n\n" + DONE

    def fail(self, error: dict[str, Any]) -> bytes:
        """The error, a finish_reason for every choice that has none, and the end."""
        events = [b"data: " + encode(error) + b"\n\n"]
        events += [self._chunk(self._failed_choice(index)) for index in sorted(self._open)]
        self._open.clear()
        return b"".join(events) + DONE

    def _chunk(self, choice: msgspec.Struct) -> bytes:
        content = _one_line(encode(choice))
        if self._is_usage_continuous:
            return self._head + content + b'],"usage":' + encode(self._usage.reply()) + b"}\n\n"
        return self._head + content + self._plain_tail


class ChatEventWriter(EventWriter):
    def begin(self) -> bytes:
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._chunk(ChatChunkChoice(index, role)) for index in sorted(self._open))

    def index_of(self, delta: TextDelta) -> int:
        return delta.index

    def _choice(self, delta: TextDelta, index: int) -> msgspec.Struct | None:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return None
        choice = ChatChunkChoice(
            index,
            ChatDelta(content=delta.text) if delta.text or delta.logprobs else ChatDelta(),
            chat_logprobs(delta.logprobs) if delta.logprobs else None,
            delta.finish_reason,
        )
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        return choice

    def _failed_choice(self, index: int) -> msgspec.Struct:
        return ChatChunkChoice(index, ChatDelta(), finish_reason=FAILED)


class CompletionEventWriter(EventWriter):
    """Also echoes prompts: the text at once, or with the first delta when its logprobs are asked for."""

    def __init__(
        self,
        envelope: dict[str, Any],
        num_choices: int,
        usage: UsageCounter,
        *,
        include_usage: bool,
        is_usage_continuous: bool,
        n: int,
        echoes: list[str] | None,
        num_top_logprobs: int | None,
    ) -> None:
        """Args: echoes: the prompts' texts to echo; num_top_logprobs: None for no logprobs."""
        super().__init__(
            envelope,
            num_choices,
            usage,
            include_usage=include_usage,
            is_usage_continuous=is_usage_continuous,
        )
        self._n = n
        self._echoes = echoes
        self._num_top = num_top_logprobs
        self._waiting: dict[int, list[TextDelta]] = {}
        self._has_prompt: set[int] = set()

    def begin(self) -> bytes:
        if self._echoes is None or self._num_top is not None:
            return b""
        return b"".join(
            self._chunk(CompletionChoice(index, self._echoes[index // self._n]))
            for index in sorted(self._open)
        )

    def index_of(self, delta: TextDelta) -> int:
        return delta.request_idx * self._n + delta.index

    def write(self, batch: list[TextDelta]) -> bytes:
        if self._echoes is None or self._num_top is None:
            return super().write(batch)
        events = []
        for delta in batch:
            # The prompt's logprobs come with choice 0 only: what its siblings have earlier waits for them.
            idx = delta.request_idx
            if delta.prompt_logprobs is not None and idx not in self._has_prompt:
                self._has_prompt.add(idx)
                events.append(self._echo(delta))
                events.append(super().write(self._waiting.pop(idx, [])))
            if idx in self._has_prompt:
                events.append(super().write([delta]))
            else:
                self._waiting.setdefault(idx, []).append(delta)
        return b"".join(events)

    def _echo(self, delta: TextDelta) -> bytes:
        assert self._echoes is not None
        text = self._echoes[delta.request_idx]
        logprobs = completion_logprobs(delta.prompt_logprobs or (), num_top=self._num_top or 0, offset=0)
        first = delta.request_idx * self._n
        return b"".join(
            self._chunk(CompletionChoice(index, text, logprobs)) for index in range(first, first + self._n)
        )

    def _choice(self, delta: TextDelta, index: int) -> msgspec.Struct | None:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return None
        logprobs = None
        if delta.logprobs:
            offset = len(self._echoes[delta.request_idx]) if self._echoes is not None else 0
            logprobs = completion_logprobs(delta.logprobs, num_top=self._num_top or 0, offset=offset)
        return CompletionChoice(index, delta.text, logprobs, delta.finish_reason, delta.stop_reason)

    def _failed_choice(self, index: int) -> msgspec.Struct:
        return CompletionChoice(index, "", finish_reason=FAILED)


async def stream_reply(call: Call, generation: Generation, writer: EventWriter, timer: RequestTimer) -> None:
    """Send a generation as events until it or the client ends."""
    await call.while_connected(_stream(call, generation, writer, timer))


async def _stream(call: Call, generation: Generation, writer: EventWriter, timer: RequestTimer) -> None:
    await call.begin_events()
    try:
        await call.send_events(writer.begin())
        while batch := await generation.next_batch():
            timer.observe(batch)
            check_failure(batch)
            if events := writer.write(batch):
                await call.send_events(events)
        ending = writer.end()
    except Exception as error:
        generation.abort()
        reply = to_http_error(error, retry_after_s=call.state.config.retry_after_s)
        ending = writer.fail(reply.body())
    await call.send_events(ending, is_last=True)


def check_failure(batch: list[TextDelta]) -> None:
    """Raises GenerationFailedError when the engine ended a choice before it was finished."""
    for delta in batch:
        if delta.finish_reason is FinishReason.ABORT:
            raise GenerationFailedError(
                "The request was ended by the server before it was finished.", is_abort=True
            )
        if delta.finish_reason is FinishReason.ERROR:
            raise GenerationFailedError(delta.error or "The engine failed.", is_abort=False)

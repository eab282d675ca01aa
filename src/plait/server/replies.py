"""The reply bodies as structs, in the shapes of OpenAI's endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from plait.frontend import TextDelta, TextLogprob

encode = msgspec.json.Encoder().encode


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class UsageReply(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprobReply(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobReply(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobReply]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprobReply]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None


class ChatDelta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


C = TypeVar("C")


class Reply(msgspec.Struct, Generic[C]):
    """The envelope of both endpoints."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[C]
    usage: UsageReply
    system_fingerprint: str | None = None


class UsageCounter:
    """Adds up the tokens of several prompts with several choices each; a prompt counts once."""

    def __init__(self, num_prompts: Sequence[int]) -> None:
        """Args: num_prompts: the number of prompt tokens of every request."""
        self._num_prompt_tokens = sum(num_prompts)
        self._cached: dict[int, int] = {}
        self._completed: dict[tuple[int, int], int] = {}

    def add(self, delta: TextDelta) -> None:
        self._cached[delta.request_idx] = delta.usage.cached_tokens
        self._completed[delta.request_idx, delta.index] = delta.usage.completion_tokens

    @property
    def num_completion_tokens(self) -> int:
        return sum(self._completed.values())

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens

    def reply(self) -> UsageReply:
        completed = self.num_completion_tokens
        return UsageReply(
            self._num_prompt_tokens,
            completed,
            self._num_prompt_tokens + completed,
            PromptTokensDetails(sum(self._cached.values())),
        )


def chat_logprobs(entries: Iterable[TextLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            TokenLogprobReply(
                entry.token,
                finite(entry.logprob),
                list(entry.raw),
                [TopLogprobReply(top.token, finite(top.logprob), list(top.raw)) for top in entry.top],
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: Iterable[TextLogprob], *, num_top: int, offset: int) -> CompletionLogprobs:
    """``offset`` is what stands before these entries' own text in the choice (an echoed prompt)."""
    reply = CompletionLogprobs([], [], [], [])
    for entry in entries:
        reply.tokens.append(token_name(entry.token, entry.raw))
        reply.token_logprobs.append(None if entry.logprob is None else finite(entry.logprob))
        reply.text_offset.append(offset + entry.text_offset)
        if entry.logprob is None or num_top == 0:
            reply.top_logprobs.append(None)
            continue
        tops = {token_name(top.token, top.raw): finite(top.logprob) for top in entry.top}
        tops.setdefault(token_name(entry.token, entry.raw), finite(entry.logprob))
        reply.top_logprobs.append(tops)
    return reply


def finite(logprob: float | None) -> float:
    """JSON has no infinities; a token that cannot come gets OpenAI's least value."""
    return -9999.0 if logprob is None or not logprob >= -9999.0 else logprob


def token_name(token: str, raw: bytes) -> str:
    """The token's text; parts of a code point as OpenAI writes them, so that different ones stay different."""
    if "\ufffd" in token:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return token

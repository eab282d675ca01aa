"""Frontend: renders, tokenizes, submits; hands out generations of text."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from plait.client import EngineClient
from plait.errors import InvalidRequestError, ShuttingDownError, check_process
from plait.frontend.delta import TextDelta
from plait.frontend.generation import Generation, Mailbox, RunningRequests, SyncGeneration
from plait.tokenizer import ChatTemplate, Tokenizer
from plait.types import EngineInfo, GenerateRequest, SamplingParams
from plait.validation import resolve_max_tokens, validate_request

P = ParamSpec("P")
T = TypeVar("T")

Message = Mapping[str, Any]


class Frontend:
    """Text in, text out. Thread-safe: any thread may call the sync methods, any event loop the async ones."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        num_tokenizer_threads: int = 2,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.template = template
        self._pool = ThreadPoolExecutor(num_tokenizer_threads, thread_name_prefix="plait-tokenize")
        self._pid = os.getpid()
        self._is_closed = False
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    def close(self) -> None:
        """Stop the tokenizer threads; the client belongs to whoever made it."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Building requests. All of these raise InvalidRequestError.

    def build_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> GenerateRequest:
        """Render and tokenize a chat; on the caller's thread."""
        ids = self.encode_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_options=template_options,
        )
        return self.build_request(ids, sampling, param="messages")

    def build_completion(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
    ) -> GenerateRequest:
        """Tokenize a prompt (ids are taken as they are); on the caller's thread. ``param`` names it in errors."""
        if isinstance(prompt, str):
            ids = self.encode_text(prompt, add_special_tokens=add_special_tokens, param=param)
        else:
            ids = list(prompt)
        return self.build_request(ids, sampling, param=param)

    def build_request(self, ids: Sequence[int], sampling: SamplingParams, *, param: str) -> GenerateRequest:
        """Check the request and fill in the default of max_tokens: what is left of the context."""
        request = GenerateRequest(prompt_token_ids=tuple(ids), sampling=sampling)
        try:
            validate_request(request, self.info)
        except InvalidRequestError as error:
            if error.param != "prompt" or param == "prompt":
                raise
            raise InvalidRequestError(_naming(error.message, param), param=param, code=error.code) from None
        if sampling.max_tokens is None:
            sampling = dataclasses.replace(sampling, max_tokens=resolve_max_tokens(request, self.info))
            request = replace(request, sampling=sampling)
        return request

    async def prepare_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> GenerateRequest:
        """build_chat in the tokenizer pool."""
        return await self.call(
            self.build_chat,
            messages,
            sampling,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_options=template_options,
        )

    async def prepare_completion(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
    ) -> GenerateRequest:
        """build_completion in the tokenizer pool."""
        return await self.call(
            self.build_completion, prompt, sampling, add_special_tokens=add_special_tokens, param=param
        )

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a text function in the tokenizer pool; cancelling the wait drops it if it has not begun.

        Raises:
            ShuttingDownError: the frontend is closed.
            EngineDeadError: this is a fork of its process.
        """
        check_process(self._pid)
        try:
            future = self._pool.submit(function, *args, **kwargs)
        except RuntimeError:
            if not self._is_closed:
                raise
            raise ShuttingDownError("the engine is shutting down") from None
        return await asyncio.wrap_future(future)

    # Text and ids.

    def encode_text(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> list[int]:
        """Content text to ids: control tokens in it stay plain text."""
        self._check_size(text, param)
        return self.tokenizer.encode(text, add_special=add_special_tokens, parse_special=False)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """A rendered chat to ids: control tokens count only where the template wrote them."""
        if self.template is None:
            raise InvalidRequestError(
                "This model has no chat template, so it cannot answer chats; use completions.",
                param="messages",
                code="no_chat_template",
            )
        # A template may take a while for each message, and holds up others meanwhile.
        if len(messages) > self.info.max_model_len:
            raise InvalidRequestError(
                f"This model's maximum context length is {self.info.max_model_len} tokens, but the chat has "
                f"{len(messages)} messages.",
                param="messages",
                code="context_length_exceeded",
            )
        spans = self.template.render(
            [dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else [dict(tool) for tool in tools],
            extra=None if template_options is None else dict(template_options),
        )
        self._check_size("".join(span.text for span in spans), "messages")
        return self.tokenizer.encode_spans(spans)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def _check_size(self, text: str, param: str) -> None:
        """Refuse, before any tokenizing, a text that cannot fit however well its tokens compress."""
        limit = self.info.max_model_len
        at_least = self.tokenizer.min_num_tokens(text)
        if at_least > limit:
            message = f"This model's maximum context length is {limit} tokens, but the prompt has at least {at_least}."
            raise InvalidRequestError(
                _naming(message, param),
                param=param,
                code="context_length_exceeded",
            )

    # Running requests.

    def submit(self, requests: Sequence[GenerateRequest], *, discard: bool = False) -> Generation:
        """Start requests for a consumer on the running event loop; all or none.

        Args:
            discard: drop what is generated; the deltas only carry prompt logprobs, usage and the end.

        Raises:
            InvalidRequestError, OverloadedError, EngineDeadError: as EngineClient.submit.
        """
        return Generation(self._running(requests, discard), self._mailbox(), self._pool)

    def submit_sync(self, requests: Sequence[GenerateRequest]) -> SyncGeneration:
        """Start requests for a consumer on this thread; all or none. Raises like submit."""
        return SyncGeneration(self._running(requests, False))

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TextDelta]:
        """Run one request. Leaving the iterator early aborts it."""
        with self.submit([request]) as generation:
            async for delta in generation:
                yield delta

    def generate_sync(self, request: GenerateRequest) -> Iterator[TextDelta]:
        """Run one request on this thread. Leaving the iterator early aborts it."""
        yield from self.submit_sync([request])

    def _running(self, requests: Sequence[GenerateRequest], discard: bool) -> RunningRequests:
        return RunningRequests(self.client, self.tokenizer, requests, discard=discard)

    def _mailbox(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            for closed in [old for old in list(self._mailboxes) if old.is_closed()]:
                self._mailboxes.pop(closed, None)
            mailbox = self._mailboxes[loop] = Mailbox(loop)
        return mailbox


def _naming(message: str, param: str) -> str:
    """A message about a prompt; of several, only the name tells which."""
    return f"{param}: {message}" if param.endswith("]") else message

"""The forms in which prompts, chats and sampling parameters may be given, brought into one.

Everything else is an InvalidRequestError that says what is expected: no other error may come of a wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from plait.errors import InvalidRequestError
from plait.types import SamplingParams
from plait.validation import is_whole

Prompt = str | Mapping[str, Any] | Sequence[int]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""
Messages = Sequence[Mapping[str, Any]]
"""One chat: ``[{"role": "user", "content": "Hello"}]``."""

_PROMPT = 'a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'
_CHAT = 'a list of messages such as {"role": "user", "content": "Hello"}'


def read_prompt(prompt: Prompt, param: str = "prompt") -> str | list[int]:
    """Text or token ids.

    Raises:
        InvalidRequestError: it is neither; ``param`` names it.
    """
    if isinstance(prompt, str):
        return _whole(prompt, param)
    if isinstance(prompt, Mapping):
        ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
        if ids is not None:
            return _read_ids(ids, f"{param}.prompt_token_ids")
        if isinstance(text, str):
            return _whole(text, f"{param}.prompt")
        raise _wrong(f"{param} must be {_PROMPT}; this dict has no text 'prompt'", param)
    if _is_list(prompt):
        return _read_ids(prompt, param)
    raise _wrong(f"{param} must be {_PROMPT}, not {_kind(prompt)}", param)


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt or a list of them as a list; a flat list of integers is one prompt.

    Raises:
        InvalidRequestError: see ``read_prompt``.
    """
    if isinstance(prompts, str | Mapping):
        return [read_prompt(prompts, "prompts")]
    if not _is_list(prompts):
        raise _wrong(f"prompts must be {_PROMPT}, or a list of those, not {_kind(prompts)}", "prompts")
    if len(prompts) and isinstance(prompts[0], int):
        return [read_prompt(prompts, "prompts")]
    return [read_prompt(prompt, f"prompts[{idx}]") for idx, prompt in enumerate(prompts)]


def read_chat(messages: Messages, param: str = "messages") -> Messages:
    """The chat itself, once it is known to be one.

    Raises:
        InvalidRequestError: it is not a list of messages, or one of them has no role or no content.
    """
    if not _is_list(messages):
        raise _wrong(f"{param} must be {_CHAT}, not {_kind(messages)}", param)
    if not len(messages):
        raise _wrong(f"{param} must hold at least one message", param)
    for idx, message in enumerate(messages):
        where = f"{param}[{idx}]"
        if not isinstance(message, Mapping):
            raise _wrong(f"{param} must be {_CHAT}; {where} is {_kind(message)}", where)
        if not isinstance(message.get("role"), str):
            raise _wrong(f"{where} needs a role, a text such as 'user'", f"{where}.role")
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise _wrong(f"{where} needs a content, a text or a list of text parts", f"{where}.content")
        if content is not None and not isinstance(content, str) and not _is_list(content):
            what = f"must be a text or a list of text parts, not {_kind(content)}"
            raise _wrong(f"{where}.content {what}", f"{where}.content")
        for part in [content] if isinstance(content, str) else content or []:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                _whole(text, f"{where}.content")
    return messages


def split_chats(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One chat or a list of them as a list.

    Raises:
        InvalidRequestError: see ``read_chat``.
    """
    if _is_list(messages) and not len(messages):
        return []
    if _is_list(messages) and all(_is_list(chat) for chat in messages):
        return [read_chat(chat, f"messages[{idx}]") for idx, chat in enumerate(messages)]
    return [read_chat(messages)]  # type: ignore[arg-type]


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]] | None:
    """``tools`` itself.

    Raises:
        InvalidRequestError: it is neither None nor a list of dicts.
    """
    if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
        raise _wrong("tools must be a list of dicts, or None", "tools")
    return tools


def read_sampling(sampling: SamplingParams | None, param: str = "sampling_params") -> SamplingParams:
    """The parameters of one request; the defaults for None.

    Raises:
        InvalidRequestError: it is something else.
    """
    if sampling is None:
        return SamplingParams()
    if not isinstance(sampling, SamplingParams):
        raise _wrong(f"{param} must be plait.SamplingParams, not {_kind(sampling)}", param)
    return sampling


def spread_sampling(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One set of sampling parameters per prompt.

    Raises:
        InvalidRequestError: there are several, but not one per prompt; or they are something else.
    """
    if not _is_list(sampling_params):
        return [read_sampling(sampling_params)] * num_prompts  # type: ignore[arg-type]
    if len(sampling_params) != num_prompts:
        raise _wrong(
            f"There are {num_prompts} prompts but {len(sampling_params)} sampling_params.", "sampling_params"
        )
    return [read_sampling(one, f"sampling_params[{idx}]") for idx, one in enumerate(sampling_params)]


def read_request_id(request_id: str | None) -> str | None:
    """The id itself.

    Raises:
        InvalidRequestError: it is neither None nor text.
    """
    if request_id is not None and not isinstance(request_id, str):
        raise _wrong(f"request_id must be a text, not {_kind(request_id)}", "request_id")
    return request_id


def _read_ids(ids: Any, param: str) -> list[int]:
    if not _is_list(ids):
        raise _wrong(f"{param} must be a list of token ids, not {_kind(ids)}", param)
    for idx, token_id in enumerate(ids):
        if type(token_id) is not int:
            raise _wrong(f"{param} holds {_kind(token_id)} at index {idx}; token ids are integers", param)
    return list(ids)


def _whole(text: str, param: str) -> str:
    """``text``, which no model could have been given with half of a surrogate pair in it."""
    if not is_whole(text):
        raise _wrong(f"{param} must be whole characters; it holds half of a surrogate pair", param)
    return text


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True for lists and tuples and what behaves so; text and bytes are no lists of anything here."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _kind(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{type(value).__name__} (decode it to a text first)"
    return "None" if value is None else type(value).__name__


def _wrong(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param, code="invalid_type")

"""The forms in which a prompt may be given, brought into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.errors import InvalidRequestError
from plait.types import SamplingParams

Prompt = str | Mapping[str, Any] | Sequence[int]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""
Messages = Sequence[Mapping[str, Any]]
"""One chat: ``[{"role": "user", "content": "Hello"}]``."""


def read_prompt(prompt: Prompt) -> str | list[int]:
    """Text or token ids.

    Raises:
        InvalidRequestError: it is neither.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        if prompt.get("prompt_token_ids") is not None:
            return list(prompt["prompt_token_ids"])
        if isinstance(prompt.get("prompt"), str):
            return str(prompt["prompt"])
        raise InvalidRequestError(
            "A prompt given as a dict needs 'prompt' or 'prompt_token_ids'.", param="prompts"
        )
    if isinstance(prompt, Sequence):
        ids = [token_id for token_id in prompt if type(token_id) is int]
        if len(ids) == len(prompt):
            return ids
    raise InvalidRequestError("A prompt is a text, a list of token ids or a dict.", param="prompts")


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt or a list of them as a list; a flat list of integers is one prompt."""
    is_single = isinstance(prompts, str | Mapping) or (bool(prompts) and isinstance(prompts[0], int))
    return [read_prompt(prompt) for prompt in ([prompts] if is_single else prompts)]  # type: ignore[arg-type]


def split_chats(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One chat or a list of them as a list."""
    if messages and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def spread_sampling(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One set of sampling parameters per prompt.

    Raises:
        InvalidRequestError: there are several, but not one per prompt.
    """
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if len(sampling_params) != num_prompts:
        raise InvalidRequestError(
            f"There are {num_prompts} prompts but {len(sampling_params)} sampling_params.",
            param="sampling_params",
        )
    return list(sampling_params)

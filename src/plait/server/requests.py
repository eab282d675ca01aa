"""The request bodies as structs, and what they mean as sampling parameters.

Field names are the clients' (OpenAI's, plus vLLM's additions). null means the same as leaving a field out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from plait.errors import InvalidRequestError
from plait.server.body import refuse_unknown
from plait.types import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    GenerateRequest,
    SamplingParams,
)

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's max_tokens of a completion that says nothing; a chat goes on to the end of the context."""

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both generating endpoints take."""

    nested_kinds: ClassVar[dict[str, type[msgspec.Struct]]] = {"stream_options": StreamOptions}

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    # Taken and not used: they are for the one who runs the server, or hints that change no answer here.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    # Taken and not used, as above.
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[Any]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: one of prompt, content and messages."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


REQUEST_KINDS = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


def chat_sampling(request: ChatRequest) -> SamplingParams:
    """Raises InvalidRequestError."""
    _check_abilities(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(f"top_logprobs must be between 0 and {MAX_LOGPROBS}.", param="top_logprobs")
    max_tokens = request.max_tokens
    if request.max_completion_tokens is not None:
        if max_tokens not in (None, request.max_completion_tokens):
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens contradict each other; send one.",
                param="max_completion_tokens",
            )
        max_tokens = request.max_completion_tokens
        _check_positive(max_tokens, "max_completion_tokens")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _sampling(request, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=None)


def _check_abilities(request: ChatRequest) -> None:
    """Refuse what would need more than text in and text out."""
    for tools, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        wanted = getattr(request, choice)
        if getattr(request, tools) or isinstance(wanted, dict) or wanted == "required":
            param = tools if getattr(request, tools) else choice
            raise InvalidRequestError("Tools are not supported.", param=param, code="unsupported")
        if wanted not in (None, "none", "auto"):
            raise InvalidRequestError(f"{choice} must be 'none' or 'auto'.", param=choice)
    if request.response_format is not None and request.response_format.get("type") != "text":
        raise InvalidRequestError(
            "Only the response_format {'type': 'text'} is supported.",
            param="response_format",
            code="unsupported",
        )
    if request.modalities is not None and set(request.modalities) != {"text"}:
        raise InvalidRequestError(
            "Only the modalities ['text'] are supported.", param="modalities", code="unsupported"
        )
    for name in ("audio", "web_search_options"):
        if getattr(request, name) is not None:
            raise InvalidRequestError(f"{name} is not supported.", param=name, code="unsupported")


def completion_sampling(request: CompletionRequest) -> SamplingParams:
    """max_tokens 0 is allowed with echo and comes back as 1; see ``only_echoes``. Raises InvalidRequestError."""
    if request.suffix:
        raise InvalidRequestError("suffix is not supported.", param="suffix", code="unsupported")
    if request.best_of not in (None, request.n or 1):
        raise InvalidRequestError(
            "best_of is not supported: leave it out or make it equal to n.",
            param="best_of",
            code="unsupported",
        )
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}.", param="logprobs")
    return _sampling(
        request,
        max_tokens=1 if only_echoes(request) else request.max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
    )


def only_echoes(request: CompletionRequest) -> bool:
    """The client wants its prompt back (usually with logprobs) and nothing generated."""
    return bool(request.echo) and request.max_tokens == 0


def with_default_length(request: GenerateRequest, body: CompletionRequest) -> GenerateRequest:
    """DEFAULT_COMPLETION_TOKENS, but no fewer than min_tokens and no more than the context holds."""
    left = request.sampling.max_tokens
    if body.max_tokens is not None or left is None:
        return request
    default = max(DEFAULT_COMPLETION_TOKENS, request.sampling.min_tokens)
    return replace(request, sampling=dataclasses.replace(request.sampling, max_tokens=min(left, default)))


def check_streaming(request: SamplingFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options needs stream to be true.", param="stream_options")


def chat_messages(raw: list[dict[str, Any]], *, allow_unknown: bool) -> list[dict[str, Any]]:
    """Messages for the template: content as one string, ``developer`` as ``system``.

    Raises:
        InvalidRequestError: naming the message and the field.
    """
    if not raw:
        raise InvalidRequestError("messages must not be empty.", param="messages")
    return [
        _message(_without_empty(message), f"messages[{idx}]", allow_unknown)
        for idx, message in enumerate(raw)
    ]


def _message(raw: dict[str, Any], path: str, allow_unknown: bool) -> dict[str, Any]:
    if not allow_unknown:
        refuse_unknown(raw, MESSAGE_FIELDS, path)
    role = raw.get("role")
    if role not in ROLES:
        raise InvalidRequestError(f"{path}.role must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    content = raw.get("content")
    if content is None and not (role == "assistant" and raw.get("tool_calls")):
        raise InvalidRequestError(f"{path}.content is missing.", param=f"{path}.content")
    message["content"] = _content(content, f"{path}.content")
    for name in ("name", "tool_call_id"):
        if raw.get(name) is not None:
            if not isinstance(raw[name], str):
                raise InvalidRequestError(f"{path}.{name} must be a string.", param=f"{path}.{name}")
            message[name] = raw[name]
    if raw.get("tool_calls") is not None:
        calls = raw["tool_calls"]
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise InvalidRequestError(
                f"{path}.tool_calls must be a list of objects.", param=f"{path}.tool_calls"
            )
        message["tool_calls"] = calls
    return message


def _without_empty(raw: dict[str, Any]) -> dict[str, Any]:
    """Clients send an earlier reply back as it came, with these of its fields empty."""
    unused = ("annotations", "audio", "function_call", "reasoning_content")
    return {name: value for name, value in raw.items() if value or name not in unused}


def _content(content: Any, path: str) -> str:
    """Text parts are joined without anything between them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{path} must be a string or a list of parts.", param=path)
    texts = []
    for idx, part in enumerate(content):
        part_path = f"{path}[{idx}]"
        if not isinstance(part, dict):
            raise InvalidRequestError(f"{part_path} must be an object.", param=part_path)
        kind = part.get("type")
        if kind != "text":
            named = (
                f"'{kind}'" if isinstance(kind, str) and kind.isidentifier() and len(kind) < 40 else "this"
            )
            raise InvalidRequestError(
                f"{part_path} is of type {named}, but this model takes only text parts.",
                param=f"{part_path}.type",
                code="unsupported_content",
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{part_path}.text must be a string.", param=f"{part_path}.text")
        texts.append(part["text"])
    return "".join(texts)


def completion_prompts(prompt: str | list[Any], *, max_prompts: int) -> list[tuple[str, str | list[int]]]:
    """The (parameter name, prompt) of every prompt: a string, strings, ids, or lists of ids.

    Raises:
        InvalidRequestError
    """
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise InvalidRequestError("prompt must not be empty.", param="prompt")
    if _is_int(prompt[0]):
        return [("prompt", _ids(prompt, "prompt"))]
    if len(prompt) > max_prompts:
        raise InvalidRequestError(
            f"prompt holds {len(prompt)} prompts, but at most {max_prompts} are allowed.", param="prompt"
        )
    prompts: list[tuple[str, str | list[int]]] = []
    kind = type(prompt[0])
    for idx, item in enumerate(prompt):
        path = f"prompt[{idx}]"
        if type(item) is not kind or kind not in (str, list):
            raise InvalidRequestError(
                "prompt must be a string, a list of strings, a list of token ids or a list of such lists.",
                param=path,
                code="invalid_type",
            )
        prompts.append((path, item if isinstance(item, str) else _ids(item, path)))
    return prompts


def _ids(items: list[Any], path: str) -> list[int]:
    for idx, item in enumerate(items):
        if not _is_int(item):
            raise InvalidRequestError(
                f"{path}[{idx}] must be a token id.", param=f"{path}[{idx}]", code="invalid_type"
            )
    return items


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sampling(
    request: SamplingFields, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    default = SamplingParams()
    n = 1 if request.n is None else request.n
    if not 1 <= n <= MAX_N:
        raise InvalidRequestError(f"n must be between 1 and {MAX_N}.", param="n")
    _check_positive(max_tokens, "max_tokens")

    def either(name: str) -> Any:
        value = getattr(request, name)
        return getattr(default, name) if value is None else value

    return SamplingParams(
        n=n,
        temperature=either("temperature"),
        top_p=either("top_p"),
        top_k=either("top_k"),
        min_p=either("min_p"),
        repetition_penalty=either("repetition_penalty"),
        presence_penalty=either("presence_penalty"),
        frequency_penalty=either("frequency_penalty"),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=either("min_tokens"),
        stop=_stop(request.stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=either("ignore_eos"),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(request.logit_bias),
        include_stop_str_in_output=either("include_stop_str_in_output"),
        skip_special_tokens=either("skip_special_tokens"),
    )


def _check_positive(value: int | None, name: str) -> None:
    if value is not None and value < 1:
        raise InvalidRequestError(f"{name} must be at least 1.", param=name)


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"At most {MAX_STOP_STRINGS} stop strings are allowed.", param="stop")
    if "" in strings:
        raise InvalidRequestError("A stop string must not be empty.", param="stop")
    return strings


def _logit_bias(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if bias is None:
        return ()
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(f"At most {MAX_LOGIT_BIAS} biases are allowed.", param="logit_bias")
    pairs = []
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise InvalidRequestError("The keys of logit_bias must be token ids.", param="logit_bias")
        pairs.append((int(key), value))
    return tuple(pairs)

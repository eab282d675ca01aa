"""Checks a GenerateRequest against an engine's limits. Level 0: plain data only.

Run twice: in the front end, where an error becomes a 400, and again at EngineCore admission, so that no odd
request reaches the step loop whoever sent it. A message says what would be right; ``param`` is the name under
which OpenAI's or vLLM's clients know the field.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import InvalidRequestError
from plait.types import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    EngineInfo,
    GenerateRequest,
    SamplingParams,
)

MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_STRING_CHARS = 1024
MAX_TENANT_CHARS = 256
MAX_DEADLINE_S = 7 * 24 * 3600.0
_INT32_MAX = 2**31 - 1


def validate_request(request: GenerateRequest, info: EngineInfo) -> None:
    """Returns when the engine can serve ``request``.

    Raises:
        InvalidRequestError: it cannot; the code is "context_length_exceeded" or "kv_cache_exceeded" for a
            request that is too long, "invalid_value" for everything else.
    """
    if not isinstance(request, GenerateRequest):
        raise _invalid("request", f"must be a GenerateRequest, not {type(request).__name__}")
    sampling = request.sampling
    if not isinstance(sampling, SamplingParams):
        raise _invalid("sampling", f"must be SamplingParams, not {type(sampling).__name__}")
    _check_token_ids("prompt", request.prompt_token_ids, info.vocab_size)
    if not request.prompt_token_ids:
        raise _invalid("prompt", "must have at least one token")
    _check_distribution(sampling)
    _check_lengths(sampling)
    _check_stops(sampling, info.vocab_size)
    _check_logprobs(sampling)
    _check_logit_bias(sampling.logit_bias, info.vocab_size)
    _check_envelope(request)
    _check_produced(request, info.vocab_size)
    _check_room(request, info)


def resolve_max_tokens(request: GenerateRequest, info: EngineInfo) -> int:
    """max_tokens, or what is left of the context (and of the whole KV pool) when it is None."""
    if request.sampling.max_tokens is not None:
        return request.sampling.max_tokens
    return min(info.max_model_len, _pool_len(info)) - len(request.prompt_token_ids)


def is_whole(text: str) -> bool:
    """False when half of a surrogate pair is in it, which no UTF-8 can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pool_len(info: EngineInfo) -> int:
    """The longest sequence that fits the pool alone: its last token is never written to the cache."""
    return info.num_kv_blocks * info.block_tokens + 1


def _invalid(param: str, rule: str, code: str = "invalid_value") -> InvalidRequestError:
    return InvalidRequestError(f"{param} {rule}", param=param, code=code)


def _check_int(param: str, value: object, low: int, high: int) -> None:
    if type(value) is not int:
        raise _invalid(param, f"must be an integer, not {_shown(value)}")
    if not low <= value <= high:
        raise _invalid(param, f"must be between {low} and {high}, got {_shown(value)}")


def _check_float(param: str, value: object, low: float, high: float, *, above_low: bool = False) -> None:
    if type(value) not in (int, float):
        raise _invalid(param, f"must be a number, not {_shown(value)}")
    # NaN fails every comparison and an int may be too large for a float, so the test is stated positively.
    is_within = low < value <= high if above_low else low <= value <= high  # type: ignore[operator]
    if not is_within:
        limits = f"above {low} and at most {high}" if above_low else f"between {low} and {high}"
        raise _invalid(param, f"must be {limits}, got {_shown(value)}")


def _check_bool(param: str, value: object) -> None:
    if type(value) is not bool:
        raise _invalid(param, f"must be true or false, not {_shown(value)}")


def _shown(value: object) -> str:
    """A short repr: a hostile value must not become a huge message (or a slow one: big ints print in n^2)."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _check_token_ids(param: str, ids: object, vocab_size: int) -> None:
    if not isinstance(ids, tuple | list):
        raise _invalid(param, f"must be a list of token ids, not {_shown(ids)}")
    if not ids:
        return
    # Two passes in C: prompts may have hundreds of thousands of tokens.
    if set(map(type, ids)) != {int}:
        i = next(i for i, token_id in enumerate(ids) if type(token_id) is not int)
        raise _invalid(param, f"must hold integers only; at index {i} is {_shown(ids[i])}")
    if min(ids) < 0 or max(ids) >= vocab_size:
        i = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < vocab_size)
        raise _invalid(
            param,
            f"must hold token ids between 0 and {vocab_size - 1}; at index {i} is {_shown(ids[i])}",
        )


def _check_distribution(sampling: SamplingParams) -> None:
    _check_float("temperature", sampling.temperature, 0.0, 100.0)
    _check_float("top_p", sampling.top_p, 0.0, 1.0, above_low=True)
    _check_int("top_k", sampling.top_k, -1, _INT32_MAX)
    _check_float("min_p", sampling.min_p, 0.0, 1.0)
    _check_float("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0, above_low=True)
    _check_float("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_float("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    if sampling.seed is not None:
        _check_int("seed", sampling.seed, -(2**63), 2**64 - 1)


def _check_lengths(sampling: SamplingParams) -> None:
    _check_int("n", sampling.n, 1, MAX_N)
    if sampling.max_tokens is not None:
        _check_int("max_tokens", sampling.max_tokens, 1, _INT32_MAX)
    _check_int("min_tokens", sampling.min_tokens, 0, _INT32_MAX)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise _invalid(
            "min_tokens", f"must be at most max_tokens ({sampling.max_tokens}), got {sampling.min_tokens}"
        )
    _check_bool("ignore_eos", sampling.ignore_eos)
    _check_bool("include_stop_str_in_output", sampling.include_stop_str_in_output)
    _check_bool("skip_special_tokens", sampling.skip_special_tokens)


def _check_stops(sampling: SamplingParams, vocab_size: int) -> None:
    stops = sampling.stop
    if not isinstance(stops, tuple | list):
        raise _invalid("stop", f"must be a list of strings, not {_shown(stops)}")
    if len(stops) > MAX_STOP_STRINGS:
        raise _invalid("stop", f"must have at most {MAX_STOP_STRINGS} strings, got {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_STRING_CHARS:
            raise _invalid(
                "stop", f"must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters, got {_shown(stop)}"
            )
        if not is_whole(stop):
            raise _invalid("stop", "must not hold half of a surrogate pair: no answer can")
    _check_token_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _invalid(
            "stop_token_ids",
            f"must have at most {MAX_STOP_TOKEN_IDS} ids, got {len(sampling.stop_token_ids)}",
        )


def _check_logprobs(sampling: SamplingParams) -> None:
    if sampling.logprobs is not None:
        _check_int("logprobs", sampling.logprobs, 0, MAX_LOGPROBS)
    if sampling.prompt_logprobs is not None:
        _check_int("prompt_logprobs", sampling.prompt_logprobs, 0, MAX_LOGPROBS)


def _check_logit_bias(biases: Sequence[object], vocab_size: int) -> None:
    if not isinstance(biases, tuple | list):
        raise _invalid("logit_bias", f"must be a list of (token id, bias), not {_shown(biases)}")
    if len(biases) > MAX_LOGIT_BIAS:
        raise _invalid("logit_bias", f"must have at most {MAX_LOGIT_BIAS} entries, got {len(biases)}")
    seen: set[int] = set()
    for pair in biases:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _invalid("logit_bias", f"must hold pairs of a token id and a bias, got {_shown(pair)}")
        token_id, bias = pair
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise _invalid(
                "logit_bias", f"must name token ids between 0 and {vocab_size - 1}, got {_shown(token_id)}"
            )
        if token_id in seen:
            raise _invalid("logit_bias", f"must name each token id once; {token_id} is there twice")
        seen.add(token_id)
        _check_float("logit_bias", bias, -100.0, 100.0)


def _check_envelope(request: GenerateRequest) -> None:
    if not isinstance(request.tenant, str) or len(request.tenant) > MAX_TENANT_CHARS:
        raise _invalid("tenant", f"must be a string of at most {MAX_TENANT_CHARS} characters")
    _check_int("priority", request.priority, -_INT32_MAX, _INT32_MAX)
    if request.deadline_s is not None:
        _check_float("deadline_s", request.deadline_s, 0.0, MAX_DEADLINE_S, above_low=True)


def _check_produced(request: GenerateRequest, vocab_size: int) -> None:
    produced = request.produced_token_ids
    _check_token_ids("produced_token_ids", produced, vocab_size)
    if not produced:
        return
    if request.sampling.n != 1:
        raise _invalid("produced_token_ids", f"must be empty when n is not 1 (it is {request.sampling.n})")
    if request.sampling.prompt_logprobs is not None:
        raise _invalid("produced_token_ids", "must be empty when prompt_logprobs is asked for")
    max_tokens = request.sampling.max_tokens
    if max_tokens is not None and len(produced) >= max_tokens:
        raise _invalid(
            "produced_token_ids",
            f"must have fewer tokens than max_tokens ({max_tokens}), got {len(produced)}",
        )


def _check_room(request: GenerateRequest, info: EngineInfo) -> None:
    """The prompt and what is to come must fit the context and, alone, the whole KV pool."""
    num_prompt = len(request.prompt_token_ids)
    max_tokens = request.sampling.max_tokens
    least = max(len(request.produced_token_ids) + 1, request.sampling.min_tokens, 1)
    num_total = num_prompt + (max_tokens if max_tokens is not None else least)
    asked = f"the prompt has {num_prompt} tokens"
    asked += (
        f" and max_tokens is {max_tokens}"
        if max_tokens is not None
        else f", at least {least} more must follow"
    )
    if num_total > info.max_model_len:
        is_prompt_at_fault = num_prompt + least > info.max_model_len
        raise InvalidRequestError(
            f"This model's maximum context length is {info.max_model_len} tokens, but {num_total} are "
            f"needed: {asked}. Shorten the prompt{'' if is_prompt_at_fault else ' or lower max_tokens'}.",
            param="prompt" if is_prompt_at_fault else "max_tokens",
            code="context_length_exceeded",
        )
    if num_total > _pool_len(info):
        num_blocks = -(-(num_total - 1) // info.block_tokens)
        raise InvalidRequestError(
            f"The request can need {num_blocks} KV cache blocks of {info.block_tokens} tokens, but the whole "
            f"pool has {info.num_kv_blocks}: {asked}. Ask for less, or start the engine with a larger "
            "kv_cache_bytes.",
            param="prompt" if num_prompt + least > _pool_len(info) else "max_tokens",
            code="kv_cache_exceeded",
        )

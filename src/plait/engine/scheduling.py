"""From requests and settings to what the native scheduler takes, and from its outputs back to ours."""

from __future__ import annotations

from typing import Any

from plait import _native
from plait.config import EngineConfig
from plait.config.values import parse_weights
from plait.errors import InvalidRequestError
from plait.types import EngineInfo, FinishReason, GenerateRequest, TokenLogprob, TokenOutput

_MASK64 = 2**64 - 1


def scheduler_limits(
    info: EngineInfo, config: EngineConfig, kv_block_bytes: int = 0
) -> _native.SchedulerLimits:
    """``kv_block_bytes``: where displaced KV blocks are saved, else 0."""
    return _native.SchedulerLimits(
        num_blocks=info.num_kv_blocks,
        block_tokens=info.block_tokens,
        max_batch_size=config.max_batch_size,
        max_batch_tokens=config.max_batch_tokens,
        prefill_chunk_tokens=config.prefill_chunk_tokens or config.max_batch_tokens,
        batch_timeout_s=config.batch_timeout_s,
        enable_prefix_cache=config.enable_prefix_cache,
        target_step_s=config.target_step_s or 0.0,
        kv_block_bytes=kv_block_bytes,
        vocab_size=info.vocab_size,
        eos_token_ids=list(info.eos_token_ids),
        tenant_weights=[
            (_tenant_bytes(name), weight) for name, weight in parse_weights(config.tenant_weights or "")
        ],
    )


def new_request(
    request_id: int,
    request: GenerateRequest,
    *,
    max_tokens: int,
    seed: int,
    now_ns: int,
    is_warm_up: bool = False,
) -> _native.Request:
    """The native form of a request that validation has passed; ``max_tokens`` and ``seed`` are resolved.

    Runs in the thread that submits, so that the main thread only moves it. ``now_ns`` is time.monotonic_ns().
    ``is_warm_up``: it waits for no company, and how long it takes counts nowhere.

    Raises:
        InvalidRequestError: a value does not fit the native types.
    """
    sampling = request.sampling
    try:
        native = _native.Request(
            request_id,
            request.prompt_token_ids,
            max_tokens,
            produced_ids=request.produced_token_ids,
            n=sampling.n,
            ignore_eos=sampling.ignore_eos,
            num_prompt_logprobs=-1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs,
            tenant=_tenant_bytes(request.tenant),
            priority=request.priority,
            arrived_ns=now_ns,
            deadline_ns=None if request.deadline_s is None else now_ns + int(request.deadline_s * 1e9),
            may_hold=not is_warm_up,
            is_timed=not is_warm_up,
        )
        native.set_sampling(
            temperature=float(sampling.temperature),
            top_p=float(sampling.top_p),
            top_k=max(sampling.top_k, 0),
            min_p=float(sampling.min_p),
            repetition_penalty=float(sampling.repetition_penalty),
            presence_penalty=float(sampling.presence_penalty),
            frequency_penalty=float(sampling.frequency_penalty),
            seed=seed & _MASK64,
            num_logprobs=-1 if sampling.logprobs is None else sampling.logprobs,
            min_tokens=sampling.min_tokens,
            stop_token_ids=sampling.stop_token_ids,
            logit_bias=[(token_id, float(bias)) for token_id, bias in sampling.logit_bias],
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"a value does not fit the engine: {error}", param="request", code="invalid_value"
        ) from error
    return native


def _tenant_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def token_output(fields: tuple[Any, ...]) -> TokenOutput:
    """One entry of OutputBatch.take()."""
    request_id, index, token_ids, logprobs, reason, stop_token_id, num_cached, scores, error = fields
    return TokenOutput(
        request_id,
        index,
        token_ids,
        tuple(TokenLogprob(*logprob) for logprob in logprobs) if logprobs else (),
        None if reason is None else FinishReason(reason),
        stop_token_id,
        num_cached,
        tuple(None if score is None else TokenLogprob(*score) for score in scores) if scores else (),
        error,
    )

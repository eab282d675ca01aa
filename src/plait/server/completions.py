"""POST /v1/completions"""

from __future__ import annotations

import asyncio
import os
import time

from plait.frontend import TextLogprob
from plait.server.collecting import Collected, collect
from plait.server.endpoint import Call
from plait.server.replies import (
    CompletionChoice,
    CompletionLogprobs,
    Reply,
    UsageCounter,
    completion_logprobs,
)
from plait.server.requests import (
    CompletionRequest,
    check_streaming,
    completion_prompts,
    completion_sampling,
    only_echoes,
    with_default_length,
)
from plait.server.streaming import CompletionEventWriter, stream_reply
from plait.server.timing import RequestTimer
from plait.types import GenerateRequest


async def handle_completions(call: Call) -> None:
    body = await call.read(CompletionRequest)
    call.check_model(body.model)
    check_streaming(body)
    requests, echoes = await call.while_connected(_prepare(call, body))
    n = requests[0].sampling.n
    timer = RequestTimer(call.state.metrics, call.arrived_at)
    generation = call.state.frontend.submit(requests, discard=only_echoes(body))
    with call.state.running(generation):
        lengths = [len(request.prompt_token_ids) for request in requests]
        timer.admitted(sum(lengths))
        usage = UsageCounter(lengths)
        reply_id = f"cmpl-{os.urandom(12).hex()}"
        created = int(time.time())
        model = call.state.model_name
        if body.stream:
            options = body.stream_options
            writer = CompletionEventWriter(
                {"id": reply_id, "object": "text_completion", "created": created, "model": model},
                n * len(requests),
                usage,
                include_usage=bool(options and options.include_usage),
                is_usage_continuous=bool(
                    options and options.include_usage and options.continuous_usage_stats
                ),
                n=n,
                echoes=echoes,
                num_top_logprobs=body.logprobs,
            )
            await stream_reply(call, generation, writer, timer)
        else:
            collected = await call.while_connected(collect(generation, usage, timer))
            choices = _choices(collected, n, echoes, body.logprobs)
            await call.reply_json(Reply(reply_id, "text_completion", created, model, choices, usage.reply()))
    timer.ended()


async def _prepare(call: Call, body: CompletionRequest) -> tuple[list[GenerateRequest], list[str] | None]:
    """The requests of all prompts and, with echo, the prompts' texts."""
    frontend = call.state.frontend
    sampling = completion_sampling(body)
    prompts = completion_prompts(body.prompt, max_prompts=call.state.config.max_prompts)

    call.check_choices(len(prompts), sampling.n)

    def build(param: str, prompt: str | list[int]) -> tuple[GenerateRequest, str]:
        request = frontend.build_completion(
            prompt, sampling, add_special_tokens=body.add_special_tokens is not False, param=param
        )
        request = call.owned(with_default_length(request, body))
        if not body.echo or isinstance(prompt, str):
            return request, prompt if isinstance(prompt, str) else ""
        return request, frontend.decode(prompt, skip_special_tokens=sampling.skip_special_tokens)

    tasks = [asyncio.ensure_future(frontend.call(build, param, prompt)) for param, prompt in prompts]
    try:
        built = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    requests = [request for request, _ in built]
    return requests, [text for _, text in built] if body.echo else None


def _choices(
    collected: Collected, n: int, echoes: list[str] | None, num_top: int | None
) -> list[CompletionChoice]:
    choices = []
    for (request_idx, index), choice in sorted(collected.choices.items()):
        echo = "" if echoes is None else echoes[request_idx]
        logprobs = None
        if num_top is not None:
            prompt = collected.prompt_logprobs.get(request_idx, ())
            logprobs = _logprobs(prompt, choice.logprobs, num_top, len(echo))
        choices.append(
            CompletionChoice(
                request_idx * n + index,
                echo + choice.text,
                logprobs,
                choice.finish_reason,
                choice.stop_reason,
            )
        )
    return choices


def _logprobs(
    prompt: tuple[TextLogprob, ...], generated: list[TextLogprob], num_top: int, offset: int
) -> CompletionLogprobs:
    first = completion_logprobs(prompt, num_top=num_top, offset=0)
    second = completion_logprobs(generated, num_top=num_top, offset=offset)
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )

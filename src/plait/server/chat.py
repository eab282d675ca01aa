"""POST /v1/chat/completions"""

from __future__ import annotations

import os
import time

from plait.server.collecting import collect
from plait.server.endpoint import Call
from plait.server.replies import (
    ChatChoice,
    ChatMessage,
    Reply,
    UsageCounter,
    chat_logprobs,
)
from plait.server.requests import ChatRequest, chat_messages, chat_sampling, check_streaming
from plait.server.streaming import ChatEventWriter, stream_reply
from plait.server.timing import RequestTimer
from plait.types import GenerateRequest


async def handle_chat(call: Call) -> None:
    body = await call.read(ChatRequest)
    call.check_model(body.model)
    check_streaming(body)
    sampling = chat_sampling(body)
    call.check_choices(1, sampling.n)
    messages = chat_messages(body.messages, allow_unknown=call.state.config.allow_unknown_fields)
    request = await call.while_connected(
        call.state.frontend.prepare_chat(
            messages,
            sampling,
            add_generation_prompt=body.add_generation_prompt is not False,
            template_options=body.chat_template_kwargs,
        )
    )
    timer = RequestTimer(call.state.metrics, call.arrived_at)
    with call.state.running(call.state.frontend.submit([call.owned(request)])) as generation:
        timer.admitted(len(request.prompt_token_ids))
        usage = UsageCounter([len(request.prompt_token_ids)])
        reply_id = f"chatcmpl-{os.urandom(12).hex()}"
        created = int(time.time())
        if body.stream:
            options = body.stream_options
            envelope = {
                "id": reply_id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": call.state.model_name,
            }
            writer = ChatEventWriter(
                envelope,
                request.sampling.n,
                usage,
                include_usage=bool(options and options.include_usage),
                is_usage_continuous=bool(
                    options and options.include_usage and options.continuous_usage_stats
                ),
            )
            await stream_reply(call, generation, writer, timer)
        else:
            collected = await call.while_connected(collect(generation, usage, timer))
            choices = [
                ChatChoice(
                    index,
                    ChatMessage(choice.text),
                    None if not _wants_logprobs(request) else chat_logprobs(choice.logprobs),
                    choice.finish_reason,
                    choice.stop_reason,
                )
                for (_, index), choice in sorted(collected.choices.items())
            ]
            model = call.state.model_name
            await call.reply_json(Reply(reply_id, "chat.completion", created, model, choices, usage.reply()))
    timer.ended()


def _wants_logprobs(request: GenerateRequest) -> bool:
    return request.sampling.logprobs is not None

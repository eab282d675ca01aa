"""POST /tokenize and /detokenize: the exact ids that a request would run with."""

from __future__ import annotations

from typing import Any

from plait.errors import InvalidRequestError
from plait.server.endpoint import Call
from plait.server.requests import DetokenizeRequest, TokenizeRequest, chat_messages


async def handle_tokenize(call: Call) -> None:
    body = await call.read(TokenizeRequest)
    call.check_model(body.model)
    frontend = call.state.frontend
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            "Send exactly one of prompt, content and messages.", param=given[1] if given else "prompt"
        )
    if body.messages is not None:
        messages = chat_messages(body.messages, allow_unknown=call.state.config.allow_unknown_fields)
        ids = await call.while_connected(
            frontend.call(
                frontend.encode_chat, messages, add_generation_prompt=body.add_generation_prompt is not False
            )
        )
    else:
        text = body.prompt if body.prompt is not None else body.content
        assert text is not None
        ids = await call.while_connected(
            frontend.call(frontend.encode_text, text, add_special_tokens=_adds_special(body), param=given[0])
        )
    reply: dict[str, Any] = {"count": len(ids), "max_model_len": frontend.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        reply["token_strs"] = [frontend.tokenizer.token_text(token_id) for token_id in ids]
    if body.with_pieces:
        reply["tokens"] = [
            {"id": token_id, "piece": _piece(frontend.tokenizer.token_bytes(token_id))} for token_id in ids
        ]
    await call.reply_json(reply)


def _adds_special(body: TokenizeRequest) -> bool:
    """Each client's own default: ``prompt`` is vLLM's field (adds), ``content`` llama.cpp's (does not)."""
    if body.add_special_tokens is not None:
        return body.add_special_tokens
    if body.add_special is not None:
        return body.add_special
    return body.prompt is not None


def _piece(raw: bytes) -> str | list[int]:
    """Text, or the bytes of a part of a code point."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def handle_detokenize(call: Call) -> None:
    body = await call.read(DetokenizeRequest)
    call.check_model(body.model)
    frontend = call.state.frontend
    vocab_size = frontend.info.vocab_size
    for idx, token_id in enumerate(body.tokens):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"tokens[{idx}] must be between 0 and {vocab_size - 1}.", param=f"tokens[{idx}]"
            )
    text = await call.while_connected(
        frontend.call(frontend.decode, body.tokens, skip_special_tokens=body.skip_special_tokens is True)
    )
    await call.reply_json({"prompt": text, "content": text})

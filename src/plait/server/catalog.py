"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

from typing import Any

from plait.server.endpoint import Call


def _model(call: Call) -> dict[str, Any]:
    return {
        "id": call.state.model_name,
        "object": "model",
        "created": call.state.started_at,
        "owned_by": "plait",
        "max_model_len": call.state.frontend.info.max_model_len,
    }


async def handle_models(call: Call) -> None:
    await call.reply_json({"object": "list", "data": [_model(call)]})


async def handle_model(call: Call) -> None:
    call.check_model(call.scope["path_params"]["model_id"])
    await call.reply_json(_model(call))

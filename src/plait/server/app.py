"""The ASGI application: which path is served by which handler."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from plait.config.server import ServerConfig
from plait.frontend import Frontend
from plait.server.catalog import handle_model, handle_models
from plait.server.chat import handle_chat
from plait.server.completions import handle_completions
from plait.server.endpoint import Endpoint, Handler
from plait.server.errors import HttpError
from plait.server.health import HEALTH_PATHS, handle_health, handle_metrics
from plait.server.openapi import handle_docs, handle_openapi
from plait.server.replies import encode
from plait.server.state import ServerState
from plait.server.tokenization import handle_detokenize, handle_tokenize


def create_app(frontend: Frontend, config: ServerConfig) -> Starlette:
    """The application; ``app.state.server`` is its ServerState."""
    state = ServerState(frontend, config)

    def get(path: str, handler: Handler, *, needs_key: bool = False) -> BaseRoute:
        return Route(path, Endpoint(state, path, handler, needs_key=needs_key), methods=["GET"])

    def post(path: str, handler: Handler) -> BaseRoute:
        return Route(path, Endpoint(state, path, handler, is_work=True, needs_key=True), methods=["POST"])

    routes = [
        post("/v1/chat/completions", handle_chat),
        post("/v1/completions", handle_completions),
        post("/tokenize", handle_tokenize),
        post("/detokenize", handle_detokenize),
        get("/v1/models", handle_models, needs_key=True),
        get("/v1/models/{model_id:path}", handle_model, needs_key=True),
        *(get(path, handle_health) for path in HEALTH_PATHS),
        get("/metrics", handle_metrics),
        get("/openapi.json", handle_openapi),
        get("/docs", handle_docs),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error})
    app.router.redirect_slashes = False
    app.state.server = state
    return app


async def _routing_error(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    allow = (error.headers or {}).get("Allow")
    message = "There is nothing at this path." if error.status_code == 404 else str(error.detail)
    if error.status_code == 405:
        message = f"This method is not allowed here; allowed: {allow}."
    reply = HttpError(error.status_code, message, allow=allow, code=f"http_{error.status_code}")
    headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers()}
    return Response(encode(reply.body()), reply.status, headers, media_type="application/json")

"""GET /health, /health/live, /health/ready, /health/progress and /metrics. Never asks the engine for a step."""

from __future__ import annotations

from http import HTTPStatus

from plait.metrics.page import CONTENT_TYPE
from plait.server.endpoint import Call
from plait.types import Health

HEALTH_PATHS = ("/health", "/health/live", "/health/ready", "/health/progress")


def health_reply(health: Health, path: str) -> tuple[int, dict[str, object]]:
    """The status and body for one of HEALTH_PATHS."""
    claims = {"live": health.is_alive, "ready": health.is_ready, "progress": health.is_progressing}
    what = path.rpartition("/")[2]
    is_good = claims[what] if what in claims else all(claims.values())
    status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, {"status": "ok" if is_good else "unavailable", **claims, "detail": health.detail}


async def handle_health(call: Call) -> None:
    status, body = health_reply(call.state.health(), call.scope["path"])
    await call.reply_json(body, status)


async def handle_metrics(call: Call) -> None:
    page = call.state.metrics.page.render()
    await call.reply(200, page, [(b"content-type", CONTENT_TYPE.encode())])

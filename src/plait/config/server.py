"""Settings of the HTTP server."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ServerConfig(BaseModel):
    """How the server listens, what it accepts and how it stops."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a second listener with an own thread that serves only /health, /health/live, "
        "/health/ready and /health/progress, so that probes are answered however busy the server is, "
        "and while the model is loaded.",
    )
    served_model_name: str | None = Field(
        None,
        min_length=1,
        description="Name of the model for clients; by default the name of the loaded model.",
    )
    max_body_bytes: int = Field(8 << 20, ge=1024, description="Larger request bodies are refused with 413.")
    max_prompts: int = Field(128, ge=1, description="Most prompts in one completions request.")
    max_choices_per_request: int = Field(
        128,
        ge=1,
        description="Most choices that one request may ask for: its prompts times n; more are refused with 400.",
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="A request body that takes longer is refused with 408."
    )
    send_timeout_s: float = Field(
        60.0, gt=0, description="A client that reads nothing of its reply for this long is given up."
    )
    keep_alive_s: int = Field(65, ge=1, description="Seconds that an idle connection is kept open.")
    grace_s: float = Field(
        30.0, ge=0, description="After SIGTERM running requests may take this long; what is left is ended."
    )
    drain_notice_s: float = Field(
        0.0,
        ge=0,
        description="After SIGTERM the server is not ready at once but takes new requests for this long, "
        "until load balancers have noticed.",
    )
    retry_after_s: float = Field(5.0, ge=0, description="Retry-After of replies that refuse work with 503.")
    allow_unknown_fields: bool = Field(
        False, description="Ignore request fields that plait does not know instead of refusing them with 400."
    )
    api_key: str | None = Field(
        None, min_length=1, repr=False, description="Clients must send it as a bearer token; none by default."
    )

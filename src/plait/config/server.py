"""Settings of the HTTP server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from plait.config.values import MAX_SECONDS, Bytes, Secret, Section, Text


class ServerConfig(Section):
    """How the server listens, what it accepts and how it stops."""

    host: Text = Field("127.0.0.1", min_length=1, max_length=253, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a second listener with an own thread that serves only /health, /health/live, "
        "/health/ready and /health/progress, so that probes are answered however busy the server is, "
        "and while the model is loaded.",
    )
    served_model_name: Text | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model for clients; by default the name of the loaded model.",
    )
    max_body_bytes: Bytes = Field(
        8 << 20, ge=1024, le=1 << 30, description="Larger request bodies are refused with 413."
    )
    max_prompts: int = Field(128, ge=1, le=65536, description="Most prompts in one completions request.")
    max_choices_per_request: int = Field(
        128,
        ge=1,
        le=65536,
        description="Most choices that one request may ask for: its prompts times n; more are refused with 400.",
    )
    body_timeout_s: float = Field(
        30.0, gt=0, le=MAX_SECONDS, description="A request body that takes longer is refused with 408."
    )
    send_timeout_s: float = Field(
        60.0,
        gt=0,
        le=MAX_SECONDS,
        description="A client that reads nothing of its reply for this long is given up.",
    )
    keep_alive_s: int = Field(
        65,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds that an idle connection is kept open; a request line and headers that take longer end it.",
    )
    grace_s: float = Field(
        30.0,
        ge=0,
        le=MAX_SECONDS,
        description="After SIGTERM running requests may take this long; what is left is ended.",
    )
    drain_notice_s: float = Field(
        0.0,
        ge=0,
        le=MAX_SECONDS,
        description="After SIGTERM the server is not ready at once but takes new requests for this long, "
        "until load balancers have noticed.",
    )
    retry_after_s: float = Field(
        5.0, ge=0, le=MAX_SECONDS, description="Retry-After of replies that refuse work with 503."
    )
    allow_unknown_fields: bool = Field(
        False, description="Ignore request fields that plait does not know instead of refusing them with 400."
    )
    api_key: Annotated[Text | None, Secret()] = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Clients must send it as a bearer token; none by default. Other users of the machine can see "
        "flags: the variable or the file keeps it from them.",
    )

    @model_validator(mode="after")
    def _check_ports(self) -> ServerConfig:
        if self.health_port is not None and self.health_port == self.port != 0:
            raise ValueError(
                f"port and health_port are both {self.port}; give health_port another number, or 0 for a free port"
            )
        return self

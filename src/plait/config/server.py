"""Settings of the HTTP server."""

from __future__ import annotations

from pydantic import Field

from plait.config.values import Bytes, Section


class ServerConfig(Section):
    """Where the server listens and what it accepts."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    served_model_name: str | None = Field(
        default=None, min_length=1, description="Model name that clients use. Default: the name of the model."
    )
    max_body_bytes: Bytes = Field(
        default=16 << 20, ge=1024, description="Largest request body that is accepted, for example 16MiB."
    )
    grace_s: float = Field(
        default=30.0,
        ge=0.0,
        le=3600.0,
        allow_inf_nan=False,
        description="Seconds that running requests may still take after SIGTERM.",
    )

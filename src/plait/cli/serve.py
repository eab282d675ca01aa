"""plait serve"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plait.config import ResolvedConfig
    from plait.frontend import Frontend
    from plait.server import Ports


def serve(
    model: Annotated[
        str | None, typer.Argument(help="GGUF file or catalogue name. Default: the small default model.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file with settings.")] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Serve a model over HTTP, with OpenAI's interface."""
    from plait.cli.session import model_name, public_name, resolve_settings

    # What a start makes, stays: collections that walk it would take a tenth of the time to ready.
    gc.disable()
    # A wrong setting is told before the server's modules are loaded.
    resolved = resolve_settings(config, settings, model)
    from plait.engine import favour_this_thread
    from plait.server import Ports, run_server

    resolved = _with_tenants(resolved)
    server = resolved.config.server
    # So is a taken port, before the model is.
    with Ports(server) as ports, _loaded(resolved, ports) as frontend:
        if server.served_model_name is None:
            server = server.model_copy(update={"served_model_name": public_name(model_name(resolved))})
        favour_this_thread()  # it is the event loop from here on
        run_server(frontend, server, ports=ports, on_ready=lambda url: _say(f"plait: ready on {url}"))


def _with_tenants(resolved: ResolvedConfig) -> ResolvedConfig:
    """With tenant_weights that name clients as the server does; says which names no client can have."""
    from msgspec.structs import replace

    from plait.server import read_tenant_weights

    engine = resolved.config.engine
    if engine.tenant_weights is None:
        return resolved
    weights, unknown = read_tenant_weights(engine.tenant_weights)
    for name in unknown:
        _say(
            f"plait: warning: --tenant-weights: no client is called {name}; a tenant is an address, such as "
            "192.0.2.7, or an IPv6 network of 64 bits, such as 2001:db8:0:1::/64"
        )
    engine = engine.model_copy(update={"tenant_weights": weights or None})
    return replace(resolved, config=resolved.config.model_copy(update={"engine": engine}))


@contextmanager
def _loaded(resolved: ResolvedConfig, ports: Ports) -> Iterator[Frontend]:
    """A frontend over the loaded model; says what is decided and done."""
    from plait.cli.session import model_name, open_session

    if ports.health_url is not None:
        _say(f"plait: health on {ports.health_url}")
    _say(f"plait: loading {model_name(resolved)}")
    for choice in resolved.choices:
        _say(f"  {choice.name}: {choice.value} ({choice.reason})")
    begin = time.monotonic()
    with open_session(resolved) as frontend:
        print_plan(resolved, frontend, time.monotonic() - begin)
        gc.freeze()  # later collections need not walk what is loaded
        gc.enable()
        try:
            yield frontend
        finally:
            gc.unfreeze()  # or the interpreter could not free what it finds in cycles when it ends


def print_plan(resolved: ResolvedConfig, frontend: Frontend, load_s: float) -> None:
    """What was decided, before the first request comes."""
    from plait.config import format_bytes
    from plait.engine.isa import choose_isa

    info = frontend.info
    isa, isa_reason = choose_isa()
    cores = ",".join(str(cpu) for cpu in resolved.cpus)
    _say(f"  model: {info.model_name} ({info.architecture}), ready after {load_s:.1f} s")
    parallelism = resolved.config.engine.compute_parallelism
    _say(
        f"  compute: {info.num_compute_threads} threads on cores {cores}, {parallelism} parallelism, "
        f"kernels {isa} ({isa_reason})"
    )
    _say(f"  context: max_model_len {info.max_model_len} tokens for each request")
    blocks = f"{info.num_kv_blocks} blocks of {info.block_tokens}"
    _say(f"  KV pool: {info.num_kv_blocks * info.block_tokens} tokens for all requests together ({blocks})")
    memory = {
        name.removeprefix("memory_").removesuffix("_bytes"): value
        for name, value in frontend.client.metrics().items()
        if name.startswith("memory_") and name.endswith("_bytes")
    }
    if memory:
        parts = " + ".join(f"{name} {format_bytes(value)}" for name, value in memory.items())
        total = format_bytes(sum(memory.values()))
        _say(f"  memory: {parts} = {total} of {format_bytes(resolved.memory_bytes)}")
    server = resolved.config.server
    stop_s = server.drain_notice_s + server.grace_s
    # Ended requests get some seconds to be told, and the engine to finish its step.
    least = f"at least {stop_s + 10:g} s for TimeoutStopSec or terminationGracePeriodSeconds"
    _say(f"  stop: SIGTERM lets requests end for up to {stop_s:g} s ({least}); a second signal stops now")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""One process of the benchmark: starts one engine, gives it one load or probe, reports.

Knows: how a candidate becomes an EngineConfig. Must not know: other candidates. ``run_job`` is what
``python -m plait.bench.concurrency`` runs.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from plait.bench.concurrency.accept import AcceptFigures, measure_accept
from plait.bench.concurrency.closed_loop import run_closed_loop
from plait.bench.concurrency.disturbance import DisturbanceFigures, measure_disturbance
from plait.bench.concurrency.figures import Figures, Moment, figures_of, read_pss_bytes
from plait.bench.concurrency.scenario import KvPool, Scenario
from plait.bench.concurrency.work import draw_work, num_blocks_of_work
from plait.bench.other_work import OtherWork
from plait.client import EngineClient
from plait.config import EngineConfig, read_machine
from plait.engine import favour_this_thread, start_engine
from plait.errors import ConfigError
from plait.models import build_graph
from plait.weights.hyperparameters import open_model
from plait.weights.loader import load_vectors

ENDLESS_STEP_S = 60.0
"""The target of a step that never cuts a prompt short."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run an engine."""

    mode: str
    parallelism: str
    threads: int

    @property
    def label(self) -> str:
        return f"{self.mode}, {self.parallelism}, {self.threads} thread{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True)
class ProbeSizes:
    streams: int = 8
    context_tokens: int = 128
    probes: int = 200
    long_prompt_tokens: int = 6000
    quiet_tokens: int = 96


@dataclass(frozen=True, slots=True)
class Job:
    """Exactly one of ``scenario``, ``accept`` and ``disturbance``."""

    model: str
    candidate: Candidate
    clients: int = 1
    scenario: Scenario | None = None
    accept: ProbeSizes | None = None
    disturbance: ProbeSizes | None = None
    is_unpaced: bool = False
    """Steps may take as long as they like (target_step_s)."""


@dataclass(frozen=True, slots=True)
class JobResult:
    isa: str = ""
    model_name: str = ""
    figures: Figures | None = None
    accept: AcceptFigures | None = None
    disturbance: DisturbanceFigures | None = None
    not_offered: str | None = None
    """Why the engine refuses to run this way; there is nothing else then."""


def offered(field: str, default: str) -> tuple[str, ...]:
    """The words that a setting of the engine may have in this build; only ``default`` when there is no choice."""
    info = EngineConfig.model_fields.get(field)
    return (default,) if info is None else tuple(get_args(info.annotation))


def has_setting(field: str) -> bool:
    return field in EngineConfig.model_fields


def engine_config(job: Job, kv_block_bytes: int) -> EngineConfig:
    """Settings of a candidate. Raises ValueError (pydantic's) when they contradict each other."""
    candidate = job.candidate
    values: dict[str, Any] = {
        "engine_mode": candidate.mode,
        "compute_parallelism": candidate.parallelism,
    }
    # What this build has no choice in needs no setting.
    values = {name: value for name, value in values.items() if has_setting(name)}
    values["num_compute_threads"] = candidate.threads
    # A server that has run for a while has its memory; here it would come during what is timed.
    if has_setting("kv_prefault_bytes"):
        num_blocks = blocks_touched(job, EngineConfig().block_tokens)
        values["kv_prefault_bytes"] = int(_most_allowed("kv_prefault_bytes", num_blocks * kv_block_bytes))
    if job.is_unpaced and has_setting("target_step_s"):
        values["target_step_s"] = _most_allowed("target_step_s", ENDLESS_STEP_S)
    scenario = job.scenario
    if scenario is not None and scenario.kv_pool is not None:
        block_tokens = EngineConfig().block_tokens
        num_blocks = pool_blocks(scenario, scenario.kv_pool, job.clients, block_tokens)
        values["kv_cache_bytes"] = num_blocks * kv_block_bytes
        if has_setting("kv_swap_bytes"):
            values["kv_swap_bytes"] = scenario.kv_pool.swap_bytes
    return EngineConfig.model_validate(values)


def _most_allowed(field: str, wanted: float) -> float:
    bounds = [bound.le for bound in EngineConfig.model_fields[field].metadata if hasattr(bound, "le")]
    return float(min([wanted, *bounds]))


def blocks_touched(job: Job, block_tokens: int) -> int:
    """About as many as the job writes to."""
    if job.scenario is not None:
        return num_blocks_of_work(job.scenario, job.clients, block_tokens)
    if job.accept is not None:
        return job.accept.probes + _stream_blocks(job.accept, job.accept.probes, block_tokens)
    if job.disturbance is None:
        return 0
    prompt = job.disturbance.long_prompt_tokens
    # Twice the prompt; a stream gets a token for each slice of a few.
    streams = _stream_blocks(job.disturbance, job.disturbance.quiet_tokens + prompt // 4, block_tokens)
    return 2 * prompt // block_tokens + streams


def _stream_blocks(sizes: ProbeSizes, num_tokens: int, block_tokens: int) -> int:
    return sizes.streams * (-(-(sizes.context_tokens + num_tokens) // block_tokens))


def pool_blocks(scenario: Scenario, pool: KvPool, num_clients: int, block_tokens: int) -> int:
    # One more than the tokens take: a sequence may hold a partial block and the copy of it.
    longest = -(-scenario.longest_tokens // block_tokens) + 1
    return max(longest, math.ceil(pool.share * num_clients * longest))


def read_kv_block_bytes(model: Path) -> int:
    """Bytes of one block of the KV cache as float16."""
    file = open_model(model)
    _, hp = build_graph(file, load_vectors(file, ("rope_freqs.weight",)))
    shape = hp.shape
    per_token = 2 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return per_token * EngineConfig().block_tokens


def run_job(job: Job) -> JobResult:
    """Blocks until the load is through and the engine is closed.

    Raises:
        ConfigError: the load does not fit the model.
        PlaitError: a request failed, or the engine died.
    """
    path = Path(job.model)
    try:
        config = engine_config(job, read_kv_block_bytes(path))
        client = start_engine(path, config)
    except (ConfigError, ValueError) as error:
        return JobResult(not_offered=str(error))
    with _closing(client), _loaded_objects_frozen():
        result = JobResult(client.info.isa, client.info.model_name)
        sizes = job.accept or job.disturbance
        if job.accept is not None:
            return replace(result, accept=_measure_accept(client, job.accept))
        if sizes is not None:
            return replace(result, disturbance=_measure_disturbance(client, sizes))
        assert job.scenario is not None
        return replace(result, figures=_run_load(client, job.scenario, job.clients))


@contextmanager
def _loaded_objects_frozen() -> Iterator[None]:
    """As a server does: a collection that walks what is loaded takes milliseconds of somebody's step."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run_load(client: EngineClient, scenario: Scenario, num_clients: int) -> Figures:
    work = draw_work(scenario, num_clients, client.info)
    others = OtherWork()
    before = Moment.now(client)
    result = run_closed_loop(client, work, num_clients, scenario.slow)
    after = Moment.now(client)
    return figures_of(
        result,
        before,
        after,
        num_cores=read_machine().num_usable_cores,
        pss_bytes=read_pss_bytes(),
        other_cpus=others.num_cpus(),
    )


def _measure_accept(client: EngineClient, sizes: ProbeSizes) -> AcceptFigures:
    favour_this_thread()  # as a server's event loop is
    return measure_accept(
        client,
        num_streams=sizes.streams,
        context_tokens=sizes.context_tokens,
        num_probes=sizes.probes,
    )


def _measure_disturbance(client: EngineClient, sizes: ProbeSizes) -> DisturbanceFigures:
    return measure_disturbance(
        client,
        num_streams=sizes.streams,
        # A model with a short context gets as long a prompt as it can take.
        prompt_tokens=min(sizes.long_prompt_tokens, client.info.max_model_len - 1),
        quiet_tokens=sizes.quiet_tokens,
    )


@contextmanager
def _closing(client: EngineClient) -> Iterator[None]:
    try:
        yield
    finally:
        client.close()

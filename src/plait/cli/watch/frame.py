"""The numbers of one frame, from two looks at a server: rates and latencies of the time between them.

Pure. A number that the server does not give is None, here and in what ``plait top --json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.cli.watch.source import Look
from plait.metrics.reading import Buckets

_QUEUE = "queue_depth_"
# Shown by name elsewhere in a frame.
_KV_KNOWN = ("kv_blocks", "kv_blocks_free", "kv_blocks_cached")


@dataclass(frozen=True, slots=True)
class Latency:
    """In seconds; of the time between the two looks, or of all time when nothing was observed between them."""

    mean_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    is_recent: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    status: str
    """"ok" or "unavailable", as /health says."""
    detail: str
    interval_s: float
    uptime_s: float | None
    requests_running: float | None
    requests_waiting: float | None
    requests_live: float | None
    requests_finished_per_s: float | None
    requests_refused: float | None
    """As overload, since the start."""
    generated_per_s: float | None
    """Tokens."""
    prefill_per_s: float | None
    steps_per_s: float | None
    step_mean_s: float | None
    tokens_per_step: float | None
    busy_share: float | None
    """Of the interval, the compute thread was in a step."""
    gap_mean_s: float | None
    """Between two steps while work waits."""
    first_token: Latency
    inter_token: Latency
    accept: Latency
    """From submission until the engine's main loop has taken a request in; since the start."""
    queue_depths: Mapping[str, float]
    kv_blocks: float | None
    kv_blocks_used: float | None
    """By running sequences."""
    kv_blocks_cached: float | None
    """Kept for later prompts; they come free when they are needed."""
    kv_others: Mapping[str, float]
    """Versions, copies, swapped blocks: what else the engine counts about its KV cache."""
    cache_hit_share: float | None
    """Prompt tokens that came from the prefix cache, of all since the start."""
    preemptions: float | None
    """Since the start."""
    threads: Mapping[str, float] = field(default_factory=dict)
    """Share of one core that each thread used."""


def make_frame(before: Look | None, now: Look) -> Frame:
    """``before``: the last look; None or from before a restart: rates are those since the server's start."""
    values = now.readings.values
    if before is not None and before.readings.values.get("uptime_seconds", 0.0) > values.get(
        "uptime_seconds", 0.0
    ):
        before = None
    old = before.readings.values if before is not None else {}
    uptime = values.get("uptime_seconds")
    interval = now.at_s - before.at_s if before is not None else (uptime or 0.0)

    def grown(name: str) -> float | None:
        value = values.get(name)
        return None if value is None else max(value - old.get(name, 0.0), 0.0)

    def rate(name: str) -> float | None:
        return _ratio(grown(name), interval)

    steps, skipped = grown("steps_total"), grown("skipped_steps_total")
    if steps is not None:  # those that were not computed to the end say nothing about how long one takes
        steps = max(steps - (skipped or 0.0), 0.0)
    step_s = grown("step_seconds_total")
    generated, prefilled = grown("generated_tokens_total"), grown("prefill_tokens_total")
    blocks = values.get("kv_blocks")
    free = values.get("kv_blocks_free")
    busy = _ratio(step_s, interval)
    tokens = None if generated is None or prefilled is None else generated + prefilled
    return Frame(
        status=str(now.health.get("status", "unknown")),
        detail=str(now.health.get("detail", "")),
        interval_s=interval,
        uptime_s=uptime,
        requests_running=values.get("requests_running"),
        requests_waiting=values.get("requests_waiting"),
        requests_live=values.get("requests_live"),
        requests_finished_per_s=rate("requests_finished_total"),
        requests_refused=values.get("requests_overloaded_total"),
        generated_per_s=rate("generated_tokens_total"),
        prefill_per_s=rate("prefill_tokens_total"),
        steps_per_s=_ratio(steps, interval),
        step_mean_s=_ratio(step_s, steps),
        tokens_per_step=_ratio(tokens, steps),
        busy_share=None if busy is None else min(busy, 1.0),
        gap_mean_s=_ratio(grown("step_gap_seconds_total"), steps),
        first_token=_latency("time_to_first_token_seconds", before, now),
        inter_token=_latency("inter_token_latency_seconds", before, now),
        accept=Latency(
            _ratio(values.get("accept_seconds_total"), values.get("requests_accepted_total")),
            values.get("accept_p50_seconds"),
            values.get("accept_p99_seconds"),
        ),
        queue_depths={
            name.removeprefix(_QUEUE): value for name, value in values.items() if name.startswith(_QUEUE)
        },
        kv_blocks=blocks,
        kv_blocks_used=None if blocks is None or free is None else blocks - free,
        kv_blocks_cached=values.get("kv_blocks_cached"),
        kv_others={
            name.removeprefix("kv_"): value
            for name, value in values.items()
            if name.startswith("kv_") and name not in _KV_KNOWN
        },
        cache_hit_share=_ratio(values.get("cached_tokens_total"), values.get("prompt_tokens_total")),
        preemptions=values.get("preemptions_total"),
        threads=_thread_shares(before, now),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _latency(name: str, before: Look | None, now: Look) -> Latency:
    whole = now.readings.histograms.get(name)
    if whole is None:
        return Latency()
    recent = whole.since(before.readings.histograms.get(name)) if before is not None else Buckets((), 0.0)
    shown = recent if recent.count else whole
    return Latency(shown.mean(), shown.quantile(0.5), shown.quantile(0.99), bool(recent.count))


def _thread_shares(before: Look | None, now: Look) -> dict[str, float]:
    if before is None or now.at_s <= before.at_s:
        return {}
    seconds = now.at_s - before.at_s
    return {
        name: max(used - before.thread_cpu_s[name], 0.0) / seconds
        for name, used in now.thread_cpu_s.items()
        if name in before.thread_cpu_s
    }

"""Draws a frame with rich. Knows frames only; the same drawing serves a live terminal and a single print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from plait.cli.watch.frame import Frame, Latency

_BARS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 10
_HISTORY_WIDTH = 20
_NONE = "-"


def draw(url: str, frames: Sequence[Frame], problem: str = "") -> RenderableType:
    """The last of ``frames``, and how some numbers went over all of them. ``problem``: why there is no newer one."""
    frame = frames[-1]
    parts: list[RenderableType] = [_headline(url, frame)]
    if problem:
        parts.append(Text(problem, style="bold red"))
    parts.append(_pair(_work(frame, frames), _compute(frame, frames)))
    parts.append(_pair(_latencies(frame), _queues(frame)))
    parts.append(_pair(_kv(frame), _threads(frame)))
    return Group(*parts)


def _headline(url: str, frame: Frame) -> Text:
    line = Text(f"plait top  {url}  ")
    line.append(frame.status, style="bold green" if frame.status == "ok" else "bold red")
    if frame.detail and frame.detail != frame.status:
        line.append(f" ({frame.detail})")
    if frame.uptime_s is not None:
        line.append(f"  up {duration(frame.uptime_s)}")
    line.append(f"  last {frame.interval_s:.1f} s")
    return line


def _pair(left: RenderableType, right: RenderableType) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(left, right)
    return grid


def _panel(title: str, rows: Iterable[tuple[str, str]]) -> Panel:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="left", no_wrap=True)
    for name, value in rows:
        table.add_row(name, value)
    return Panel(table, title=title, title_align="left")


def _work(frame: Frame, frames: Sequence[Frame]) -> Panel:
    return _panel(
        "requests",
        [
            ("running", count(frame.requests_running)),
            ("waiting", count(frame.requests_waiting)),
            ("finished/s", decimal(frame.requests_finished_per_s, 2)),
            ("refused", count(frame.requests_refused)),
            ("tokens/s", decimal(frame.generated_per_s, 1)),
            ("prompt tok/s", decimal(frame.prefill_per_s, 1)),
            ("so far", spark([f.generated_per_s for f in frames])),
        ],
    )


def _compute(frame: Frame, frames: Sequence[Frame]) -> Panel:
    return _panel(
        "compute",
        [
            ("in a step", f"{bar(frame.busy_share)} {percent(frame.busy_share)}"),
            ("steps/s", decimal(frame.steps_per_s, 1)),
            ("step", milliseconds(frame.step_mean_s)),
            ("gap", milliseconds(frame.gap_mean_s)),
            ("tokens/step", decimal(frame.tokens_per_step, 1)),
            ("so far", spark([f.busy_share for f in frames], top=1.0)),
        ],
    )


def _latencies(frame: Frame) -> Panel:
    def row(latency: Latency) -> str:
        if latency.mean_s is None:
            return _NONE
        parts = [_ms(value) for value in (latency.mean_s, latency.p50_s, latency.p99_s)]
        return " / ".join(parts) + ("" if latency.is_recent else " (in all)")

    return _panel(
        "latency: mean / p50 / p99, ms",
        [
            ("first token", row(frame.first_token)),
            ("between", row(frame.inter_token)),
            ("taken in", row(frame.accept)),
        ],
    )


def _queues(frame: Frame) -> Panel:
    rows = [(name.replace("_", " "), count(value)) for name, value in frame.queue_depths.items()]
    return _panel("queues", rows or [("depths", _NONE)])


def _kv(frame: Frame) -> Panel:
    share = None
    if frame.kv_blocks and frame.kv_blocks_used is not None:
        share = frame.kv_blocks_used / frame.kv_blocks
    rows = [
        ("blocks used", f"{bar(share)} {count(frame.kv_blocks_used)} of {count(frame.kv_blocks)}"),
        ("cached", count(frame.kv_blocks_cached)),
        ("hits", f"{percent(frame.cache_hit_share)} of prompt tokens"),
        ("preemptions", count(frame.preemptions)),
    ]
    rows += [
        (name.removesuffix("_total").replace("_", " "), count(value))
        for name, value in frame.kv_others.items()
    ]
    return _panel("KV cache", rows)


def _threads(frame: Frame) -> Panel:
    rows = [
        (name, f"{bar(min(share, 1.0))} {percent(share)}")
        for name, share in sorted(frame.threads.items(), key=lambda item: -item[1])
    ]
    return _panel("threads, share of one core", rows or [("threads", "out of sight")])


def bar(share: float | None) -> str:
    """Of _BAR_WIDTH characters."""
    filled = round(min(max(share or 0.0, 0.0), 1.0) * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def spark(values: Sequence[float | None], top: float | None = None) -> str:
    """One character for each of the last values; ``top`` is the full height, by default the largest of them."""
    shown = [value for value in values[-_HISTORY_WIDTH:] if value is not None]
    highest = top or max(shown, default=0.0)
    if not shown or highest <= 0:
        return _NONE
    return "".join(_BARS[round(min(value / highest, 1.0) * (len(_BARS) - 1))] for value in shown)


def count(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def decimal(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.1%}"


def milliseconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{_ms(seconds)} ms"


def _ms(seconds: float | None) -> str:
    value = (seconds or 0.0) * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """ "3 d 4 h", "5 h 12 min", "7 min" or "42 s"."""
    minutes = int(seconds // 60)
    if not minutes:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"

"""A report of ``plait bench concurrency`` as SVG: for each load its rates and latencies by clients, and the sweep.

Knows: rows. Must not know: how they were measured. Every mark carries its number, so that nothing has to be guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plait.bench.concurrency.job import Candidate
from plait.bench.concurrency.report import ConcurrencyReport, Row, Sweep
from plait.bench.svg import (
    COLOURS,
    FONT,
    LINE,
    Box,
    circle,
    document,
    line,
    number,
    rect,
    round_up,
    text,
    text_width,
)

_LEFT, _RIGHT, _GAP = 70.0, 24.0, 56.0
_PANEL_HEIGHT = 240.0
_BAR, _BAR_GAP, _GROUP_GAP = 34.0, 4.0, 30.0
_MIN_PANEL_WIDTH = 300.0
_TICKS = 4


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    value: Callable[[Row], float]


_PANELS = (
    _Panel("requests/s", lambda row: row.median["requests_per_s"]),
    _Panel("latency p99, ms", lambda row: row.median["latency_p99_s"] * 1e3),
    _Panel("time to first token p50, ms", lambda row: row.median["first_token_p50_s"] * 1e3),
    _Panel("compute thread in a step, %", lambda row: row.median["busy_share"] * 100),
)
_COLUMNS = 2


def draw_report(report: ConcurrencyReport) -> str:
    """An SVG document."""
    candidates = list(dict.fromkeys(row.candidate for row in report.rows))
    colours = {candidate: COLOURS[i % len(COLOURS)] for i, candidate in enumerate(candidates)}
    loads = list(dict.fromkeys(row.load for row in report.rows))
    width = _width(report, loads)
    machine = report.machine
    title = (
        f"{report.model}: {machine['cpu']}, {machine['isa']}, {machine['num_usable_cores']} cores; "
        "medians of the rounds"
    )
    parts = [text(_LEFT, 26, title, size=15)]
    y = 44.0
    for row in _legend_rows([candidate.label for candidate in candidates], width):
        parts += _draw_legend(row, y, {c.label: colour for c, colour in colours.items()})
        y += LINE
    for load in loads:
        rows = [row for row in report.rows if row.load == load]
        y += 26
        parts.append(text(_LEFT, y, f"load {load}", size=13))
        for start in range(0, len(_PANELS), _COLUMNS):
            x = _LEFT
            for panel in _PANELS[start : start + _COLUMNS]:
                box = Box(x, y + 34, _panel_width(rows), _PANEL_HEIGHT)
                parts += _draw_bars(box, panel, rows, colours)
                x += box.width + _GAP
            y += 34 + _PANEL_HEIGHT + 44
        sweeps = [sweep for sweep in report.sweeps if sweep.load == load]
        if sweeps:
            parts += _draw_sweeps(Box(_LEFT, y + 34, width - _LEFT - 320, _PANEL_HEIGHT), sweeps)
            y += 34 + _PANEL_HEIGHT + 44
    return document(width, y + 10, parts)


def _width(report: ConcurrencyReport, loads: Sequence[str]) -> float:
    widest = max(
        (_panel_width([row for row in report.rows if row.load == load]) for load in loads),
        default=_MIN_PANEL_WIDTH,
    )
    return max(_LEFT + _COLUMNS * widest + (_COLUMNS - 1) * _GAP + _RIGHT, 1000.0)


def _panel_width(rows: Sequence[Row]) -> float:
    num_groups = len({row.clients for row in rows})
    bars = len(rows) * (_BAR + _BAR_GAP)
    return max(bars + (num_groups + 1) * _GROUP_GAP, _MIN_PANEL_WIDTH)


def _legend_rows(labels: Sequence[str], width: float) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    for label in labels:
        row = rows[-1]
        if row and _legend_width([*row, label]) > width - _LEFT - _RIGHT:
            rows.append([label])
        else:
            row.append(label)
    return rows


def _legend_width(labels: Sequence[str]) -> float:
    return sum(16 + text_width(label) + 16 for label in labels)


def _draw_legend(labels: Sequence[str], y: float, colours: dict[str, str]) -> Iterator[str]:
    x = _LEFT
    for label in labels:
        yield rect(Box(x, y - 9, 10, 10), fill=colours[label])
        yield text(x + 16, y, label)
        x += _legend_width([label])


def _draw_frame(box: Box, title: str, top: float) -> Iterator[str]:
    """A panel with its title and a linear scale from 0 to ``top``."""
    yield text(box.x, box.y - 8, title)
    for i in range(_TICKS + 1):
        y = box.y + box.height * (1 - i / _TICKS)
        yield line(box.x, y, box.x + box.width, y, "#e4e4e4")
        yield text(box.x - 6, y + 4, number(top * i / _TICKS), anchor="end")
    yield rect(box, stroke="#888")


def _draw_bars(box: Box, panel: _Panel, rows: Sequence[Row], colours: dict[Candidate, str]) -> Iterator[str]:
    top = round_up(max([*(panel.value(row) for row in rows), 1e-9]) * 1.08)
    yield from _draw_frame(box, panel.title, top)
    bottom = box.y + box.height
    x = box.x + _GROUP_GAP
    for clients in sorted({row.clients for row in rows}):
        group = [row for row in rows if row.clients == clients]
        begin = x
        for row in group:
            value = panel.value(row)
            height = box.height * value / top
            colour = colours[row.candidate]
            yield rect(Box(x, bottom - height, _BAR, height), fill=colour, opacity=0.85)
            yield text(x + _BAR / 2, bottom - height - 4, number(value), anchor="middle", halo=True)
            x += _BAR + _BAR_GAP
        label = f"{clients} client{'s' * (clients != 1)}"
        yield text((begin + x - _BAR_GAP) / 2, bottom + 16, label, anchor="middle")
        x += _GROUP_GAP


def _draw_sweeps(box: Box, sweeps: Sequence[Sweep]) -> Iterator[str]:
    """Requests per second by compute threads; a ring marks the number after which more do not pay."""
    top = round_up(max(point.requests_per_s for sweep in sweeps for point in sweep.points) * 1.08)
    yield from _draw_frame(box, "requests/s by compute threads (ring: more do not pay)", top)
    counts = sorted({point.threads for sweep in sweeps for point in sweep.points})
    pitch = box.width / len(counts)
    places = {count: box.x + pitch * (i + 0.5) for i, count in enumerate(counts)}
    bottom = box.y + box.height
    for count, x in places.items():
        yield text(x, bottom + 16, str(count), anchor="middle")
    for i, sweep in enumerate(sweeps):
        colour = COLOURS[i % len(COLOURS)]
        spots = [
            (places[point.threads], bottom - box.height * point.requests_per_s / top, point)
            for point in sweep.points
        ]
        for (x0, y0, _), (x1, y1, _) in itertools.pairwise(spots):
            yield line(x0, y0, x1, y1, colour, width=1.5)
        for x, y, point in spots:
            if point.threads == sweep.pays_up_to:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="{colour}"/>'
            yield circle(x, y, 4, colour)
        y = box.y + LINE * (i + 1)
        yield rect(Box(box.x + box.width + 14, y - 9, 10, 10), fill=colour)
        label = f"{sweep.clients} clients, {sweep.mode}, {sweep.parallelism}"
        yield text(box.x + box.width + 30, y, label, size=FONT)

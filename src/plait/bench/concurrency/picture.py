"""A report of ``plait bench concurrency`` as SVG: for each load its rates and latencies by clients, and the sweep.

Knows: rows. Must not know: how they were measured. Every mark carries its number, so that nothing has to be guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plait.bench.concurrency.report import ConcurrencyReport, Row, Sweep
from plait.bench.concurrency.verdict import clients_text
from plait.bench.svg import (
    COLOURS,
    LINE,
    Box,
    circle,
    document,
    line,
    number,
    rect,
    ring,
    round_up,
    text,
    text_width,
)

_LEFT, _RIGHT, _GAP = 70.0, 24.0, 56.0
_PANEL_HEIGHT = 240.0
_BAR, _BAR_GAP, _GROUP_GAP = 34.0, 4.0, 30.0
_MIN_PANEL_WIDTH = 300.0
_TICKS = 4


Way = tuple[str, str]
"""(mode, parallelism): what has a colour of its own."""


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    value: Callable[[Row], float]
    top: float | None = None
    """Of its scale; None: what the values need."""


_PANELS = (
    _Panel("requests/s", lambda row: row.median["requests_per_s"]),
    _Panel("latency p99, ms", lambda row: row.median["latency_p99_s"] * 1e3),
    _Panel("time to first token p50, ms", lambda row: row.median["first_token_p50_s"] * 1e3),
    _Panel("compute thread in a step, %", lambda row: row.median["busy_share"] * 100, 120.0),
)
_COLUMNS = 2


def draw_report(report: ConcurrencyReport) -> str:
    """An SVG document. Bars are of the most threads; fewer are in the sweep."""
    ways = list(dict.fromkeys(_way(row) for row in report.rows))
    colours = {way: COLOURS[i % len(COLOURS)] for i, way in enumerate(ways)}
    most = max((row.candidate.threads for row in report.rows), default=1)
    at_most = [row for row in report.rows if row.candidate.threads == most]
    loads = list(dict.fromkeys(row.load for row in report.rows))
    width = _width(at_most, loads)
    machine = report.machine
    title = (
        f"{report.model}: {machine['cpu']}, {machine['isa']}, {machine['num_usable_cores']} cores; "
        f"medians of the rounds, {most} compute thread{'s' * (most != 1)}"
    )
    parts = [text(_LEFT, 26, title, size=15)]
    y = 46.0
    for row in _legend_rows([", ".join(way) for way in ways], width):
        parts += _draw_legend(row, y, {", ".join(way): colour for way, colour in colours.items()})
        y += LINE
    for load in loads:
        rows = [row for row in at_most if row.load == load]
        y += 30
        parts.append(text(_LEFT, y, f"load {load}", size=13))
        for start in range(0, len(_PANELS), _COLUMNS):
            x = _LEFT
            for panel in _PANELS[start : start + _COLUMNS]:
                box = Box(x, y + 34, _panel_width(rows), _PANEL_HEIGHT)
                parts += _draw_bars(box, panel, rows, colours)
                x += box.width + _GAP
            y += 34 + _PANEL_HEIGHT + 30
        sweeps = [sweep for sweep in report.sweeps if sweep.load == load]
        if sweeps:
            parts += _draw_sweeps(Box(_LEFT, y + 34, width - _LEFT - _RIGHT, _PANEL_HEIGHT), sweeps, colours)
            y += 34 + _PANEL_HEIGHT + 30
    return document(width, y + 10, parts)


def _way(row: Row) -> Way:
    return row.candidate.mode, row.candidate.parallelism


def _width(rows: Sequence[Row], loads: Sequence[str]) -> float:
    widest = max(
        (_panel_width([row for row in rows if row.load == load]) for load in loads),
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


def _draw_bars(box: Box, panel: _Panel, rows: Sequence[Row], colours: dict[Way, str]) -> Iterator[str]:
    top = panel.top or round_up(max([*(panel.value(row) for row in rows), 1e-9]) * 1.08)
    yield from _draw_frame(box, panel.title, top)
    bottom = box.y + box.height
    x = box.x + _GROUP_GAP
    for clients in sorted({row.clients for row in rows}):
        group = [row for row in rows if row.clients == clients]
        begin = x
        for row in group:
            value = panel.value(row)
            height = box.height * value / top
            colour = colours[_way(row)]
            yield rect(Box(x, bottom - height, _BAR, height), fill=colour, opacity=0.85)
            yield text(x + _BAR / 2, bottom - height - 4, number(value), anchor="middle", halo=True)
            x += _BAR + _BAR_GAP
        yield text((begin + x - _BAR_GAP) / 2, bottom + 16, clients_text(clients), anchor="middle")
        x += _GROUP_GAP


def _draw_sweeps(box: Box, sweeps: Sequence[Sweep], colours: dict[Way, str]) -> Iterator[str]:
    """Requests per second by compute threads, a panel for each number of clients. A ring marks the number beyond
    which more do not pay."""
    clients = sorted({sweep.clients for sweep in sweeps})
    top = round_up(max(point.requests_per_s for sweep in sweeps for point in sweep.points) * 1.08)
    width = (box.width - _GAP * (len(clients) - 1)) / len(clients)
    for i, count in enumerate(clients):
        panel = Box(box.x + i * (width + _GAP), box.y, width, box.height)
        yield from _draw_frame(
            panel, f"requests/s by compute threads, {clients_text(count)} (ring: more do not pay)", top
        )
        yield from _draw_lines(panel, [sweep for sweep in sweeps if sweep.clients == count], top, colours)


def _draw_lines(box: Box, sweeps: Sequence[Sweep], top: float, colours: dict[Way, str]) -> Iterator[str]:
    counts = sorted({point.threads for sweep in sweeps for point in sweep.points})
    pitch = box.width / len(counts)
    places = {count: box.x + pitch * (i + 0.5) for i, count in enumerate(counts)}
    bottom = box.y + box.height
    for count, x in places.items():
        yield text(x, bottom + 16, str(count), anchor="middle")
    for sweep in sweeps:
        colour = colours[sweep.mode, sweep.parallelism]
        spots = [
            (places[point.threads], bottom - box.height * point.requests_per_s / top, point)
            for point in sweep.points
        ]
        for (x0, y0, _), (x1, y1, _) in itertools.pairwise(spots):
            yield line(x0, y0, x1, y1, colour, width=1.5)
        for x, y, point in spots:
            if point.threads == sweep.pays_up_to:
                yield ring(x, y, 8, colour)
            yield circle(x, y, 4, colour)

"""The roofline picture of ``plait bench kernels``, as SVG: multiply-adds per byte against multiply-adds per second.

Knows: points, ceilings, labels. Must not know: how they were measured. Standard library only.

A label stands beside its point or, when there is no room, farther away with a line to it. No label touches another
one, a point, the roof or another label's line; the picture grows until all have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.bench.svg import (
    COLOURS,
    FONT,
    LINE,
    Box,
    Segment,
    circle,
    document,
    line,
    number,
    rect,
    round_down,
    round_up,
    text,
    text_width,
)

WIDTH = 1280
MIN_HEIGHT = 760
MAX_HEIGHT = 6000

_LEFT, _RIGHT, _BOTTOM = 70, 24, 52
_X_TITLE = "multiply-adds per byte from memory (xN: N tokens at once; @N: one token that sees N positions)"
_RADIUS = 4


@dataclass(frozen=True, slots=True)
class Point:
    label: str
    group: str
    """Points of one group have one colour."""
    macs_per_byte: float
    gmacs_per_s: float


@dataclass(frozen=True, slots=True)
class ComputeCeiling:
    label: str
    gmacs_per_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    box: Box
    leader: Segment | None


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two powers of ten."""

    low: float
    high: float
    begin: float
    """Where ``low`` is drawn."""
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> Iterator[float]:
        exponent = math.floor(math.log10(self.low))
        while 10.0**exponent <= self.high * 1.001:
            for factor in (1, 2, 5):
                tick = factor * 10.0**exponent
                if self.low * 0.999 <= tick <= self.high * 1.001:
                    yield tick
            exponent += 1


def draw_roofline(
    title: str, read_gbytes_per_s: float, ceilings: Sequence[ComputeCeiling], points: Sequence[Point]
) -> str:
    """An SVG document. ``read_gbytes_per_s`` is the slope of the roof, ``ceilings`` are its levels."""
    ceilings = merge_levels(ceilings)
    legend = [(f"read {number(read_gbytes_per_s)} GB/s", "")]
    legend += [(f"{c.label} {number(c.gmacs_per_s)} GMAC/s", _DASHES[i % 3]) for i, c in enumerate(ceilings)]
    groups = list(dict.fromkeys(point.group for point in points))
    colours = {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(groups)}
    top = 44 + LINE * (1 + len(_legend_rows(groups, legend)))
    height = MIN_HEIGHT
    while True:
        plot = Box(_LEFT, top, WIDTH - _LEFT - _RIGHT, height - top - _BOTTOM)
        x, y = _axes(plot, read_gbytes_per_s, ceilings, points)
        places = [(x.at(p.macs_per_byte), y.at(p.gmacs_per_s)) for p in points]
        roof = _roof(x, y, read_gbytes_per_s, ceilings)
        labels = [p.label for p in points]
        placed = place_labels(plot, places, labels, roof)
        if placed is None and height > MIN_HEIGHT:
            placed = place_labels(plot, places, labels, roof, is_strict=False)
        if placed is not None:
            break
        if height >= MAX_HEIGHT:
            raise ValueError(f"{len(points)} labels do not fit in one picture")
        height += 480
    parts = [
        text(_LEFT, 26, title, size=15),
        *_draw_legend(groups, colours, legend),
        *_draw_axes(plot, x, y),
        *_draw_roof(roof),
    ]
    for point, (px, py), label in zip(points, places, placed, strict=True):
        colour = colours[point.group]
        if label.leader is not None:
            s = label.leader
            parts.append(
                f'<line x1="{s.x0:.1f}" y1="{s.y0:.1f}" x2="{s.x1:.1f}" y2="{s.y1:.1f}" stroke="{colour}" '
                'stroke-width="0.6" opacity="0.7"/>'
            )
        parts.append(circle(px, py, _RADIUS, colour))
    for point, label in zip(points, placed, strict=True):
        box = label.box
        parts.append(text(box.x, box.y + FONT, point.label, colour=colours[point.group], halo=True))
    return document(WIDTH, height, parts)


_DASHES = ("8 3", "2 3", "8 3 2 3")


def merge_levels(ceilings: Sequence[ComputeCeiling]) -> list[ComputeCeiling]:
    """Ceilings so close together that they would be one line become one."""
    merged: list[ComputeCeiling] = []
    for ceiling in sorted(ceilings, key=lambda c: c.gmacs_per_s):
        if merged and ceiling.gmacs_per_s < merged[-1].gmacs_per_s * 1.02:
            label = f"{merged.pop().label}, {ceiling.label}"
            merged.append(ComputeCeiling(label, ceiling.gmacs_per_s))
        else:
            merged.append(ceiling)
    return merged


def place_labels(
    plot: Box,
    places: Sequence[tuple[float, float]],
    labels: Sequence[str],
    walls: Sequence[Segment] = (),
    *,
    is_strict: bool = True,
) -> list[Placed] | None:
    """A place for each label, in order, that touches none of the ``walls``; None when there is no room.

    Strict: no line to a label crosses a point.
    """
    dots = [Box(x - _RADIUS - 1, y - _RADIUS - 1, 2 * _RADIUS + 2, 2 * _RADIUS + 2) for x, y in places]
    placed: list[Placed] = []
    for own, ((x, y), label) in enumerate(zip(places, labels, strict=True)):
        for candidate in _candidates(x, y, text_width(label)):
            if not candidate.box.is_inside(plot) or any(wall.crosses(candidate.box) for wall in walls):
                continue
            if _is_free(candidate, placed, dots, own, is_strict=is_strict):
                placed.append(candidate)
                break
        else:
            return None
    return placed


def _candidates(x: float, y: float, width: float) -> Iterator[Placed]:
    """Beside the point first, then ever farther away."""
    gap = _RADIUS + 3
    for side in (1, -1):
        yield Placed(_box_beside(x + side * gap, y, width, side), None)
    for dx, dy in _OFFSETS:
        for side in (1, -1):
            yield Placed(
                _box_beside(x + side * dx, y + dy, width, side), Segment(x, y, x + side * (dx - 2), y + dy)
            )


_OFFSETS = sorted(
    (
        (dx, dy)
        for dx in (14, 50, 100, 160, 230, 310, 400, 500)
        for step in range(1, 140)
        for dy in (step * LINE / 2, -step * LINE / 2)
    ),
    key=lambda offset: math.hypot(*offset),
)


def _box_beside(x: float, y: float, width: float, side: int) -> Box:
    return Box(x if side > 0 else x - width, y - LINE / 2, width, LINE)


def _is_free(
    candidate: Placed, placed: Sequence[Placed], dots: Sequence[Box], own: int, *, is_strict: bool
) -> bool:
    if any(candidate.box.touches(dot) for dot in dots):
        return False
    for other in placed:
        if candidate.box.touches(other.box):
            return False
        if other.leader is not None and other.leader.crosses(candidate.box):
            return False
        if candidate.leader is not None and candidate.leader.crosses(other.box):
            return False
    if candidate.leader is None or not is_strict:
        return True
    # A line through somebody else's point would seem to be that one's; points at one place share it.
    return not any(
        candidate.leader.crosses(dot) and not dot.touches(dots[own]) for i, dot in enumerate(dots) if i != own
    )


def _axes(
    plot: Box, read: float, ceilings: Sequence[ComputeCeiling], points: Sequence[Point]
) -> tuple[_Axis, _Axis]:
    levels = [c.gmacs_per_s for c in ceilings]
    ridges = [level / read for level in levels]
    xs = [*(p.macs_per_byte for p in points), *ridges]
    ys = [*(p.gmacs_per_s for p in points), *levels]
    x = _Axis(round_down(min(xs) / 1.5), round_up(max(xs) * 2.5), plot.x, plot.x + plot.width)
    y = _Axis(round_down(min(ys) / 1.5), round_up(max(ys) * 1.3), plot.y + plot.height, plot.y)
    return x, y


def _draw_axes(plot: Box, x: _Axis, y: _Axis) -> Iterator[str]:
    bottom, right = plot.y + plot.height, plot.x + plot.width
    for tick in x.ticks():
        at = x.at(tick)
        yield line(at, plot.y, at, bottom, "#e4e4e4")
        yield text(at, bottom + 16, number(tick), anchor="middle")
    for tick in y.ticks():
        at = y.at(tick)
        yield line(plot.x, at, right, at, "#e4e4e4")
        yield text(plot.x - 6, at + 4, number(tick), anchor="end")
    yield rect(plot, stroke="#888")
    yield text(plot.x + plot.width / 2, bottom + 38, _X_TITLE, anchor="middle")
    yield text(plot.x, plot.y - 8, "GMAC/s")


def _roof(x: _Axis, y: _Axis, read: float, ceilings: Sequence[ComputeCeiling]) -> list[Segment]:
    """The slope, then the level of each ceiling from where it meets the slope."""
    highest = max(c.gmacs_per_s for c in ceilings)
    # The slope enters the plot from below or from the left.
    begin = max(x.low, y.low / read)
    roof = [Segment(x.at(begin), y.at(begin * read), x.at(highest / read), y.at(highest))]
    for ceiling in ceilings:
        level = y.at(ceiling.gmacs_per_s)
        roof.append(Segment(x.at(max(x.low, ceiling.gmacs_per_s / read)), level, x.end, level))
    return roof


def _draw_roof(roof: Sequence[Segment]) -> Iterator[str]:
    for s, dash in zip(roof, ["", *_DASHES, *_DASHES], strict=False):
        yield line(s.x0, s.y0, s.x1, s.y1, "#333", width=1.5, dash=dash)


def _legend_rows(groups: Sequence[str], legend: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Texts of the legend, in rows that fit the width; the ceilings' row comes first."""
    rows: list[list[str]] = []
    for texts in ([label for label, _ in legend], list(groups)):
        row: list[str] = []
        for label in texts:
            if row and _legend_width([*row, label]) > WIDTH - _LEFT - _RIGHT:
                rows.append(row)
                row = []
            row.append(label)
        if row:
            rows.append(row)
    return rows


_SAMPLE = 34  # the line or dot before a text of the legend, and the gap after it


def _legend_width(texts: Sequence[str]) -> float:
    return sum(_SAMPLE + text_width(label) + 16 for label in texts)


def _draw_legend(
    groups: Sequence[str], colours: dict[str, str], legend: Sequence[tuple[str, str]]
) -> Iterator[str]:
    dashes = dict(legend)
    for i, row in enumerate(_legend_rows(groups, legend)):
        at, y = float(_LEFT), 44.0 + LINE * i
        for label in row:
            if label in dashes:
                yield line(at, y - 4, at + 26, y - 4, "#333", width=1.5, dash=dashes[label])
            else:
                yield circle(at + 20, y - 4, _RADIUS, colours[label])
            yield text(at + _SAMPLE, y, label)
            at += _SAMPLE + text_width(label) + 16

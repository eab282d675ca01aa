"""Pieces of SVG that the pictures of several benchmarks are made of. Standard library only; knows no figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

FONT = 11
LINE = FONT + 3
# Of the monospaced fonts that systems have, the widest.
CHAR = FONT * 0.62
COLOURS = (
    "#1b6ca8",
    "#c0392b",
    "#1e8449",
    "#7d3c98",
    "#b9770e",
    "#117a65",
    "#5d6d7e",
    "#d35400",
    "#2c3e9e",
    "#884400",
)


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    def touches(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def is_inside(self, other: Box) -> bool:
        return (
            self.x >= other.x
            and self.y >= other.y
            and self.x + self.width <= other.x + other.width
            and self.y + self.height <= other.y + other.height
        )


@dataclass(frozen=True, slots=True)
class Segment:
    x0: float
    y0: float
    x1: float
    y1: float

    def crosses(self, box: Box) -> bool:
        """Liang and Barsky: is any part of the segment inside the box?"""
        low, high = 0.0, 1.0
        dx, dy = self.x1 - self.x0, self.y1 - self.y0
        for delta, from_low, from_high in (
            (dx, self.x0 - box.x, box.x + box.width - self.x0),
            (dy, self.y0 - box.y, box.y + box.height - self.y0),
        ):
            for step, room in ((-delta, from_low), (delta, from_high)):
                if step == 0:
                    if room < 0:
                        return False
                elif step < 0:
                    low = max(low, room / step)
                else:
                    high = min(high, room / step)
        return low <= high


def document(width: float, height: float, parts: Sequence[str]) -> str:
    """A whole SVG file with a white page."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="DejaVu Sans Mono, monospace" font-size="{FONT}">'
    )
    page = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, page, *parts, "</svg>"]) + "\n"


def text_width(text: str, size: float = FONT) -> float:
    """What it takes at most."""
    return len(text) * CHAR * size / FONT


def round_up(value: float) -> float:
    """To 1, 2, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.9999)


def round_down(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value * 1.0001)


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def line(x0: float, y0: float, x1: float, y1: float, colour: str, *, width: float = 1, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def rect(box: Box, *, fill: str = "none", stroke: str = "none", opacity: float = 1) -> str:
    faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'fill="{fill}" stroke="{stroke}"{faint}/>'
    )


def circle(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def ring(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="none" stroke="{colour}"/>'


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    colour: str = "#222",
    size: int = FONT,
    halo: bool = False,
) -> str:
    outline = ' stroke="white" stroke-width="3" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{outline}>'
        f"{escape(content)}</text>"
    )

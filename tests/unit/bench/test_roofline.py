"""The roofline picture: points stand where their numbers say, and no text touches another."""

from __future__ import annotations

import itertools
import math
import random
from xml.etree import ElementTree

import pytest

from plait.bench.roofline import ComputeCeiling, Point, draw_roofline, merge_levels
from plait.bench.svg import CHAR, FONT, Box, Segment

SVG = "{http://www.w3.org/2000/svg}"
CEILINGS = [ComputeCeiling("f32", 118.0), ComputeCeiling("int8", 472.0)]


def crowd(count: int, seed: int = 1) -> list[Point]:
    """As kernels stand: a few numbers of bytes per token, speeds close together."""
    rng = random.Random(seed)
    points = []
    for i in range(count):
        tokens = rng.choice([1, 8, 32, 512])
        intensity = rng.choice([0.94, 1.6, 1.45]) * tokens
        speed = min(60 * intensity, 300) * rng.uniform(0.9, 1.0)
        points.append(
            Point(f"Q4_{i} {rng.choice([192, 262144])}x640 x{tokens}", f"Q4_{i % 9}", intensity, speed)
        )
    return points


def boxes_of(svg: str) -> list[tuple[str, Box]]:
    """What each text covers; its height is that of letters without what hangs below the line."""
    boxes = []
    for node in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        text = node.text or ""
        size = float(node.attrib["font-size"])
        width = len(text) * CHAR * size / FONT
        shift = {"start": 0.0, "middle": width / 2, "end": width}[node.attrib["text-anchor"]]
        x, y = float(node.attrib["x"]) - shift, float(node.attrib["y"])
        boxes.append((text, Box(x, y - 0.8 * size, width, size)))
    return boxes


@pytest.mark.parametrize("count", [1, 12, 40, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_text_touches_another(count: int, seed: int) -> None:
    svg = draw_roofline("a model: a CPU, avx2, 2 threads", 60.0, CEILINGS, crowd(count, seed))
    boxes = boxes_of(svg)
    root = ElementTree.fromstring(svg)
    page = Box(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    for (text, box), (other, other_box) in itertools.combinations(boxes, 2):
        assert not box.touches(other_box), f"{text!r} touches {other!r}"
    assert [text for text, box in boxes if not box.is_inside(page)] == []


def test_every_point_is_drawn_and_labelled() -> None:
    points = crowd(30)
    svg = draw_roofline("title", 60.0, CEILINGS, points)
    texts = [text for text, _ in boxes_of(svg)]
    assert {point.label for point in points} <= set(texts)
    groups = {point.group for point in points}
    # A dot for each, and one for each group in the legend.
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == len(points) + len(groups)
    for text in ("read 60 GB/s", "f32 118 GMAC/s", "int8 472 GMAC/s", "title"):
        assert text in texts


def test_points_stand_where_their_numbers_say() -> None:
    """Equal ratios are equal distances, and a point on the roof's edge is drawn on it."""
    points = [Point(str(i), "a", 2.0**i, 10.0 * 2.0**i) for i in range(4)]
    svg = draw_roofline("t", 10.0, [ComputeCeiling("f32", 200.0)], points)
    dots = [
        (float(node.attrib["cx"]), float(node.attrib["cy"]))
        for node in ElementTree.fromstring(svg).iter(f"{SVG}circle")
    ][1:]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(dots)]
    assert all(dx == pytest.approx(steps[0][0], abs=0.2) for dx, _ in steps)
    assert all(dy == pytest.approx(steps[0][1], abs=0.2) for _, dy in steps)
    assert steps[0][0] > 0 > steps[0][1]
    # 10 GB/s: 1 multiply-add per byte at 10 GMAC/s lies on the slope.
    slope = next(
        node.attrib
        for node in ElementTree.fromstring(svg).iter(f"{SVG}line")
        if node.attrib["stroke"] == "#333" and node.attrib["y1"] != node.attrib["y2"]
    )
    x1, y1, x2, y2 = (float(slope[name]) for name in ("x1", "y1", "x2", "y2"))
    for x, y in dots:
        assert y == pytest.approx(y1 + (x - x1) * (y2 - y1) / (x2 - x1), abs=0.5)


def test_a_legend_longer_than_a_line_wraps() -> None:
    points = [Point(f"p{i}", f"a kernel with a long name {i}", 1.0 + i, 10.0) for i in range(20)]
    test = boxes_of(draw_roofline("t", 60.0, CEILINGS, points))
    for (text, box), (other, other_box) in itertools.combinations(test, 2):
        assert not box.touches(other_box), f"{text!r} touches {other!r}"


def test_names_are_escaped() -> None:
    svg = draw_roofline("<a> & b", 60.0, CEILINGS, [Point("<p>", "g&h", 1.0, 10.0)])
    assert {"<a> & b", "<p>", "g&h"} <= {text for text, _ in boxes_of(svg)}


def test_close_ceilings_become_one_line() -> None:
    merged = merge_levels([ComputeCeiling("a", 100.0), ComputeCeiling("b", 50.0), ComputeCeiling("c", 101.0)])
    assert merged == [ComputeCeiling("b", 50.0), ComputeCeiling("a, c", 101.0)]


@pytest.mark.parametrize(
    ("segment", "is_crossing"),
    [
        (Segment(0, 0, 10, 10), True),
        (Segment(4, 0, 4, 10), True),
        (Segment(0, 0, 10, 0), False),
        (Segment(0, 9, 2, 0), False),
        (Segment(4.5, 4.5, 4.6, 4.6), True),
        (Segment(5.5, 0, 5.5, 10), False),
    ],
)
def test_segments_and_boxes(segment: Segment, is_crossing: bool) -> None:
    box = Box(3, 3, 2, 2)
    assert segment.crosses(box) == is_crossing
    # Against the plain way: is one of many points of it inside?
    steps = [i / 1000 for i in range(1001)]
    inside = any(
        3 <= segment.x0 + t * (segment.x1 - segment.x0) <= 5
        and 3 <= segment.y0 + t * (segment.y1 - segment.y0) <= 5
        for t in steps
    )
    assert inside == is_crossing
    assert not math.isnan(segment.x0)

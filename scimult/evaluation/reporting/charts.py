"""Geometry of the report's charts; the templates draw them as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scimult.evaluation.reporting.curves import RecallCurves
from scimult.evaluation.reporting.maps import PaperMap, Point

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 34, 10, 10, 34
MARGIN = 8


@dataclass(frozen=True)
class Tick:
    """A position on an axis and its label."""

    position: float
    text: str


@dataclass(frozen=True)
class Line:
    """A curve: its system's index and name, and its points with their tooltips."""

    index: int
    system: str
    points: list[tuple[float, float, str]]

    @property
    def path(self) -> str:
        """The points in SVG polyline syntax."""
        return " ".join(f"{x},{y}" for x, y, _ in self.points)


@dataclass(frozen=True)
class LineChart:
    """Curves with axes, in view box units."""

    name: str
    source: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]


def line_chart(curves: RecallCurves, systems: list[str]) -> LineChart:
    """Lay out recall curves: list length on a logarithmic axis, recall from 0 to 1."""
    low, high = math.log(curves.depths[0]), math.log(curves.depths[-1])

    def x(k: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (math.log(k) - low) / (high - low), 1)

    def y(recall: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * recall, 1)

    lines = []
    for curve in curves.curves:
        points = [
            (x(k), y(recall), f"{curve.system}: recall@{k} {100 * recall:.2f}")
            for k, recall in zip(curves.depths, curve.recalls, strict=True)
        ]
        lines.append(Line(systems.index(curve.system), curve.system, points))
    return LineChart(
        curves.name,
        curves.source,
        [Tick(x(k), str(k)) for k in curves.depths],
        [Tick(y(share / 4), f"{25 * share}") for share in range(5)],
        lines,
    )


def dots(paper_map: PaperMap) -> list[Point]:
    """Scale a map's papers to the view box."""
    span = WIDTH - 2 * MARGIN
    return [
        replace(p, x=round(MARGIN + span * p.x, 1), y=round(MARGIN + span * p.y, 1))
        for p in paper_map.points
    ]

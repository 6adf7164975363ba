"""How the cost grows, as a picture: both axes logarithmic, one self-contained SVG document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Curve, Growth

__all__ = ["growth_svg"]

_WIDTH_PX, _HEIGHT_PX = 808, 400
_LEFT_PX, _TOP_PX, _RIGHT_PX, _BOTTOM_PX = 78, 52, 262, 48
_PLOT_WIDTH_PX = _WIDTH_PX - _LEFT_PX - _RIGHT_PX
_PLOT_HEIGHT_PX = _HEIGHT_PX - _TOP_PX - _BOTTOM_PX
_LABEL_PX = 17

# hostrouting's are cool and drawn thick; each has a mark of its own besides.
_OURS = {"backend": "#7fdb8a", "check": "#7fdb8a", "boot script": "#5fd7d7", "boot check": "#5fd7d7"}
_OTHERS = ("#ffd7af", "#ff8700", "#ff87af", "#ffd700")

_CARD = "#0b1420"
_CSS = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6deeb;white-space:pre}"
    ".good{fill:#7fdb8a}.bad{fill:#ff7b72}.dim{fill:#8b98a9}.head{fill:#fff;font-weight:bold}"
    ".small{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}"
)


def growth_svg(growth: Growth) -> str:
    """Draw how the cost of several ways grows.

    Args:
        growth: what was measured.

    Returns:
        The document.
    """
    axes = _Axes.around(growth)
    body = [
        _text(_LEFT_PX, 28, growth.title, "head"),
        *_grid(axes),
        _text(_LEFT_PX + _PLOT_WIDTH_PX, _HEIGHT_PX - 12, growth.size, "small dim end"),
        *_curves(axes, growth.curves),
    ]
    said = "; ".join(
        f"{curve.name}: " + ", ".join(f"{size:,} in {_seconds(took)}" for size, took in curve.points)
        for curve in growth.curves
    )
    shapes = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {_HEIGHT_PX}" width="{_WIDTH_PX}" '
        f'height="{_HEIGHT_PX}" xml:space="preserve" role="img">\n'
        f"<title>{escape(growth.title)}</title>\n<desc>{escape(said)}</desc>\n<style>{_CSS}</style>\n"
        f'<rect x="0.5" y="0.5" width="{_WIDTH_PX - 1}" height="{_HEIGHT_PX - 1}" rx="8" fill="{_CARD}" '
        f'stroke="#2a3a4f"/>\n{shapes}\n</svg>\n'
    )


@attrs.frozen
class _Axes:
    """The decades that are shown: powers of ten of sizes, and of seconds."""

    left: int
    right: int
    bottom: int
    top: int

    @classmethod
    def around(cls, growth: Growth) -> _Axes:
        points = [point for curve in growth.curves for point in curve.points]
        sizes, times = [math.log10(size) for size, _ in points], [math.log10(took) for _, took in points]
        left, bottom = math.floor(min(sizes)), math.floor(min(times))
        return cls(left, max(math.ceil(max(sizes)), left + 1), bottom, max(math.ceil(max(times)), bottom + 1))

    def x(self, power: float) -> float:
        return _LEFT_PX + (power - self.left) / (self.right - self.left) * _PLOT_WIDTH_PX

    def y(self, power: float) -> float:
        return _TOP_PX + (self.top - power) / (self.top - self.bottom) * _PLOT_HEIGHT_PX


def _grid(axes: _Axes) -> Iterator[str]:
    for power in range(axes.left, axes.right + 1):
        x = axes.x(power)
        yield _line(x, _TOP_PX, x, _TOP_PX + _PLOT_HEIGHT_PX, "#1d2b3f")
        yield _text(x, _TOP_PX + _PLOT_HEIGHT_PX + 18, f"{10**power:,}", "small middle")
    for power in range(axes.bottom, axes.top + 1):
        y = axes.y(power)
        yield _line(_LEFT_PX, y, _LEFT_PX + _PLOT_WIDTH_PX, y, "#1d2b3f")
        yield _text(_LEFT_PX - 10, y + 4, _seconds(10.0**power), "small end")


def _curves(axes: _Axes, curves: tuple[Curve, ...]) -> Iterator[str]:
    others = iter(_OTHERS)
    colours = {curve.name: _OURS.get(curve.name) or next(others) for curve in curves}
    places = _labels(axes, curves)
    for curve in sorted(curves, key=lambda curve: curve.name in _OURS):
        colour, width = colours[curve.name], 2.5 if curve.name in _OURS else 1.5
        spots = [(axes.x(math.log10(size)), axes.y(math.log10(took))) for size, took in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 0.5}" fill="{colour}"/>' for x, y in spots)
        (x, y), label = spots[-1], places[curve.name]
        end = _LEFT_PX + _PLOT_WIDTH_PX + 14
        yield _line(x + 4, y, end - 4, label, colour, ' stroke-opacity="0.4" stroke-dasharray="2 3"')
        took = curve.points[-1][1]
        yield _text(end, label + 4, curve.name, "small", colour)
        yield _text(_WIDTH_PX - 14, label + 4, _seconds(took), "small end", colour)


def _labels(axes: _Axes, curves: tuple[Curve, ...]) -> dict[str, float]:
    """The heights of the names: at the ends of their curves, and clear of each other."""
    ends = sorted((axes.y(math.log10(curve.points[-1][1])), curve.name) for curve in curves)
    heights: list[float] = []
    for y, _ in ends:
        heights.append(max(y, heights[-1] + _LABEL_PX) if heights else y)
    limit = float(_TOP_PX + _PLOT_HEIGHT_PX)
    for number in range(len(heights) - 1, -1, -1):
        heights[number] = min(heights[number], limit)
        limit = heights[number] - _LABEL_PX
    return {name: height for (_, name), height in zip(ends, heights, strict=True)}


def _seconds(seconds: float) -> str:
    """A time, short: 3.2 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'


def _text(x: float, y: float, text: str, classes: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    escaped = escape(text).encode("ascii", "xmlcharrefreplace").decode()
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}"{style}>{escaped}</text>'

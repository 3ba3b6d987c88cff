"""Each contender against the floor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..model import FLOOR, Result
from .svg import Drawing, colour_of

_LEFT, _WIDE, _RIGHT, _ROW, _TOP = 230, 420, 150, 24, 34


def bars(results: Sequence[Result]) -> Drawing | None:
    """The ratios of the first figure on each server, on a logarithmic scale; None where there is no floor."""
    first = results[0]
    figure = next((figure for figure in first.figures if first.median(FLOOR, figure.key)), None)
    if figure is None:
        return None
    ratios = []
    for result in results:
        where = f", {result.server}" if len(results) > 1 else ""
        floor = result.median(FLOOR, figure.key)
        assert floor
        ratios += [
            (f"{standing.contender}{where}", median / floor, median)
            for standing in result.standings
            if (median := result.median(standing.contender, figure.key))
        ]
    # A bar begins a little outside the smallest and the largest: 1 is never at the very edge.
    low = min(ratio for _, ratio, _ in ratios) / 1.3
    high = max(ratio for _, ratio, _ in ratios) * 1.02
    drawing = Drawing(
        _LEFT + _WIDE + _RIGHT,
        _TOP + _ROW * len(ratios) + 10,
        f"{first.title}: {figure.label}, ÷ floor (log scale)",
    )
    scale = _WIDE / math.log(high / low)
    for row, (contender, ratio, median) in enumerate(ratios):
        y = _TOP + row * _ROW
        width = math.log(ratio / low) * scale
        drawing.text(_LEFT - 8, y + 13, contender, anchor="end")
        drawing.bar(_LEFT, y, width, _ROW - 7, colour_of(contender))
        drawing.text(_LEFT + width + 6, y + 13, f"{ratio:.3g}  ({median:.{figure.digits}f})")
    at = _LEFT + math.log(1 / low) * scale
    drawing.line(at, _TOP - 6, at, _TOP + _ROW * len(ratios))
    return drawing

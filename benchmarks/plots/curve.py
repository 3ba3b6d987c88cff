"""How many hand-overs were done within which time."""

from __future__ import annotations

import math

from ..model import Result
from .svg import COLOURS, Drawing

_LEFT, _WIDE, _TOP, _HIGH, _LEGEND = 46, 500, 34, 260, 170
_LOW, _DECADES = 1e-4, 4


def curve(result: Result) -> Drawing | None:
    """The cumulative distribution, one line each; None where no single latencies were kept."""
    standings = [standing for standing in result.standings if standing.latencies]
    if not standings:
        return None
    drawing = Drawing(
        _LEFT + _WIDE + _LEGEND,
        _TOP + _HIGH + 40,
        f"{result.title}, {result.server}: share done within a time",
    )
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _TOP + _HIGH * (1 - share)
        drawing.line(_LEFT, y, _LEFT + _WIDE, y)
        drawing.text(_LEFT - 6, y + 4, f"{share:.0%}", anchor="end")
    for decade in range(_DECADES + 1):
        x = _LEFT + _WIDE * decade / _DECADES
        drawing.line(x, _TOP, x, _TOP + _HIGH)
        drawing.text(x, _TOP + _HIGH + 18, f"{_LOW * 1000 * 10**decade:g} ms", anchor="middle")
    for number, standing in enumerate(standings):
        colour = COLOURS[number % len(COLOURS)]
        latencies = sorted(standing.latencies)
        points = [
            (_LEFT + _across(latency), _TOP + _HIGH * (1 - (place + 1) / len(latencies)))
            for place, latency in enumerate(latencies)
        ]
        drawing.curve([(points[0][0], _TOP + _HIGH), *points], colour)
        y = _TOP + 16 + number * 20
        drawing.bar(_LEFT + _WIDE + 14, y - 9, 14, 10, colour)
        drawing.text(_LEFT + _WIDE + 34, y, standing.contender)
    return drawing


def _across(latency: float) -> float:
    share = math.log10(max(latency, _LOW) / _LOW) / _DECADES
    return _WIDE * min(share, 1.0)

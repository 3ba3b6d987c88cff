"""The holders of the lock over time."""

from __future__ import annotations

from ..model import Result
from .svg import COLOURS, Drawing

_LEFT, _WIDE, _TOP, _ROW, _GAP = 150, 560, 34, 12, 18


def strip(result: Result) -> Drawing | None:
    """A few hundred milliseconds, one row a process; None where it was not kept."""
    standings = [standing for standing in result.standings if standing.holds]
    if not standings:
        return None
    began = min(since for standing in standings for _, since, _ in standing.holds)
    ended = max(since for standing in standings for _, since, _ in standing.holds)
    processes = 1 + max(process for standing in standings for process, _, _ in standing.holds)
    block = processes * _ROW + _GAP
    title = f"{result.title}, {result.server}: who held the lock, {(ended - began) * 1000:.0f} ms of it"
    drawing = Drawing(_LEFT + _WIDE + 10, _TOP + block * len(standings), title)
    for number, standing in enumerate(standings):
        top = _TOP + number * block
        drawing.text(_LEFT - 10, top + processes * _ROW / 2 + 4, standing.contender, anchor="end")
        for process in range(processes + 1):
            drawing.line(_LEFT, top + process * _ROW, _LEFT + _WIDE, top + process * _ROW)
        for process, since, until in standing.holds:
            x = _LEFT + (since - began) / (ended - began) * _WIDE
            width = max((min(until, ended) - since) / (ended - began) * _WIDE, 0.5)
            drawing.bar(x, top + process * _ROW + 1, width, _ROW - 2, COLOURS[process % len(COLOURS)])
    return drawing

"""Figures in the sentences of other pages, such as *0.9 ms between two processes*."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .model import Report

Value = Callable[[Report], float | None]
"""A figure of a report; None where it was not measured."""


class UntoldError(Exception):
    """Raised when a page has lost the sentence of a figure."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of a page in which figures stand.

    Attributes:
        words: With `{}` for each figure, or with its number of decimal places, as in `{:.1f}`; each space may
            be the end of a line.
        values: The figures.
    """

    words: str
    values: Sequence[Value]

    def told(self, text: str, report: Report) -> str:
        """The text of the page, with these figures; as it was if one of them was not measured.

        Raises:
            UntoldError: The page has not these words, or has them twice.
        """
        figures = re.compile(r"\{[^}]*\}")
        parts = [re.escape(part).replace("\\ ", r"\s+") for part in figures.split(self.words)]
        found = list(re.finditer(r"([\d.]+)".join(parts), text))
        if len(found) != 1:
            raise UntoldError(f"the page has {len(found)} times: {self.words}")
        measured = [value(report) for value in self.values]
        if None in measured:
            return text
        shown = [form.format(one) for form, one in zip(figures.findall(self.words), measured, strict=True)]
        for place in range(len(shown), 0, -1):
            begin, end = found[0].span(place)
            text = text[:begin] + shown[place - 1] + text[end:]
        return text


def _median(title: str, figure: str, contender: str = "aiolocks", *, of: str | None = None) -> Value:
    """On the first of the servers; divided by that of another contender, where one is named."""

    def value(report: Report) -> float | None:
        for result in report.by_title.get(title, ()):
            ours, other = result.median(contender, figure), 1.0 if of is None else result.median(of, figure)
            return None if ours is None or not other else ours / other
        return None

    return value


def _of_kinds(figure: str, choose: Callable[[Sequence[float]], float], without: Sequence[str] = ()) -> Value:
    """The least or the most of all kinds of locks but these."""

    def value(report: Report) -> float | None:
        for result in report.by_title.get("costs", ()):
            medians = {one.contender: result.median(one.contender, figure) for one in result.standings}
            return choose(
                [each for kind, each in medians.items() if each is not None and kind not in without]
            )
        return None

    return value


_LOCK: Final = "`Lock`"
_ONE: Final = (_LOCK, "`ReentrantLock`", "`MultiLock` of 3 names")
_REDLOCK: Final = "`Redlock` of 3 masters"

SENTENCES: Final[Mapping[str, Sequence[Sentence]]] = {
    "../README.md": (
        Sentence(
            "is woken by the release: {:.1f} ms between two processes, where redis-py takes {:.0f} ms",
            (_median("handover", "p50", "aiolocks tracking"), _median("handover", "p50", "redis-py")),
        ),
        Sentence(
            "{:.0f} µs of CPU a cycle, where redis-py takes {:.0f}",
            (_median("cached", "hit_cpu"), _median("cached", "hit_cpu", "redis-py")),
        ),
    ),
    "explanation/performance.md": (
        Sentence(
            "if no other task wants the lock | {:.0f}; a `Redlock` of three masters: {:.0f}",
            (_median("costs", "cycle", _LOCK), _median("costs", "cycle", _REDLOCK)),
        ),
        Sentence("a wait for another process | {:.0f} more", (_median("costs", "wait", _LOCK),)),
        Sentence(
            "{:.0f} for a `Lock`, a `ReentrantLock` and a `MultiLock`; {:.0f} to {:.0f} for other kinds; "
            "{:.0f} for a `Redlock`",
            (
                _median("costs", "handover", _LOCK),
                _of_kinds("handover", min, (*_ONE, _REDLOCK)),
                _of_kinds("handover", max, (*_ONE, _REDLOCK)),
                _median("costs", "handover", _REDLOCK),
            ),
        ),
        Sentence(
            "or about {:.0f} processes, or {:.0f} with a millisecond of work inside",
            (
                _median("lock-or-watch, 0 ms inside, by processes", "crossing"),
                _median("lock-or-watch, 1 ms inside, by processes", "crossing"),
            ),
        ),
    ),
    "explanation/known-limits.md": (
        Sentence(
            "had {:.2f} of the throughput with healthy masters, and {:.1f} times the wait at the 99th "
            "percentile",
            (
                _median("redlock, contended", "throughput", "aiolocks, one master hangs", of="aiolocks"),
                _median("redlock, contended", "p99", "aiolocks, one master hangs", of="aiolocks"),
            ),
        ),
    ),
    "how-to/rwlock.md": (
        Sentence(
            "{:.0f} reads and {:.1f} plain writes a second ({:.0f} reads without the plain writer",
            (_median("phases", "reads"), _median("phases", "writes"), _median("phases", "reads", "floor")),
        ),
    ),
}
"""By the page, from the directory of the documentation."""

"""The picture of one act, and how it is drawn: the same lines on a terminal and in a pipe."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from .checks import Check
from .timeline import Glyphs, Timeline

_INDENT: Final = "   "
_LABEL: Final = "worker 0  "
_NOTE: Final = len("250 of 250")
"""Room for what is said of a worker: a bar that grew and shrank with it would be hard to read."""
_COLOURS: Final = ("cyan", "magenta", "yellow", "green")


@dataclass(slots=True)
class Scene:
    """One act, while it goes on and when it is over.

    Attributes:
        number: From 1.
        title: The action of the act.
        workers: Numbers of those who take part.
        timeline: The holders over time; None where there is nothing to hold.
        notes: The note about a worker just now.
        done: Of a worker who counts: how far it is, from 0 to 1.
        frozen: The meaning of a frozen worker, and of the mark at which something has happened to it.
        findings: The result, in sentences.
        facts: The same for machines.
        checks: The conditions that had to hold.
    """

    number: int
    title: str
    workers: Sequence[int]
    timeline: Timeline | None = None
    notes: dict[int, str] = field(default_factory=dict[int, str])
    done: dict[int, float] = field(default_factory=dict[int, float])
    frozen: tuple[str, str] | None = None
    findings: list[str] = field(default_factory=list[str])
    facts: dict[str, object] = field(default_factory=dict[str, object])
    checks: list[Check] = field(default_factory=list[Check])

    @property
    def over(self) -> bool:
        """Whether it has come to its end."""
        return bool(self.checks)

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.passed]

    def summary(self) -> Mapping[str, object]:
        """For machines."""
        return {
            "title": self.title,
            **self.facts,
            "checks": [{"text": str(check), "passed": check.passed} for check in self.checks],
        }

    def heading(self) -> Text:
        """Its first line."""
        return Text(f"{self.number}  {self.title}", style="bold")

    def body(self, *, width: int, glyphs: Glyphs) -> Iterator[Text]:
        """The lines below its heading."""
        # Bars of what is done say nothing any more when all is done.
        if self.timeline is not None or not self.over:
            yield from self._rows(width=width, glyphs=glyphs)
        for finding in self.findings:
            yield from _wrapped(_INDENT, finding, width)
        for check in self.checks:
            mark = f"{_INDENT}{glyphs.passed if check.passed else glyphs.failed} "
            for line in _wrapped(mark, str(check), width):
                line.stylize("green" if check.passed else "bold red")
                yield line

    def _rows(self, *, width: int, glyphs: Glyphs) -> Iterator[Text]:
        bar = max(10, width - len(_INDENT) - len(_LABEL) - _NOTE - 3)
        now = time.monotonic()
        for worker in self.workers:
            line = Text(f"{_INDENT}worker {worker}  ")
            if self.timeline is not None:
                drawn = self.timeline.row(worker, width=bar, now=now, glyphs=glyphs)
            else:
                drawn = (glyphs.holds[-1] * round(self.done.get(worker, 0.0) * bar)).ljust(bar)
            line.append(drawn, style=_COLOURS[(worker - 1) % len(_COLOURS)])
            if note := self.notes.get(worker):
                line.append(f"  {note}")
            line.rstrip()
            yield line
        if self.timeline is not None:
            legend = self._legend(self.timeline.seconds(now), glyphs)
            yield Text(f"{_INDENT}{' ' * len(_LABEL)}{legend}", style="dim")

    def _legend(self, seconds: float, glyphs: Glyphs) -> str:
        length = f"{seconds:.1f} s in all" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms of it"
        legend = [length, f"{glyphs.holds[-1]} holds"]
        if self.frozen is not None:
            frozen, event = self.frozen
            legend += [f"{glyphs.waits} waits", f"{glyphs.frozen} {frozen}", f"{glyphs.event} {event}"]
        return "   ".join(legend)


def _wrapped(first: str, text: str, width: int) -> Iterator[Text]:
    lines = textwrap.wrap(text, width - 1, initial_indent=first, subsequent_indent=" " * len(first))
    return map(Text, lines)

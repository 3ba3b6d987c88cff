"""The summary at the top of the page: in words that need no explanation, beside redis-py's `Lock`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import Report, Result
from .rows import NONE, PEER

_TOLD = "aiolocks tracking"


@dataclass(frozen=True, slots=True)
class _Line:
    """One thing that a reader wants to know.

    Attributes:
        text: It, with its unit.
        title: The title of the workload.
        figure: The key of the figure.
        ours: The contender that is what users get without a setting.
        scale: How many of the text's units one of the figure's is.
        digits: How many decimal places mean anything.
        more: Whether more is better.
    """

    text: str
    title: str
    figure: str
    ours: str = "aiolocks"
    scale: float = 1.0
    digits: int = 1
    more: bool = False

    def cells(self, result: Result | None) -> tuple[str, ...]:
        """Of one server: our figure, that of the peer, and how many times better ours is."""
        ours, peer = (
            None if result is None else result.median(contender, self.figure)
            for contender in (self.ours, PEER)
        )
        if ours is None:
            return (NONE, NONE, NONE)
        if peer is None:
            return (self._shown(ours), NONE, NONE)
        above, below = (ours, peer) if self.more else (peer, ours)
        times = "all" if below == 0 else f"{above / below:.2g}"
        return (self._shown(ours), self._shown(peer), times)

    def _shown(self, value: float) -> str:
        return f"{value * self.scale:.{self.digits}f}"


_LINES = (
    _Line("One task acquires and releases a free lock: ms", "alone", "cycle", scale=0.001, digits=2),
    _Line(
        "The same with `confirm=False`: ms", "alone", "cycle", "aiolocks, unconfirmed", scale=0.001, digits=2
    ),
    _Line(
        "200 tasks, each with a lock that nobody else wants: acquisitions a second, of all together",
        "many", "throughput", digits=0, more=True,
    ),
    _Line("Of that, processor time of the client for one: µs", "many", "client", digits=0),
    _Line(
        "The same, with a new lock object each time: acquisitions a second",
        "many-new", "throughput", digits=0, more=True,
    ),
    _Line(
        "200 tasks of one process need one lock, for 1 ms each: s until the last one is done, 0.2 at best",
        "drain", "seconds", digits=2,
    ),
    _Line("The same, 50 tasks in each of four processes: s", "drain-processes", "seconds", digits=2),
    _Line("One process releases, another one waits: ms until it is inside", "handover", "p50", _TOLD),
    _Line(
        "20 tasks of four processes, again and again: the share of the slowest, in % of the fastest",
        "fairness, 4 × 5", "evenness", _TOLD, scale=100, digits=0, more=True,
    ),
    _Line("The holder is killed: ms from the end of its lease until the next is inside", "crash", "after"),
    _Line(
        "A lease is lost: ms until the body that relies on it is cancelled", "loss, one deleted", "p50", _TOLD
    ),
    _Line("Waiting for one lock, for long: requests a second", "idle, 1 name", "requests", _TOLD),
    _Line("10 000 leases are held and renewed: % of one core", "held", "cpu"),
    _Line("Memory of a lease: KiB", "held", "resident"),
    _Line("Memory of a task that waits, with the task itself: KiB", "scale, 100 000 waiters", "resident"),
)  # fmt: skip


def lines(report: Report) -> Iterator[tuple[str, ...]]:
    """The headings, then a line for each figure that was measured; of each server three columns."""
    servers = sorted({result.server for result in report.results})
    yield ("", *(cell for server in servers for cell in (server, PEER, "times better")))
    for line in _LINES:
        of_servers = {result.server: result for result in report.by_title.get(line.title, ())}
        cells = [cell for server in servers for cell in line.cells(of_servers.get(server))]
        if set(cells) != {NONE}:
            yield (line.text, *cells)

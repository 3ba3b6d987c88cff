"""The targets, whether they were reached, and why not: always by the medians of one run on one server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .model import Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target, and what became of it on one server.

    Attributes:
        measured: The figure that is compared with the target; None if there is nothing to compare.
    """

    contender: str
    figure: str
    target: str
    measured: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure, or on its relation to that of somebody else.

    Attributes:
        text: As readers see it.
        figure: The figure's key.
        passes: Judges what was measured.
        relate: Makes of our figure and the reference's what is judged.
        reference: The contender to whose figure it is related; None for none.
        contenders: Those whose target it is; none for all who took part.
    """

    text: str
    figure: str
    passes: Callable[[float], bool]
    relate: Callable[[float, float], float]
    reference: str | None
    contenders: tuple[str, ...]

    def judge(self, result: Result) -> list[Verdict]:
        """One verdict for each whose target it is and who took part."""
        took_part = [standing.contender for standing in result.standings]
        return [self._judge(name, result) for name in self.contenders or took_part if name in took_part]

    def _judge(self, contender: str, result: Result) -> Verdict:
        ours = result.median(contender, self.figure)
        other = 1.0 if self.reference is None else result.median(self.reference, self.figure)
        measured = None if ours is None or other is None else self.relate(ours, other)
        met = None if measured is None else self.passes(measured)
        return Verdict(contender, self.figure, self.text, measured, met)


OURS = ("aiolocks",)


def at_most(
    bound: float, figure: str, text: str, *, of: str | None = None, contenders: tuple[str, ...] = OURS
) -> Target:
    """The figure, divided by the reference's, is at most this."""
    return Target(text, figure, lambda measured: measured <= bound, _quotient, of, contenders)


def at_least(
    bound: float, figure: str, text: str, *, of: str | None = None, contenders: tuple[str, ...] = OURS
) -> Target:
    """The figure, divided by the reference's, is at least this."""
    return Target(text, figure, lambda measured: measured >= bound, _quotient, of, contenders)


def faster(bound: float, figure: str, text: str, *, than: str, contenders: tuple[str, ...] = OURS) -> Target:
    """The reference takes at least `bound` times as long."""
    return Target(text, figure, lambda measured: measured >= bound, _speedup, than, contenders)


def above(bound: float, figure: str, text: str, *, of: str, contenders: tuple[str, ...] = OURS) -> Target:
    """The figure is more than the reference's by at most this."""
    return Target(text, figure, lambda measured: measured <= bound, _difference, of, contenders)


def _quotient(ours: float, other: float) -> float:
    return ours / other


def _speedup(ours: float, other: float) -> float:
    return other / ours


def _difference(ours: float, other: float) -> float:
    return ours - other


_TWO_CORES: Final = "All processes share two cores with the server, and a hand-over between them wakes one."
_PROFILE: Final = "About half of the time is that of the event loop, requests and replies: see `profile`."
_SERVER: Final = "A server that shares two cores with its clients stands still at times while a request runs."
_LEASE: Final = "A lease has a lock object, a token, a deadline and a renewal."

REASONS: Final[Mapping[tuple[str, str], str]] = {
    ("alone", "as fast as redis-py"): (
        "Both steps are scripts, which take the server longer than `SET`: see the row of the server."
    ),
    ("alone", "≤ 0.45 of redis-py's CPU"): _PROFILE,
    ("alone", "unconfirmed: ≥ 1.8 × as fast as redis-py"): (
        "The server executes both scripts, which take longer than `SET`, and the next acquire waits for both."
    ),
    ("alone", "unconfirmed: ≥ 1.45 × as fast as confirmed"): (
        "On the same machine a round trip is short, and the work of both steps stays."
    ),
    ("alone, 1 ms away", "unconfirmed: ≥ 1.9 × as fast as confirmed"): (
        "The work of both steps stays, and the proxy's is done in the same process."
    ),
    ("alone, two sessions", "unconfirmed: no slower than confirmed"): (
        "Two sessions of one process take turns in one event loop: the rounds differ by as much."
    ),
    ("many", "≤ 1/6.5 of redis-py's CPU"): _PROFILE,
    ("many-new", "≤ 1/5.5 of redis-py's CPU"): _PROFILE,
    ("cached", "owner inside: ≤ 1.15 × plain"): (
        "Medians of two processes on two cores differ by a tenth from run to run."
    ),
    ("drain", "≤ 1.05 × floor"): "The floor decides nothing and wakes no task.",
    ("drain", "≥ 20 × faster than redis-py"): (
        "redis-py asks each 0.1 s, and how often that meets a moment at which the lock is free differs from "
        "round to round."
    ),
    ("drain-processes", "≤ 1.1 × floor"): _TWO_CORES,
    ("handover", "≤ 1/50 of redis-py"): (
        "The median of redis-py is half of its interval of 100 ms, so that the target is one millisecond. "
        + _TWO_CORES
    ),
    ("redlock, alone", "≥ 1.4 × as fast as pottery"): (
        "One process packs and reads for five masters, with a fencing token, which pottery has not."
    ),
    ("redlock, 1 ms away", "as fast as pottery"): (
        "A second phase gives all masters one fencing token where the first did not."
    ),
    ("redlock, 1 ms away", "≤ 1.3 × one master"): (
        "One process packs and reads the requests of five masters, and is their proxy too."
    ),
    ("redlock, contended", "≥ 0.6 × one master"): (
        "Four processes and five masters share two cores, and each process packs and reads for all masters."
    ),
    ("redlock, contended", "≥ 0.9 × healthy"): "Nine processes share two cores: rounds differ by as much.",
    ("scale, 1 000 processes", "≤ 4 requests an acquisition"): (
        "Each of 999 processes that wait says again and again that it is alive, with one request more where "
        "pushes come by tracking."
    ),
    ("scale, 1 000 processes", "slowest ≥ 0.8 × fastest"): (
        "Processes take turns, but in no strict order: a process that comes at the right moment need not "
        "wait. A `FairLock` has an order."
    ),
    ("held", "≤ 2.5 % of one core"): "The target is 8 µs for each of 3 000 renewals a second.",
    ("held", "≤ 2.5 KiB a lease, allocated"): _LEASE,
    ("held", "≤ 2.5 KiB a lease, resident"): (
        f"{_LEASE} Python keeps what it needed while the leases were acquired."
    ),
    ("servers", "10 000 leases: ≤ 1 ms"): _SERVER,
    ("servers", "1 000 waiters: ≤ 1 ms"): _SERVER,
    ("servers", "full tracking table: ≤ 1 ms"): _SERVER,
    ("fairness, 4 × 5", "≥ 0.9 × redis-py, which is not fair"): (
        "Turns go from process to process, while the fastest task of redis-py goes on by itself."
    ),
    ("ratelimit", "≤ 12 µs of the server"): (
        "The script also keeps who waits, and knows a request that is sent twice: see the row of the "
        "smallest script."
    ),
    ("handover", "≤ 1.8 × floor"): _TWO_CORES,
    ("leadership", "≤ 1.8 × floor"): _TWO_CORES,
    ("limits", "≤ 2: the one that is inside or was called, and one turn"): (
        "It is the most of 100 waits: one that the machine interrupts sees one grant more."
    ),
    ("import", "≤ 30 ms above import redis.asyncio"): (
        "What a lock and a session need is imported at once, the other kinds when they are first used."
    ),
    ("jobs, 200 callers", "all served within the run and 3 round trips"): (
        f"Three processes are told by a push that the result is there. {_TWO_CORES}"
    ),
    ("cluster, many", "≥ one server / 1.15"): (
        "One write and one read for one server are three of each for three nodes, and all share two cores."
    ),
    ("cluster, handover", "≤ 1.15 × one server"): (
        "Three nodes, which talk to each other, share two cores with both processes."
    ),
}
"""Why a target is missed, if it is, by the workload and the text of the target: for the page."""

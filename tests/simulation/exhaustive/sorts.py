"""The kinds whose steps are walked: their commands, and what excludes what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aiolocks.kinds.permits import PermitSteps
from aiolocks.kinds.spans import Span, SpanSteps
from aiolocks.lock.lease import SIMPLE, QueuePolicy
from aiolocks.transport.steps.lock import LockSteps

RETENTION_MS = 3_600_000


class Sort(NamedTuple):
    """One kind of lock, as a number of clients want it.

    Attributes:
        commands: Those of a client, by its number and the id of its session.
        policy: How those of one session stand to each other.
        free: Whether a client of that number could have it beside those who hold it.
        in_order: First come, first served.
        kept: Roles of keys that stay for a while when nobody wants it any more.
    """

    commands: Callable[[int, str], Any]
    policy: QueuePolicy
    free: Callable[[int, list[int]], bool]
    in_order: bool = False
    kept: tuple[bytes, ...] = (b"fence",)


def _lock(number: int, session: str) -> LockSteps:
    return LockSteps("p", "n", retention_ms=RETENTION_MS, session=session)


def _permits(kind: str, value: int | None, *, fair: bool) -> Callable[[int, str], PermitSteps]:
    return lambda number, session: PermitSteps(
        "p", kind, "n", permits=1, value=value, fair=fair, retention_ms=RETENTION_MS, session=session
    )


MODES = "rwr"
"""The modes that the clients of a reader-writer lock want, by number."""


def _rwlock(modes: str) -> Callable[[int, str], SpanSteps]:
    return lambda number, session: SpanSteps(
        "p",
        "rwlock",
        "n",
        Span(modes[number], "-inf", "inf"),
        label="RWLock",
        retention_ms=RETENTION_MS,
        longest_sleep_ms=500,
        session=session,
    )


def _manner(modes: str) -> QueuePolicy:
    return QueuePolicy(together="r" in modes)


def _one(number: int, held_by: list[int]) -> bool:
    return not held_by


def _beside(modes: str) -> Callable[[int, list[int]], bool]:
    def free(number: int, held_by: list[int]) -> bool:
        return not any(
            "w" in (modes[number], modes[other]) or modes[number] == modes[other] == "u" for other in held_by
        )

    return free


SORTS: dict[str, Sort] = {
    "lock": Sort(_lock, SIMPLE, _one),
    "fairlock": Sort(
        _permits("fairlock", None, fair=True),
        QueuePolicy(exclusive=True, strict=True),
        _one,
        in_order=True,
    ),
    "semaphore": Sort(
        _permits("semaphore", 2, fair=False),
        QueuePolicy(),
        lambda number, held_by: len(held_by) < 2,
        kept=(b"fence", b"value"),
    ),
    "rwlock": Sort(_rwlock("rwr"), _manner("rwr"), _beside("rwr")),
    "rwlock, writers": Sort(_rwlock("wwr"), QueuePolicy(), _beside("wwr")),
    "rwlock, upgradables": Sort(_rwlock("uur"), QueuePolicy(), _beside("uur")),
    "rwlock, phases": Sort(_rwlock("uwr"), QueuePolicy(), _beside("uwr")),
}

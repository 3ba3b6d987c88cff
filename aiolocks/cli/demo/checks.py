"""The conditions for the demo to succeed: functions of what was seen, without any I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

SLACK: Final = 1.0
"""Seconds that a loaded machine may take for what takes milliseconds."""
CLOCK_STEP: Final = 0.01
"""Seconds by which the server's wall clock and our monotonic clock may drift apart within one ttl."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Check:
    """One statement.

    Attributes:
        text: The condition that should hold.
        passed: Whether it was.
        seen: The state that was found instead, if it did not hold.
    """

    text: str
    passed: bool
    seen: str = ""

    def __str__(self) -> str:
        return self.text if self.passed else f"{self.text} - but {self.seen}"


def lossy(counter: int, expected: int) -> Check:
    """Without a lock, processes overwrite each other's updates."""
    return Check("without a lock, updates are lost", 0 < counter < expected, f"the counter is {counter}")


def exact(counter: int, expected: int) -> Check:
    """With the lock, none is lost."""
    return Check(f"with the lock, the counter is exactly {expected}", counter == expected, f"it is {counter}")


def rising(tokens: Sequence[int], expected: int) -> Check:
    """Fencing tokens, in the order in which their holders entered."""
    text = f"the {expected} fencing tokens strictly rise, in the order of entry"
    if len(tokens) != expected:
        return Check(text, False, f"there are {len(tokens)}")  # noqa: FBT003 - it stands beside its text
    at = next((at for at, (one, later) in enumerate(pairwise(tokens)) if one >= later), None)
    seen = "" if at is None else f"entry {at + 1} had {tokens[at]} and entry {at + 2} {tokens[at + 1]}"
    return Check(text, at is None, seen)


def alone(holds: Sequence[Interval]) -> Check:
    """Holds of all processes: seconds of the one monotonic clock that they share."""
    overlaps = [later[0] for one, later in pairwise(sorted(holds)) if later[0] < one[1]]
    return Check(
        "no two holders were inside at the same time",
        not overlaps,
        f"{len(overlaps)} entered while another was inside",
    )


def patient(asked: float, ttl: float, entered: float) -> Check:
    """A lease is respected for as long as it lasts, counted from when it was asked for."""
    return Check(
        "nobody entered before the lease of the other had ended",
        entered >= asked + ttl - CLOCK_STEP,
        f"it was entered {entered - asked:.3f} s after a lease of {ttl:g} s had been asked for",
    )


def prompt(ended: float, ttl: float, entered: float) -> Check:
    """The last renewal was before `ended`, when the holder stopped living."""
    return Check(
        f"the next one entered within the ttl of {ttl:g} s", entered - ended <= ttl + SLACK,
        f"it took {entered - ended:.3f} s",
    )  # fmt: skip


def larger(earlier: int, later: int) -> Check:
    """One fencing token after another."""
    return Check(
        "its fencing token is larger than that of the holder before",
        earlier < later,
        f"{earlier}, then {later}",
    )


def fenced(*, first: bool, successor: bool, late: bool, value: bytes | None, expected: str) -> list[Check]:
    """Which writes the store took, and what it holds in the end."""
    return [
        Check("both wrote while they held the lock", first and successor, "the store refused one"),
        Check(
            "the late write was refused, because of its older fencing token", not late, "the store took it"
        ),
        Check(f"the store still says {expected!r}", value == expected.encode(), f"it says {value!r}"),
    ]


def told(*, cancelled: bool, error: str | None) -> Check:
    """How the holder that was late learnt of it."""
    return Check(
        "the late holder's body was cancelled, with LockLostError",
        cancelled and error == "LockLostError",
        f"{'it was cancelled' if cancelled else 'it was not cancelled'}, with {error or 'no error'}",
    )

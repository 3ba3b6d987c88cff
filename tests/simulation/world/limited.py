"""Limits in a schedule: which keys a task wants, and what must hold between the lines of waiters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from aiolocks import Limits, Session
from tests.support.history import Hold, Violation

CAPS = {"all": 2, "a": 3, "b": 1, "c": 1}
CALL_LASTS = 2.0
"""Seconds that a waiter has to come once it was called, by the server's clock."""
TENANTS = ("a", "a", "a", "a", "b", "c", "")
"""Of which tenant a task is: one of them is noisy, and some tasks want a permit of the total only."""


def keys_of(rng: random.Random) -> tuple[str, ...]:
    """The keys that one task wants."""
    tenant = rng.choice(TENANTS)
    return ("all", tenant) if tenant else ("all",)


def limits(session: Session, want: Any, **options: Any) -> Limits:
    """The limits that a task acquires."""
    return Limits(session, want.names[0], {one: CAPS[one] for one in want.keys}, **options)


def too_many(wanted: Iterable[tuple[str, ...]]) -> str:
    """Says which key has more holders than its cap; empty where none has."""
    out: dict[str, int] = {}
    for keys in wanted:
        for one in keys:
            out[one] = out.get(one, 0) + 1
    return ", ".join(
        f"{number} permits of {one} out of {CAPS[one]}" for one, number in out.items() if number > CAPS[one]
    )


class Turns:
    """The turns of lines as a server saw them, by the requests in a trace.

    Attributes:
        granted: When it let each token in.
        released: When it heard first that each token was let go of.
    """

    def __init__(self, requests: Iterable[tuple[float, str, list[str], list[str], list[Any]]]) -> None:
        self.granted: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self._bell: dict[str, str] = {}  # of a token
        self._rung: dict[str, list[float]] = {}  # by bell
        self._asked: dict[str, list[float]] = {}  # by bell
        self._ended: dict[str, list[tuple[float, str]]] = {}  # by line: a token was let in, or has left
        for when, script, keys, arguments, reply in requests:
            token, bell = arguments[0], keys[5]
            self._bell.setdefault(token, bell)
            self._asked.setdefault(bell, []).append(when)
            for one in _bells(reply, *([bell] if script == "limits_acquire" and "q" in arguments[6] else [])):
                self._rung.setdefault(one, []).append(when)
            if script == "permits_release" or reply[0] == 1:
                self._ended.setdefault(_line_of(bell), []).append((when, token))
            if script == "limits_acquire" and reply[0] == 1:
                self.granted.setdefault(token, when)
            if script == "permits_release":
                self.released.setdefault(token, when)

    def line(self, token: str) -> str:
        """The line of a token, with the name."""
        return _line_of(self._bell[token])

    def begun(self, token: str, queued: float, seen: Mapping[str, float]) -> float:
        """When the line of this waiter last had a turn for a waiter before it, also for one that gave up."""
        line, own, at = self.line(token), self._bell[token], self.granted[token]
        ended = [
            when
            for when, other in self._ended.get(line, ())
            if when < at and other != token and seen.get(other[:16], queued) <= queued
        ]
        called = [
            self._call_ended(bell, when)
            for bell, times in self._rung.items()
            if bell != own and _line_of(bell) == line
            for when in times
            if when < at
        ]
        return max([queued, *ended, *called])

    def _call_ended(self, bell: str, when: float) -> float:
        """Until when what it was called for was kept: a session that asks no more was killed."""
        end = when + CALL_LASTS
        return when if any(when < at <= end for at in self._asked.get(bell, ())) else end

    def called(self, token: str, begun: float) -> float:
        """When it was called: its permits are kept for it from then on."""
        at = self.granted[token]
        return min((when for when in self._rung.get(self._bell[token], ()) if begun <= when < at), default=at)


def _line_of(bell: str) -> str:
    """The line and the name; between them and the role stands the session."""
    return bell.partition(".bell.")[2].partition(".")[2]


def _bells(reply: Any, *hung: str) -> list[str]:
    """The bells that were rung in that step; `hung`: one of these was hung up again by its own waiter."""
    told = [one.decode(errors="replace") for one in reply if isinstance(one, bytes) and b".bell." in one]
    for one in hung if reply[0] == 0 else ():
        if one in told:
            told.remove(one)
    return told


def turns(
    holds: Mapping[Hold, tuple[str, ...]], tokens: Mapping[Hold, str], seen: Mapping[str, float], on: Turns
) -> list[Violation]:
    """Find waiters before which another line had more than its turn; times of the server.

    Counted from when the first waiter of a line is seated and no key of its own is full, until it is called:
    each other line may have been called as often as there are permits in all before that, and once after.
    """
    found: list[Violation] = []
    for hold, keys in holds.items():
        if hold.queued is None or len(keys) != 3:  # its name, the total and a tenant
            continue
        line = [one for one, others in holds.items() if others == keys and one is not hold]
        token = tokens[hold]
        if token not in on.granted or any(one.queued is None for one in line):
            continue
        begun = max(on.begun(token, hold.queued, seen), _room(hold, {one: tokens[one] for one in line}, on))
        called = on.called(token, begun)
        for other in {others for others in holds.values() if others != keys}:
            had = [
                one
                for one, others in holds.items()
                if others == other and begun < on.granted.get(tokens[one], -math.inf) < called
            ]
            if len(had) > CAPS["all"] + 1:
                found.append(Violation(f"a line had {len(had)} turns in a row", (*had, hold)))
    return found


def _room(hold: Hold, line: Mapping[Hold, str], on: Turns) -> float:
    """When its own key had room again before it was granted.

    A release calls the next one at once. So it counts from when the server heard of it, and not from when the
    holder knew that.
    """
    ends = [
        min(on.released.get(token, one.confirmed), hold.granted)
        for one, token in line.items()
        if one.granted < hold.granted
    ]
    return max(ends, default=-math.inf)

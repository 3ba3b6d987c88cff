"""Schedules: each process keeps the same one for a while, and a ledger says what must not have been."""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from aiolocks import Schedule, Session, Tick

from .checkers import Referee
from .excuses import Excused
from .schedule import Round

POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"overlap": "skip", "misfire": "latest"},
    {"overlap": "allow", "misfire": "latest"},
    {"overlap": "queue", "misfire": "all", "redo": 1},
    {"overlap": "allow", "misfire": "all", "redo": 2},
    {"overlap": "queue", "misfire": "skip", "redo": 1},
)

_CHANGED: Final = {0.4: 0.599, 1.0: 1.499}
"""Seconds between two ticks after the change. Of nearly all due times, they say of which definition it is."""
_HICCUP: Final = 1.1
"""Seconds for which the register waits for a late claim of such ticks, with the jitter."""


@dataclass(eq=False)
class Ran:
    """One run of a tick; `due` in milliseconds by the server's clock, the others times of the world.

    Attributes:
        every: The definition of the schedule: seconds between two ticks.
        due_at: When it was due.
    """

    who: str
    every: float
    due: int
    attempt: int
    fencing_token: int
    due_at: float
    began: float
    over: float = inf


class Ticks:
    """The runs of all processes, by one policy; in one of two worlds, a deployment changes the schedule.

    Then some processes keep the schedule with other times than the others, beside them, before or after.
    """

    def __init__(self, referee: Referee, rng: random.Random, *, travel: float) -> None:
        self._referee = referee
        self._travel = travel
        changes = random.Random(zlib.crc32(repr(rng.getstate()).encode()))  # the draws of all others stay
        every: float = rng.choice((0.4, 1.0))
        self._definitions = (every, _CHANGED[every]) if changes.random() < 0.5 else (every, every)
        self._policy = {**rng.choice(POLICIES), "jitter": rng.choice((0.0, 0.0, 0.1))}
        self._seconds: float = rng.choice((0.0, 0.1, 0.7))
        self._ran: list[Ran] = []
        self._kept: list[tuple[float, float, str, float]] = []  # from when to when, by whom, and every
        self._keeping: dict[float, int] = {}  # how many tasks keep it now, by its definition
        self._left: dict[float, float] = {}  # when the last of them left
        self._new_since: dict[float, float] = {}  # when a definition began, or came back after another one

    async def keep(self, session: Session, one: Round, ttl: float) -> None:
        """Keeps the schedule for a while; the last to come, until a tick is run."""
        referee, began = self._referee, self._referee.now
        every = self._definitions[int(one.part.partition(".")[0].removeprefix("p")) % 2]
        schedule = Schedule(session, "x", every=every, ttl=ttl, **self._policy)

        @schedule
        async def job(tick: Tick) -> None:
            await self._run(one.part, tick)

        self._arrives(every)
        try:
            async with schedule:
                await asyncio.sleep(0.3 + 2 * one.hold)
                while one.part.endswith(".end") and not any(ran.began > began for ran in self._ran):
                    await asyncio.sleep(0.05)
        finally:
            self._keeping[every] -= 1
            self._left[every] = referee.now
        self._kept.append((began, referee.now, one.part, every))

    def _arrives(self, every: float) -> None:
        """One comes that keeps it with these times: they are new, if others have taken their place."""
        now = self._referee.now
        left = self._left.get(every, -inf)
        waited_for = left + every + _HICCUP + self._travel
        others = [one for one in self._keeping if one != every]
        # A task that keeps it with other times, or has until then, has asked since.
        replaced = any(self._keeping[one] or self._left[one] > waited_for for one in others)
        if not self._keeping.get(every) and (left == -inf or (now > waited_for and replaced)):
            self._new_since[every] = now
        self._keeping[every] = self._keeping.get(every, 0) + 1

    async def _run(self, who: str, tick: Tick) -> None:
        referee, due = self._referee, round(tick.due.timestamp() * 1000)
        every, *also = self._whose(due)
        now, early = referee.now, due - tick.fencing_token / 1000
        if now + early / 1000 < self._new_since[every] and tick.attempt == 1 and not referee.excuses.any:
            referee.wrong(f"{who} runs the tick of {due}, from before its definition")
        referee.tell(who, f"runs the tick of {due}, attempt {tick.attempt}, {tick.missed} missed")
        if early > 0:
            referee.wrong(f"{who} runs the tick of {due} {early:.0f} ms before it is due")
        for ran in self._ran:
            # Two that may run beside each other may begin in the other order than they were granted.
            beside = self._policy["overlap"] == "allow" or self._was_lost(ran)
            if tick.fencing_token <= ran.fencing_token and not beside:
                referee.wrong(f"{who} has the fencing token {tick.fencing_token}, after {ran.fencing_token}")
            again = ran.due == due and not also and (ran.attempt >= tick.attempt or ran.over == inf)
            beside = ran.over == inf and self._policy["overlap"] != "allow"
            if (again or beside) and not self._excused(ran, who):
                what = f"runs the tick of {due} again" if again else "runs a tick"
                referee.wrong(f"{who} {what}, after {ran.who} or beside it")
        ran = Ran(who, every, due, tick.attempt, tick.fencing_token, now + early / 1000, now)
        self._ran.append(ran)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            ran.over = referee.now

    def _whose(self, due: int) -> list[float]:
        """The definitions that have a tick at that time."""
        return [one for one in dict.fromkeys(self._definitions) if due % round(one * 1000) == 0]

    def died(self, process: str) -> None:
        """Its runs are over."""
        for ran in self._ran:
            if ran.who.partition(".")[0] == process:
                ran.over = min(ran.over, self._referee.now)

    def _excused(self, ran: Ran, who: str) -> bool:
        excuses, now = self._referee.excuses, self._referee.now
        return any(excuses.explain(Excused.LEASE, one, ran.began, now) for one in (ran.who, who))

    def _was_lost(self, ran: Ran) -> bool:
        """Whether a server has lost its lease with its data: another run may have begun beside it."""
        return self._referee.excuses.explain(Excused.LEASE, "", ran.began, self._referee.now)

    def rise(self, granted: list[tuple[str, int]]) -> None:
        """Fencing tokens rise in the order in which a server grants ticks, whatever it has lost."""
        newest = ("", 0)
        for token, minted in granted:
            if minted < newest[1] or (minted == newest[1] and token != newest[0]):
                self._referee.wrong(f"a tick is granted with the fencing token {minted}, after {newest[1]}")
            newest = max(newest, (token, minted), key=lambda one: one[1])

    def judge(self) -> None:
        """Without a fault, each tick was run that was due while a process kept the schedule all along.

        Without `redo`, a claim that is taken back by a process that leaves comes too late for the others.
        """
        if self._referee.excuses.any or not self._policy.get("redo") or len(self._ran) < 2:
            return
        if self._policy["misfire"] == "skip" and self._policy["overlap"] == "queue":
            return  # one that waits for too long is left out
        if self._policy["overlap"] == "queue" and len({*self._definitions}) > 1:
            return  # the runs of one definition may leave no room for those of the other
        for every in dict.fromkeys(self._definitions):
            self._judge([ran for ran in self._ran if ran.every == every], every)

    def _judge(self, runs: list[Ran], every: float) -> None:
        """The ticks of one definition, of which each was run while a process kept it."""
        if not runs:
            return
        ran = {one.due for one in runs}
        first = min(runs, key=lambda one: one.due)
        for due in range(first.due, max(ran), round(every * 1000)):
            due_at = first.due_at + (due - first.due) / 1000
            slack = self._travel + every
            for began, ended, who, theirs in (
                self._kept if due not in ran and len(self._whose(due)) == 1 else ()
            ):
                if theirs == every and began + slack < due_at < ended - slack:
                    self._referee.wrong(f"nobody ran the tick of {due}, though {who} was there")

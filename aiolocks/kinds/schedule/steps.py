"""The steps of a schedule: its ticks are claimed in a register, and each run of one is a lease."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, final

from ...transport.answers import Answer, Granted, Refused, Released, released, truth
from ...transport.commands.base import NO_SEAT, SEAT_LENGTH
from ...transport.commands.family import Family, Kind, Step
from ...transport.commands.listening import Listener
from ...transport.commands.snapshots import NO_CONTENT, Content, Snapshot
from ...transport.keys import key
from ...transport.request import Argument, Request, Script
from ..permits import (
    FORCE_PERMITS,
    NEEDS,
    RENEW,
    RUN_ADOPT,
    RUN_ANNOTATE,
    RUN_LOCKED,
    RUN_OWNED,
    SHARED,
    RunSteps,
    read_permits,
)

_CLAIM: Final = Script("schedule_claim", *SHARED, "ticks", "claims")
_TRIGGER: Final = Script("schedule_trigger", *SHARED, "ticks", "claims")
_RELEASE: Final = Script("schedule_release", *SHARED, "ticks", frees=True)
_READ: Final = Script("schedule_read", moves=True)

_KIND: Final = "schedule"


def read_schedule(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs of a schedule, which are kept as permits are."""
    return read_permits(now_us, {**found, "value": NO_CONTENT})


TICKS: Final = Family(
    keys="leases register fence queue bell history",
    values="none fair lasting noseat",
    renew=Step(RENEW, "token ttl retention lasting noseat", truth, keys=6),
    adopt=RUN_ADOPT,
    annotate=RUN_ANNOTATE,
    owned=RUN_OWNED,
    locked=RUN_LOCKED,
    roles="leases",
    read=read_schedule,
    passive="fence register history",
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    # There is no such key as `value`: what is freed is the run, and never the register.
    forced="leases queue value fence",
)
KINDS: Final = (Kind(TICKS, _KIND, "Schedule", lasting=True, needs=NEEDS),)

Why = Literal["early", "taken", "busy", "skipped", "late", "new", "other", "gone"]
_WHY: Final[dict[bytes, Why]] = {
    b"e": "early",
    b"t": "taken",
    b"b": "busy",
    b"s": "skipped",
    b"l": "late",
    b"n": "new",
    b"o": "other",
    b"g": "gone",
}


@final
class Ask(NamedTuple):
    """One claim of a tick. Times are milliseconds since 1970, in UTC; durations are milliseconds.

    Attributes:
        due: Due time of the tick; None for a run out of turn.
        known: The newest tick that the asker knows to be claimed.
        before: The tick before the one that is due.
        flags: `s` skipped if another run goes on, `q` waits for it, `w` only if it is the next one, `f` also
            if it is the first of all.
        redo: How often a run that was lost or stopped is run again.
        gap: Time from this tick to the next.
        lasting: For how long the register is kept after its last use.
        latest: Latest moment to begin the tick at; None for any.
        in_time: For how long after its due time the tick is run although the register is gone.
        definition: A name for the times of the schedule.
        again: When the next claim will be made, of the tick after this one.
    """

    due: int | None
    known: int | None = None
    before: int = 0
    flags: str = ""
    redo: int = 0
    gap: int = 0
    lasting: int = 0
    latest: int | None = None
    in_time: int = 0
    definition: str = ""
    again: int = 0


@final
class Claimed(NamedTuple):
    """The tick is the token's.

    Attributes:
        due: Its due time; None for a run out of turn.
        before: The tick that was claimed before it, by any process.
        attempt: 1 for the first run of the tick, more for one that was lost before.
        now_us: The server's time, microseconds.
    """

    due: int | None
    before: int | None
    attempt: int
    now_us: int


@final
class NotClaimed(NamedTuple):
    """The tick is not the asker's.

    Attributes:
        why: `gone`: the run was granted to this very token before, and its lease has ended.
        claimed: The newest tick that is claimed; None if there is none.
        ends_in: Milliseconds until a run that goes on may end; None while none goes on.
        now_us: The server's time, microseconds.
    """

    why: Why
    claimed: int | None
    ends_in: int | None
    now_us: int


@final
class TickSteps(RunSteps):
    """The steps by which one tick is claimed, and its run held.

    Attributes:
        reply: The last answer of the server about the claim; None before.
        lost: The records of the runs that the claim has found lost.
        token: The token of the last claim; empty before.
        outcome: The outcome to record when the run ends; empty while nothing has been run.
        detail: Further details of that, in words.
    """

    __slots__ = ("_ask", "_values", "bell", "detail", "lost", "outcome", "reply", "token")

    family = TICKS

    def __init__(self, prefix: str, name: str, ask: Ask, *, retention_ms: int, session: str) -> None:
        super().__init__(retention_ms)
        self._ask = ask
        self._values = ("", "", ask.lasting, NO_SEAT)
        self.reply: Claimed | NotClaimed | None = None
        self.lost: list[bytes] = []
        self.token = ""
        self.outcome = ""
        self.detail = ""
        # No session waits in a queue for a tick, but the steps of permits have a place for its two keys.
        self.bell = key(prefix, _KIND, name, f"bell.{session}")
        self._keys = tuple(
            self.bell if role == "bell" else key(prefix, _KIND, name, role) for role in ("", *TICKS.keys)
        )

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], deadlines=self._keys[:1])

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        ask, self.token = self._ask, token
        args: tuple[Argument, ...] = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            ask.lasting,
            ask.flags,
            ask.redo,
        )
        if ask.due is None:
            return Request(_TRIGGER, self._keys, args, self._answer, lane=token)
        times = (ask.due, _or_empty(ask.known), ask.before, ask.gap, _or_empty(ask.latest), ask.in_time)
        args = (*args, *times, ask.definition, ask.again)
        return Request(_CLAIM, self._keys, args, self._answer, lane=token)

    def _answer(self, raw: Any) -> Answer:
        if raw[0]:
            _, minted, due, before, attempt, now_us, *self.lost = raw
            self.reply = Claimed(_or_none(due), _or_none(before), int(attempt), int(now_us))
            return Granted(int(minted), 0)
        _, why, claimed, ends_in, now_us, *self.lost = raw
        left = None if ends_in < 0 else int(ends_in)
        self.reply = NotClaimed(_WHY[why], _or_none(claimed), left, int(now_us))
        return Refused(left)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        ask = self._ask
        detail = json.dumps(self.detail)
        args = (token, self._retention(ttl_ms), self.outcome, detail, ask.redo, ask.definition)
        return Request(_RELEASE, self._keys, args, released, lane=token)


@final
class Read(NamedTuple):
    """The content of the register.

    Attributes:
        now_us: The server's time, microseconds.
        claimed: The newest tick that is claimed; None if there is none.
        runs: The facts of each run that has begun and not ended: `state:due:attempt:before:fencing
            token:holder`, by its token.
        living: The tokens that have a lease.
        records: Of the runs that have ended, the newest last: JSON arrays.
    """

    now_us: int
    claimed: int | None
    runs: dict[bytes, bytes]
    living: frozenset[bytes]
    records: list[bytes]


def reading(prefix: str, name: str, *, records: int) -> Request[Read]:
    """Reads the register and as many `records`; with 0 of them, hardly more than the server's time."""
    roles = ("", "register", "history")
    return Request(_READ, tuple(key(prefix, _KIND, name, role) for role in roles), (records,), _read)


def _read(raw: Any) -> Read:
    now_us, claimed, runs, living, records = raw
    pairs = dict(zip(runs[::2], runs[1::2], strict=True))
    return Read(int(now_us), _or_none(claimed), pairs, frozenset(living), records)


@final
class Times(NamedTuple):
    """The times of a schedule, `cron` or `every`, as the register has them: milliseconds since 1970.

    Attributes:
        definition: A name for the times.
        claimed: The newest tick that is claimed.
        asked: When a process asked for a tick last.
        expected: Until when a process must ask again, or none keeps the schedule.
        next: When the next tick will be claimed; None where the register does not say.
    """

    definition: str
    claimed: int
    asked: int
    expected: int
    next: int | None


def times(prefix: str, name: str) -> Request[list[Times]]:
    """Reads which times a schedule has; the times for which a process has asked last come first."""
    register = key(prefix, _KIND, name, "register")
    return Request(None, (register,), ("HGETALL", register), _times, lane=register.decode())


def _times(raw: Any) -> list[Times]:
    fields: dict[bytes, bytes] = dict(raw if hasattr(raw, "items") else zip(raw[::2], raw[1::2], strict=True))
    found: list[Times] = []
    for field, slot in fields.items():
        head, _, definition = field.partition(b":")
        if head == b"claimed" and definition:
            claimed, asked, expected = map(int, slot.split(b":"))
            following = fields.get(b"next:" + definition)
            found.append(
                Times(
                    definition.decode(),
                    claimed,
                    asked,
                    expected,
                    None if following is None else int(following),
                )
            )
    return sorted(found, key=lambda one: one.asked, reverse=True)


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def _or_none(text: bytes) -> int | None:
    return int(text) if text else None

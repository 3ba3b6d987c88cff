"""The tick that a job is given, and the records of the history."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, final

from ...lock.lease import Lease
from .dues import Dues, between
from .steps import Read

Outcome = Literal["running", "done", "failed", "timeout", "stopped", "lost", "skipped", "missed"]

_SKIPPED: Final = "skipped"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One run of a schedule, as its job sees it.

    Attributes:
        name: Name of the schedule.
        due: When it was due, in the time zone of the schedule; for `trigger`, when the run began. Take dates
            and periods from this field, because the clock of the machine may be wrong.
        fencing_token: Larger than the token of every earlier run, for a store that refuses late writes.
        missed: How many ticks were due between this one and the last claimed one, and were not run; at most
            10 000 are counted, and none from before a change of the schedule.
        attempt: 1 for the first run of this tick, more if earlier ones were lost or stopped (`redo`); 0 for
            `trigger`.
        lease: The lease of the run: `ensure_held()`, `remaining()`, `annotate()`.
    """

    name: str
    due: dt.datetime
    fencing_token: int
    missed: int
    attempt: int
    lease: Lease = field(repr=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """One run in the history of a schedule. All times are by the server's clock.

    Attributes:
        outcome: `"running"`. `"done"`. `"failed"`: the job raised. `"timeout"`: it was cancelled after
            `at_most`. `"stopped"`: its process was shut down. `"lost"`: its process died, froze or was cut
            off. `"skipped"`: another run was going on (`overlap="skip"`), and this one never began.
            `"missed"`: no process has claimed it in time.
        due: When the tick was due; None for a run by `trigger`.
        began: When the run began; of a tick without a run, when it was skipped, or due.
        ended: When it ended; None while it goes on, and if this is unknown (`"lost"`).
        duration: Seconds from `began` to `ended`, up to now while it goes on; None if this is unknown.
        attempt: As in `Tick`.
        missed: As in `Tick`, for the times of the schedule that is asked; 0 for a run from before a change of
            the schedule. For `"skipped"` and `"missed"`: how many ticks before it were, in a row.
        fencing_token: As in `Tick`; 0 for `"skipped"` and `"missed"`.
        error: For `"failed"`: the type and text of the exception.
        host: Name of the machine that ran it; None if none did.
        pid: Process id on that machine.
        metadata: The metadata of the user: of the session and of the schedule.
    """

    outcome: Outcome
    due: dt.datetime | None
    began: dt.datetime
    ended: dt.datetime | None
    duration: float | None
    attempt: int
    missed: int
    fencing_token: int
    error: str = ""
    host: str | None = None
    pid: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def history(read: Read, dues: Dues | None, zone: dt.tzinfo) -> list[TickRecord]:
    """The runs that go on and the runs that have ended; the run that began last comes first.

    Without `dues`, it cannot tell how many ticks were missed, and says 0.
    """
    found = [_unended(token, run, read) for token, run in read.runs.items()]
    found += [json.loads(record) for record in read.records]
    records = [_record(fields, read.now_us // 1000, dues, zone) for fields in found]
    if dues is not None:
        records += [
            _missed(record, dues, zone) for record in records if record.missed and record.attempt == 1
        ]
    return sorted(records, key=lambda record: (record.began, record.fencing_token), reverse=True)


def _missed(after: TickRecord, dues: Dues, zone: dt.tzinfo) -> TickRecord:
    """Of the ticks that were missed before this one, the last: it stands for all."""
    assert after.due is not None
    due = at(dues.latest(round(after.due.timestamp() * 1000) - 1), zone)
    return TickRecord(
        outcome="missed",
        due=due,
        began=due,
        ended=None,
        duration=None,
        attempt=0,
        missed=after.missed - 1,
        fencing_token=0,
    )


def lost_run(record: bytes, zone: dt.tzinfo) -> TickRecord:
    """A run that a claim has found lost."""
    return _record(json.loads(record), 0, None, zone)


def _unended(token: bytes, run: bytes, read: Read) -> list[Any]:
    state, due, attempt, before, minted, holder = run.split(b":", 5)
    outcome = "running" if token in read.living else "stopped" if state == b"stopped" else "lost"
    began = int(minted) // 1000
    return [
        outcome,
        int(due),
        int(before or 0),
        began,
        None,
        int(attempt),
        int(minted),
        "",
        json.loads(holder),
    ]


def _record(fields: list[Any], now: int, dues: Dues | None, zone: dt.tzinfo) -> TickRecord:
    outcome, due, before, began, ended, attempt, minted, detail, holder = fields
    until = now if outcome == "running" else ended
    duration = None if until is None or outcome == _SKIPPED else max(0, until - began) / 1000
    described: dict[str, Any] = holder or {}
    in_turn = attempt > 0 or outcome == _SKIPPED
    # None for a tick of other due times, from before a change of the schedule. Version 0.2 does not say of
    # which it was.
    own = dues if dues is None or described.get("definition", dues.definition) == dues.definition else None
    return TickRecord(
        outcome=outcome,
        due=at(due, zone) if in_turn else None,
        began=at(began, zone),
        ended=None if ended is None else at(ended, zone),
        duration=duration,
        attempt=attempt,
        missed=between(own, before, due) if own is not None and before and in_turn else 0,
        fencing_token=minted,
        error=detail,
        host=described.get("host"),
        pid=described.get("pid"),
        metadata=MappingProxyType(described.get("user", {})),
    )


def at(moment: int, zone: dt.tzinfo) -> dt.datetime:
    """That moment, in milliseconds since 1970, in a time zone."""
    return (
        dt.datetime.fromtimestamp(moment // 1000, dt.UTC) + dt.timedelta(milliseconds=moment % 1000)
    ).astimezone(zone)

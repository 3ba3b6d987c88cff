"""What the server keeps of schedules and leaderships, also while no process runs or leads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, final

from ... import BackendError, Session, TickRecord
from ...inspect.looking import scan_names
from ...kinds.leadership import KIND as LEADERSHIP
from ...kinds.leadership import Observing, TermFound
from ...kinds.schedule.run import Times, history, reading, times
from ...lock.engine import Engine
from ...lock.holders import described_in, whereabouts
from ...lock.sources import engine_of
from .shown import duration

LASTING: Final = (LEADERSHIP, "schedule")
"""The kinds of which the server keeps more than the holders."""
Facts = Sequence[tuple[str, str]]
"""Each with its label."""

_TERMS: Final = 3
"""Terms that are told of."""
_SINCE_EVER: Final = 0


@final
class KeptRuns(NamedTuple):
    """What the server knows of a schedule.

    Attributes:
        now: The server's time, milliseconds since 1970.
        times: Its times; more than one while a change of them is rolled out.
        records: Its last runs, the latest first.
    """

    now: int
    times: Sequence[Times]
    records: Sequence[TickRecord]

    @property
    def alive(self) -> Sequence[Times]:
        """The times for which a process asks."""
        return [one for one in self.times if self.now <= one.expected]

    @property
    def runs(self) -> bool:
        """Whether a run goes on."""
        return any(record.outcome == "running" for record in self.records)


async def kept_of(session: Session, name: str, limit: int) -> KeptRuns:
    """What the server knows of the schedule of that name.

    Raises:
        BackendError: As `Session.inspect`.
    """
    engine = engine_of(session)
    prefix = engine.settings.prefix
    found = await engine.ask(times(prefix, name))
    read = await engine.ask(reading(prefix, name, records=limit))
    try:
        records = history(read, None, UTC)[:limit]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        records = []  # another program has written there
    return KeptRuns(read.now_us // 1000, found, records)


def next_ticks(kept: KeptRuns) -> Iterator[str]:
    """A line for each of its times, or one that says that no process keeps it."""
    for one in kept.alive:
        if one.next is None:
            yield f"a process asked for a tick {_ago(kept.now - one.asked)}"
        elif one.next <= kept.now:
            yield "the next tick is due now"
        else:
            yield f"next tick {_local(one.next)}, in {duration((one.next - kept.now) / 1000)}"
    if not kept.alive:
        asked = (
            f"; the last one asked for a tick {_ago(kept.now - kept.times[0].asked)}" if kept.times else ""
        )
        yield f"no process keeps it{asked}"


def _ago(ms: int) -> str:
    return f"{duration(ms / 1000)} ago"


def last_run(kept: KeptRuns) -> str:
    """The latest run in words; empty if there is none."""
    if not kept.records:
        return ""
    record = kept.records[0]
    took = "" if record.duration is None else f", {duration(record.duration)}"
    where = "" if record.host is None else f", {record.host} pid {record.pid}"
    return f"{record.outcome}, {when(record.due or record.began.replace(microsecond=0))}{took}{where}"


def _local(moment: int) -> str:
    return when(datetime.fromtimestamp(moment / 1000, UTC))


def when(moment: datetime) -> str:
    """In the time zone of this machine; to the millisecond where a schedule has ticks that are due so."""
    return moment.astimezone().isoformat(
        sep=" ", timespec="milliseconds" if moment.microsecond else "seconds"
    )


async def schedules(session: Session) -> list[str]:
    """The names of all schedules that processes have kept; none where the user may not scan."""
    try:
        found = await scan_names(engine_of(session), bool)
    except BackendError:
        return []
    return sorted(name for kind, name in found.lasting if kind == "schedule")


async def lasting(session: Session, kind: str, name: str) -> Facts:
    """The facts of a schedule or a leadership that stay, with their labels; none of another kind.

    None either where the user of the server may do less than a program with locks.
    """
    engine = engine_of(session)
    try:
        if kind == "schedule":
            return tuple(_of_schedule(await kept_of(session, name, 1)))
        if kind == LEADERSHIP:
            return await _of_leadership(engine, name)
    except BackendError:
        pass
    return []


def _of_schedule(kept: KeptRuns) -> Iterator[tuple[str, str]]:
    if kept.times:
        yield from (("state", line) for line in next_ticks(kept))
    if run := last_run(kept):
        yield "last run", run


async def _of_leadership(engine: Engine, name: str) -> Facts:
    look = await engine.ask(Observing(engine.settings.prefix, name).look(_SINCE_EVER))
    ended = [
        term
        for term in look.since
        if look.leading is None or term.fencing_token != look.leading.fencing_token
    ]
    return [
        ("earlier leader" if look.leading else "last leader", _term(one)) for one in reversed(ended[-_TERMS:])
    ]


def _term(term: TermFound) -> str:
    described = described_in(term.described) or {}
    host, pid, _ = whereabouts(described)
    value = described.get("value")
    published = "" if value is None else f", {json.dumps(value, ensure_ascii=False)}"
    # The fencing token is the server's time, unless that clock has been set back since.
    where = f"{host or '?'} pid {'?' if pid is None else pid}"
    return f"{where} since {_local(term.fencing_token // 1_000_000 * 1000)}{published}"

"""`aiolocks watch`: a line of JSON for each hold and each wait that begins or ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from ... import BackendError, HolderInfo, LockInfo, WaiterInfo
from ..._infos import KindAndName
from ...inspect.census import Census, Reading
from ...lock.sources import engine_of
from ..completing import names
from ..numbers import SecondsRange
from ..server import prefix_option, redis_option
from . import texts
from .asking import asking, reason

_DESCRIBED: Final = 100
"""Waiters of a name that are looked at."""
_SHORTEST: Final = 0.1
_LONGEST: Final = 3_600.0


@click.command(help=texts.WATCH, short_help="Write holds and waits to a log, as lines of JSON.")
@click.argument("pattern", default="*", shell_complete=names)
@click.option(
    "--interval", type=SecondsRange(_SHORTEST, _LONGEST), default=1, show_default=True, metavar="S",
    help="Seconds between two samples.",
)  # fmt: skip
@prefix_option
@redis_option()
def watch(*, pattern: str, interval: float, prefix: str, url: str) -> None:
    """See `texts.WATCH`."""
    asyncio.run(_watch(url, prefix, pattern, interval))


async def _watch(url: str, prefix: str, pattern: str, interval: float) -> None:
    async with asking(url, prefix) as session:
        census = Census(engine_of(session), pattern, waiters=_DESCRIBED)
        _write({"event": "begun", "prefix": prefix, "pattern": pattern})
        seen: dict[KindAndName, LockInfo] = {}
        away = False
        while True:
            try:
                for line in changes(seen, census, await census.look(interval, ())):
                    _write(line)
            except BackendError as error:
                if not away:
                    _write({"event": "away", "problem": reason(error)})
                away = True
            else:
                if away:
                    _write({"event": "back"})
                away = False
            await asyncio.sleep(interval)


def changes(
    seen: dict[KindAndName, LockInfo], census: Census, readings: Iterable[Reading]
) -> Iterator[dict[str, Any]]:
    """The events since the last look, of which `seen` is what it found: it is brought up to date."""
    for reading in readings:
        yield from events(seen.get(reading.place), reading.now)
        if reading.now is not None:
            seen[reading.place] = reading.now
    # A name of which no key is left is forgotten by the census, and not read again.
    for place in [place for place in seen if census.get(place) is None]:
        yield from events(seen.pop(place), None)


def events(before: LockInfo | None, info: LockInfo | None) -> Iterator[dict[str, Any]]:
    """The holds and waits that have begun, or ended, between two readings of a lock."""
    lock = info or before
    if lock is None:
        return
    of = {"kind": lock.kind, "name": lock.name}
    held, holds = _holds(before), _holds(info)
    waited, waits = _waits(before), _waits(info)
    for lease, holder in held.items():
        if lease not in holds:
            yield {"event": "hold ended", **of, **_of_holder(holder)}
    for key, waiter in waited.items():
        if key not in waits:
            yield {"event": "wait ended", **of, **_of_waiter(waiter)}
    for lease, holder in holds.items():
        if lease not in held:
            yield {"event": "hold", **of, **_of_holder(holder)}
    for key, waiter in waits.items():
        if key not in waited:
            blockers = [_of_holder(holder) for holder in holds.values()]
            yield {"event": "wait", **of, **_of_waiter(waiter), "held_by": blockers}


def _holds(info: LockInfo | None) -> dict[str, HolderInfo]:
    return {} if info is None else {holder.lease_id: holder for holder in info.holders}


def _waits(info: LockInfo | None) -> dict[Any, WaiterInfo]:
    """The waiters by the time since when they wait: host and process are known only some time later."""
    waiting = () if info is None else info.waiting
    return {waiter.waiting_since or (waiter.host, waiter.pid): waiter for waiter in waiting}


def _of_holder(holder: HolderInfo) -> dict[str, Any]:
    return {
        "holder": holder.lease_id,
        "host": holder.host,
        "pid": holder.pid,
        "task": holder.task,
        "fencing_token": holder.fencing_token,
        "held_for": _seconds(holder.held_for),
    }


def _of_waiter(waiter: WaiterInfo) -> dict[str, Any]:
    return {"host": waiter.host, "pid": waiter.pid, "waited_for": _seconds(waiter.waited_for)}


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _write(line: dict[str, Any]) -> None:
    # ASCII only: no name can harm a terminal, or end a line.
    print(json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **line}))
    sys.stdout.flush()

"""All features at work in one process, and what each noted of it, for `test_soak_faults`.

Every note is a line of JSON with the time of CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from aiolocks import (
    DuplicateJobError,
    FairLock,
    Leadership,
    Lease,
    Limits,
    Lock,
    LockError,
    Redlock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    Term,
    Tick,
    Turnstile,
    UniqueJob,
)
from tests.support.clients import cluster_client
from tests.support.history import Hold, Mode
from tests.support.processes import tell
from tests.support.sentinels import SERVICE

TTL = 1.0
HELD = 0.15
"""Seconds for which a lock is held, as a rule."""
PERMITS = 2
EVERY = WINDOW = KEEP = 0.5
STALE = 1.0
FOREVER = 3600.0
KEPT = {"SingleFlight": (0.0, 0.0), "SingleFlight, kept": (KEEP, 0.0), "SingleFlight, stale": (KEEP, STALE)}
"""How long each of them gives a value: `keep`, and `stale` after it."""
FEATURES = (
    "Lock, held", "Lock, waited for", "FairLock", "Semaphore", "RWLock", "Leadership", "Schedule", *KEPT,
    "UniqueJob", "Limits", "Turnstile",
)  # fmt: skip
REDLOCK = "Redlock"


async def work(
    reach: dict[str, Any], who: str, notes: str, stop: str, names: dict[str, str], lasting: bool
) -> None:
    """Goes on until the file `stop` is there.

    Args:
        reach: Where the servers are: a `url`, several `urls`, or the port of a `cluster` or of a `sentinel`.
        lasting: Whatever it holds or makes first, it does not let go of.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client) for client in clients_of(reach, stack)]
        sessions = [await stack.enter_async_context(Session(client)) for client in clients]
        with Path(notes).open("w", buffering=1) as file:  # noqa: ASYNC230 - a line at a time
            at_work = AtWork(sessions, who, file, names, lasting=lasting)
            asyncio.get_running_loop().set_exception_handler(at_work.told_by_the_loop)
            tasks = at_work.begin()
            tell("ready")
            while not Path(stop).exists():  # noqa: ASYNC240 - a moment
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=10)
            for task in left:
                at_work.note("", "ended", why=f"{task!r} does not end")


def clients_of(reach: dict[str, Any], stack: AsyncExitStack) -> list[Any]:
    match reach:
        case {"url": url}:
            return [Redis.from_url(url)]
        case {"urls": urls}:
            return [Redis.from_url(url) for url in urls]
        case {"cluster": port}:
            return [cluster_client("127.0.0.1", port)]
        case {"sentinel": port}:
            sentinel = Sentinel([("127.0.0.1", port)])
            for asked in sentinel.sentinels:
                stack.push_async_callback(asked.aclose)
            return [sentinel.master_for(SERVICE)]
    raise ValueError(reach)


class AtWork:
    """The tasks of one process."""

    def __init__(
        self, sessions: list[Session], who: str, file: Any, names: dict[str, str], *, lasting: bool
    ) -> None:
        self._sessions = sessions
        self._session = sessions[0]
        self._who = who
        self._file = file
        self._names = names
        self._to_last = Counter(dict.fromkeys(names, 1) if lasting else {})
        if lasting:
            self._to_last.update({"Semaphore": PERMITS - 1, "Limits": PERMITS - 1})

    def note(
        self, feature: str, event: str, *, role: str = "", at: float | None = None, **facts: Any
    ) -> None:
        line = {"feature": feature, "who": self._who, "role": role, "event": event}
        self._file.write(json.dumps({**line, "at": at or time.monotonic(), **facts}) + "\n")

    def told_by_the_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.note("", "ended", why=f"{context['message']}: {error!r} {context.get('task')!r}")

    def begin(self) -> list[asyncio.Task[None]]:
        if len(self._sessions) > 1:
            lock = Redlock(self._sessions, self._names[REDLOCK], ttl=TTL, node_timeout=0.3)
            return [self._repeating(REDLOCK, lambda: self._hold(REDLOCK, lock.acquire()))]
        session, names = self._session, self._names
        rwlock = RWLock(session, names["RWLock"], ttl=TTL)
        job = UniqueJob(session, names["UniqueJob"], ttl=TTL)

        def acquiring(kind: Any, feature: str, **options: Any) -> Callable[[], Awaitable[None]]:
            lock = kind(session, names[feature], ttl=TTL, **options)
            return lambda: self._hold(feature, lock.acquire())

        held = Lock(session, names["Lock, held"], ttl=TTL)
        permits = acquiring(Semaphore, "Semaphore", value=PERMITS)
        wanted: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
            ("Lock, held", "", lambda: self._hold("Lock, held", held.acquire(), seconds=FOREVER)),
            ("Lock, waited for", "", acquiring(Lock, "Lock, waited for")),
            ("FairLock", "", acquiring(FairLock, "FairLock")),
            ("Semaphore", "", permits),
            ("Semaphore", "", permits),
            ("RWLock", "reader", lambda: self._hold("RWLock", rwlock.reader.acquire(), mode="reader")),
            ("RWLock", "writer", lambda: self._hold("RWLock", rwlock.writer.acquire())),
            ("UniqueJob", "", lambda: self._job(job)),
            ("UniqueJob", "", lambda: self._job(job)),
            *(("Limits", "", self._limited(f"tenant:{number}")) for number in range(PERMITS)),
            ("Turnstile", "", self._enter),
            *((feature, "", self._flying(feature, *kept)) for feature, kept in KEPT.items()),
        ]
        tasks = [self._repeating(feature, once, role=role) for feature, role, once in wanted]
        return [
            *tasks,
            self._in_background("Leadership", self._lead),
            self._in_background("Schedule", self._keep),
        ]

    # -- how they are repeated

    def _repeating(self, feature: str, once: Callable[[], Awaitable[None]], *, role: str = "") -> Any:
        async def repeat() -> None:
            while True:
                try:
                    await once()
                except DuplicateJobError:
                    pass
                except LockError as error:
                    self.note(feature, "failed", role=role, why=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.05)

        return self._in_background(feature, repeat, role=role)

    def _in_background(self, feature: str, run: Callable[[], Awaitable[object]], *, role: str = "") -> Any:
        async def lasting() -> None:
            self.note(feature, "at work", role=role)
            try:
                await run()
            except Exception:
                self.note(feature, "ended", role=role, why=traceback.format_exc())
            else:
                self.note(feature, "ended", role=role, why="it returned")

        return asyncio.create_task(lasting(), name=feature)

    def _for(self, feature: str, seconds: float) -> float:
        if not self._to_last[feature]:
            return seconds
        self._to_last[feature] -= 1
        return FOREVER

    # -- each of them, once

    async def _hold(
        self, feature: str, pending: Any, *, seconds: float = HELD, mode: Mode = "writer", tenant: str = ""
    ) -> None:
        invoked = time.monotonic()
        async with pending as lease:
            await self._inside(feature, lease, invoked, self._for(feature, seconds), mode=mode, tenant=tenant)

    async def _inside(
        self,
        feature: str,
        lease: Lease,
        invoked: float,
        seconds: float,
        *,
        mode: Mode = "writer",
        tenant: str = "",
    ) -> None:
        """Notes its renewals, and at last until when it could be relied on."""
        granted = time.monotonic()
        deadline = granted + lease.remaining()
        role = mode if feature == "RWLock" else ""
        self.note(feature, "begun", role=role)
        self.note(feature, "progress", role=role)
        try:
            while (now := time.monotonic()) < granted + seconds:
                if (until := now + lease.remaining()) > deadline + 0.02 and lease.remaining() > 0:
                    deadline = until
                    self.note(feature, "progress", role=role)
                await asyncio.sleep(0.05)
        finally:
            released = time.monotonic()
            hold = Hold(
                who=self._who, invoked=invoked, granted=granted, released=released, deadline=deadline,
                mode=mode, name=feature,
            )  # fmt: skip
            self.note(feature, "hold", hold=asdict(hold), tenant=tenant)

    async def _job(self, job: UniqueJob) -> None:
        await self._hold("UniqueJob", job.run(waiting=1))

    def _limited(self, tenant: str) -> Callable[[], Awaitable[None]]:
        limits = Limits(self._session, self._names["Limits"], {"all": PERMITS, tenant: 1}, ttl=TTL)
        return lambda: self._hold("Limits", limits.acquire(), tenant=tenant)

    async def _lead(self) -> None:
        async def main(term: Term) -> None:
            await self._inside("Leadership", term, time.monotonic(), FOREVER)

        await Leadership(self._session, self._names["Leadership"], ttl=TTL).run(main)

    async def _keep(self) -> None:
        schedule = Schedule(self._session, self._names["Schedule"], every=EVERY, ttl=TTL)

        @schedule
        async def job(tick: Tick) -> None:
            self.note("Schedule", "begun")
            self.note("Schedule", "tick", due=tick.due.timestamp())
            self.note("Schedule", "progress")
            await asyncio.sleep(self._for("Schedule", 0.05))

        await schedule.run()

    def _flying(self, feature: str, keep: float, stale: float) -> Callable[[], Awaitable[None]]:
        flight = SingleFlight(self._session, ttl=TTL, keep=keep, stale=stale)

        async def make() -> float:
            self.note(feature, "begun")
            await asyncio.sleep(self._for(feature, 0.1))
            return time.monotonic()

        async def fly() -> None:
            invoked = time.monotonic()
            made = await flight.do(self._names[feature], make)
            self.note(feature, "value", age=invoked - made)
            self.note(feature, "progress", at=made)

        return fly

    async def _enter(self) -> None:
        invoked = time.monotonic()
        if await Turnstile(self._session, self._names["Turnstile"], window=WINDOW).enter() == 1:
            self.note("Turnstile", "won", invoked=invoked)
            self.note("Turnstile", "progress")
        self.note("Turnstile", "begun")


def read(folder: Path) -> list[dict[str, Any]]:
    """All notes; the last line of a process that was killed may be cut."""
    notes = []
    for file in sorted(folder.glob("*.notes")):
        for line in file.read_text().split("\n")[:-1]:
            with suppress(ValueError):
                notes.append(json.loads(line))
    return notes

"""Every family at work in one process, and what each notes of it, for `test_soak_moves`.

Every note is a line of JSON with times of CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiolocks import (
    Batch,
    Combiner,
    FairLock,
    FencedRegister,
    KeyspaceWakeup,
    Latch,
    Leadership,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    RateLimit,
    ReentrantLock,
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
from tests.support.history import Hold
from tests.support.processes import tell

TTL = 10.0
"""Longer than any move, and than any pause of a busy machine."""
HELD = 0.02
PAUSE = 0.1
"""Seconds from one time to the next: with more tasks than one, most wait all the same."""
MEET = 0.3
"""So that the steps of the last 30 s, which each turn leaves, do not make the slot a large one."""
PERMITS = 2
WINDOW = 0.5
EVERY = 2.0
"""Longer than a move: of ticks that come due in one outage, the last is run for all."""
RATE, BURST = 40, 4
PROCESSES = 2
FAMILIES = (
    "Lock", "ReentrantLock", "MultiLock", "MultiLock, slots", "FairLock", "Semaphore", "Limits", "RWLock",
    "RangeLock", "UniqueJob", "UniqueJob, tickets", "SingleFlight", "Combiner", "Latch", "RateLimit",
    "Turnstile", "Leadership", "Schedule",
)  # fmt: skip
FURTHER = ("register", "second slot")
"""Names beside those of the families."""
Step = tuple[str, Callable[[], Awaitable[None]]]
"""Of which family, and what is done again and again."""
WAKEUPS: dict[str, Any] = {"tracking": "tracking", "keyspace": KeyspaceWakeup(configure=True)}


async def work(
    port: int,
    who: str,
    notes: str,
    stop: str,
    names: dict[str, str],
    wakeup: str,
    options: dict[str, float],
) -> None:
    """Goes on until the file `stop` is there. Then whatever has begun comes to its end."""
    async with (
        cluster_client("127.0.0.1", port) as client,
        Session(client, wakeup=WAKEUPS[wakeup], **options) as session,
    ):
        with Path(notes).open("w", buffering=1) as file:  # noqa: ASYNC230 - a line at a time
            at_work = AtWork(session, who, file, names)
            asyncio.get_running_loop().set_exception_handler(at_work.told_by_the_loop)
            steps, endless = at_work.begin()
            tell("ready")
            while not Path(stop).exists():  # noqa: ASYNC240 - a moment
                await asyncio.sleep(0.1)
            at_work.over = True
            at_work.note("", "over")
            _, left = await asyncio.wait(steps, timeout=30)
            for task in (*left, *endless):
                task.cancel()
            for task in left:
                at_work.note(task.get_name(), "failed", why="it does not end")
            await asyncio.wait([*steps, *endless], timeout=10)
    tell("over")


class AtWork:
    """The tasks of one process."""

    def __init__(self, session: Session, who: str, file: Any, names: dict[str, str]) -> None:
        self.over = False
        self._session = session
        self._who = who
        self._file = file
        self._names = names

    def note(self, family: str, event: str, **facts: Any) -> None:
        line = {"family": family, "event": event, "who": self._who, "at": time.monotonic(), **facts}
        self._file.write(json.dumps(line) + "\n")

    def told_by_the_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.note("", "failed", why=f"{context['message']}: {context.get('exception')!r}")

    def begin(self) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """The tasks that end by themselves when it is over, and those that are to be cancelled."""
        session, names = self._session, self._names
        rwlock = RWLock(session, names["RWLock"], ttl=TTL)
        spans = RangeLock(session, names["RangeLock"], ttl=TTL)
        combiner = Combiner(session, names["Combiner"], ttl=TTL)
        flight = SingleFlight(session, ttl=TTL)
        job = UniqueJob(session, names["UniqueJob"], ttl=TTL)
        limit = RateLimit(session, names["RateLimit"], RATE, 1, burst=BURST)
        limits = Limits(session, names["Limits"], {"all": PERMITS, f"of {self._who}": 1}, ttl=TTL)
        one_slot = [f"{{{names['MultiLock']}}}:{end}" for end in "abc"]
        in_turn = [names["MultiLock, slots"], names["second slot"]]

        def hold(family: str, lock: Any, **facts: Any) -> Step:
            return family, functools.partial(self._hold, family, lock.acquire, **facts)

        def simple(family: str, kind: Any, **options: Any) -> Step:
            return hold(family, kind(session, names[family], ttl=TTL, **options))

        steps = [
            ("Lock", self._lock), ("Lock", self._lock),
            ("ReentrantLock", self._reenter), ("ReentrantLock", self._reenter),
            ("MultiLock", functools.partial(self._several, "MultiLock", one_slot[:2])),
            ("MultiLock", functools.partial(self._several, "MultiLock", one_slot[1:])),
            ("MultiLock, slots", functools.partial(self._several, "MultiLock, slots", in_turn)),
            simple("FairLock", FairLock), simple("FairLock", FairLock),
            *[simple("Semaphore", Semaphore, value=PERMITS)] * PERMITS,
            *[hold("Limits", limits)] * 2,
            *[hold("RWLock", rwlock.reader, mode="reader")] * 2,
            hold("RWLock", rwlock.writer),
            hold("RangeLock", spans.writer(0, 60), low=0, high=60),
            hold("RangeLock", spans.writer(40, 100), low=40, high=100),
            ("UniqueJob", lambda: self._hold("UniqueJob", lambda: job.run(waiting=None))),
            ("UniqueJob, tickets", self._perform), ("UniqueJob, tickets", self._perform),
            *(("SingleFlight", functools.partial(self._fly, flight)) for _ in range(2)),
            *(("Combiner", functools.partial(self._submit, combiner, f"{self._who}.{n}")) for n in range(3)),
            *(("RateLimit", functools.partial(self._ask, limit)) for _ in range(2)),
            ("Turnstile", self._enter),
        ]  # fmt: skip
        endless = {"Latch": self._meet, "Leadership": self._lead, "Schedule": self._keep}
        return (
            [asyncio.create_task(self._repeat(family, once), name=family) for family, once in steps],
            [asyncio.create_task(self._noted(family, run), name=family) for family, run in endless.items()],
        )

    async def _repeat(self, family: str, once: Callable[..., Awaitable[None]]) -> None:
        while not self.over:
            await self._noted(family, once)
            await asyncio.sleep(PAUSE)

    async def _noted(self, family: str, run: Callable[..., Awaitable[None]]) -> None:
        began = time.monotonic()
        try:
            await run()
        except Exception as error:
            self.note(family, "failed", began=began, why=f"{type(error).__name__}: {error}")

    # -- each of them, once

    async def _hold(self, family: str, acquire: Callable[[], Any], **facts: Any) -> None:
        invoked = time.monotonic()
        async with acquire() as lease:
            await self._inside(family, lease, invoked, family, **facts)

    async def _inside(self, family: str, lease: Any, invoked: float, *names: str, **facts: Any) -> None:
        granted = time.monotonic()
        try:
            await asyncio.sleep(HELD)
        finally:
            released = time.monotonic()
            for name in names:
                hold = Hold(
                    who=self._who, name=name, invoked=invoked, granted=granted, released=released,
                    deadline=released + lease.remaining(), fencing_token=lease.fencing_token, **facts,
                )  # fmt: skip
                self.note(family, "hold", hold=asdict(hold))

    async def _lock(self) -> None:
        register = FencedRegister(self._session, self._names["register"])
        invoked = time.monotonic()
        async with Lock(self._session, self._names["Lock"], ttl=TTL) as lease:
            before = await register.read()
            assert before is None or before < lease.fencing_token
            await register.write(lease.fencing_token, lease.fencing_token)
            await self._inside("Lock", lease, invoked, "Lock")

    async def _reenter(self) -> None:
        lock = ReentrantLock(self._session, self._names["ReentrantLock"], ttl=TTL)
        invoked = time.monotonic()
        async with lock:
            async with lock as lease:
                await self._inside("ReentrantLock", lease, invoked, "ReentrantLock")

    async def _several(self, family: str, names: list[str]) -> None:
        invoked = time.monotonic()
        async with MultiLock(self._session, names, ttl=TTL) as lease:
            await self._inside(family, lease, invoked, *names)

    async def _perform(self) -> None:
        """Of two deliveries of a ticket, one runs; tickets of one key run one after the other."""
        job = UniqueJob(self._session, self._names["UniqueJob, tickets"], ttl=TTL)
        ticket = await job.enqueue("until_executed", on_conflict="skip", ttl=600)
        if ticket is None:
            return
        self.note("UniqueJob, tickets", "asked", what=ticket)

        async def deliver() -> None:
            invoked = time.monotonic()
            async with job.try_perform(ticket) as lease:
                if lease is not None:
                    self.note("UniqueJob, tickets", "ran", what=[ticket])
                    await self._inside("UniqueJob, tickets", lease, invoked, "UniqueJob, tickets")

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            group.create_task(deliver())
        self.note("UniqueJob, tickets", "told", what=ticket)

    async def _fly(self, flight: SingleFlight) -> None:
        async def make() -> float:
            began = time.monotonic()
            await asyncio.sleep(HELD)
            ended = time.monotonic()
            hold = Hold(who=self._who, name="SingleFlight", invoked=began, granted=began, released=ended)
            self.note("SingleFlight", "run", hold=asdict(hold))
            return ended

        invoked = time.monotonic()
        made = await flight.do(self._names["SingleFlight"], make)
        self.note("SingleFlight", "took", seconds=time.monotonic() - invoked, invoked=invoked, made=made)

    async def _submit(self, combiner: Combiner, who: str) -> None:
        async def run(batch: Batch) -> int:
            began = time.monotonic()
            self.note("Combiner", "ran", what=batch.items)
            await asyncio.sleep(HELD)
            ended = time.monotonic()
            hold = Hold(who=self._who, name="Combiner", invoked=began, granted=began, released=ended)
            self.note("Combiner", "run", hold=asdict(hold))
            return len(batch)

        invoked = time.monotonic()
        item = f"{who}.{invoked}"
        self.note("Combiner", "asked", what=item)
        await combiner.submit(item, run)
        self.note("Combiner", "told", what=item)
        self.note("Combiner", "took", seconds=time.monotonic() - invoked)

    async def _ask(self, limit: RateLimit) -> None:
        invoked = time.monotonic()
        await limit.acquire()
        self.note("RateLimit", "passed", invoked=invoked)
        self.note("RateLimit", "took", seconds=time.monotonic() - invoked)

    async def _enter(self) -> None:
        invoked = time.monotonic()
        number = await Turnstile(self._session, self._names["Turnstile"], window=WINDOW).enter()
        self.note("Turnstile", "entered", invoked=invoked, number=number)
        self.note("Turnstile", "took", seconds=time.monotonic() - invoked)
        await asyncio.sleep(HELD)

    async def _meet(self) -> None:
        """All processes meet, again and again."""
        turn = 0
        while True:
            latch = Latch(self._session, f"{{{self._names['Latch']}}}:{turn}", PROCESSES, ttl=60)
            self.note("Latch", "came", turn=turn)
            left = await latch.count_down()
            self.note("Latch", "counted", turn=turn, left=left)
            await latch.wait()
            self.note("Latch", "left", turn=turn)
            await asyncio.sleep(MEET)
            turn += 1

    async def _lead(self) -> None:
        async def main(term: Term) -> None:
            self.note("Leadership", "term", number=term.fencing_token)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            if not self.over:
                self.note("Leadership", "failed", why="a term that ended")

        await Leadership(self._session, self._names["Leadership"], ttl=TTL).run(main)

    async def _keep(self) -> None:
        schedule = Schedule(self._session, self._names["Schedule"], every=EVERY, ttl=TTL)

        @schedule
        async def job(tick: Tick) -> None:
            due = tick.due.timestamp()
            self.note("Schedule", "tick", due=due)
            self.note("Schedule", "took", seconds=max(0.0, time.time() - due))

        await schedule.run()

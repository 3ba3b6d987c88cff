"""Rounds of a holder that stands still at a random statement, while a successor works.

The frozen one holds a lease of `TTL` seconds that is not renewed. The successor gets the lock when that has
ended, or earlier, because Redis has lost it: then the frozen one believes to be the holder when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from aiolocks import BackendError, Lease, Lock, LockLostError, LockNotOwnedError, Session, StaleFenceError
from aiolocks.contrib.sqlalchemy import fence
from tests.contrib_sql.databases import NOTE, STATEMENT_ERRORS, Database, session_was_ended, wants_another_try

TTL = 0.3
"""Seconds of the frozen one's lease; SQLite's driver waits for the write lock as long."""

PLACES = 6
"""Where the frozen one can stand still: before its transaction, and after each of its statements."""


@dataclass
class Round:
    """The events of one round.

    Attributes:
        place: Where the frozen one stood still.
        ended: How its transaction has: `"committed"`, or the error.
        waited: Seconds of each of the successor's fences, whether it returned or not.
        seen: The writes of the frozen one, as the successor found them right after its fence.
        left: The writes of the frozen one in the end.
    """

    place: int
    ended: str = ""
    waited: list[float] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Lane:
    """Rounds that come one after the other, with connections of their own."""

    def __init__(
        self, database: Database, seed: int, redis: Redis, prefix: str, sessions: tuple[Session, Session]
    ) -> None:
        self._random = random.Random(seed)
        self._name = f"lane:{seed}"
        self._redis = redis
        self._prefix = prefix
        self._here, self._there = sessions
        self._is_postgresql = database.is_postgresql
        self._engine: AsyncEngine = database.engine(timeout=TTL)

    async def aclose(self) -> None:
        await self._engine.dispose()

    async def play(self, number: int) -> Round:
        """One round. Now and then with a name that has had no fence yet."""
        name = self._name if self._random.random() < 0.7 else f"{self._name}:{number}"
        writer = f"{self._name}:{number}"
        result = Round(self._random.randrange(PLACES))
        stands, goes_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        lease = await self._short_lease(name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hold(lease, writer, result, stands, goes_on))
            await stands.wait()
            tasks.create_task(self._thaw(goes_on, done))
            if self._random.random() < 0.5:
                await self._redis.delete(f"{self._prefix}:lock:{{{name}}}")
            async with Lock(self._there, name, ttl=20) as later:
                await self._succeed(later, writer, result)
            done.set()
        async with self._engine.connect() as connection:
            result.left = list(await connection.scalars(self._writings(writer)))
        return result

    async def _short_lease(self, name: str) -> Lease:
        lock = Lock(self._here, name, ttl=TTL, auto_renew=False, on_lost="ignore")
        while True:
            with contextlib.suppress(BackendError):  # a busy machine: Redis did not answer for a ttl
                return await lock.acquire()

    async def _hold(
        self, lease: Lease, writer: str, result: Round, stands: asyncio.Event, goes_on: asyncio.Event
    ) -> None:
        async def at(place: int) -> None:
            if place == result.place:
                stands.set()
                await goes_on.wait()

        try:
            await at(0)
            async with self._engine.begin() as connection:
                await at(1)
                await fence(connection, lease)
                await at(2)
                await connection.execute(sa.insert(NOTE).values(name="a", writer=writer))
                await at(3)
                await connection.execute(self._writings(writer))
                await at(4)
                await connection.execute(sa.insert(NOTE).values(name="b", writer=writer))
                await at(5)
            result.ended = "committed"
        except (LockLostError, StaleFenceError) as error:
            result.ended = type(error).__name__
        except STATEMENT_ERRORS as error:
            # Only what the documentation says: to be run again, or ended by the server.
            if isinstance(error, DBAPIError) and wants_another_try(error):
                result.ended = "to be run again"
            elif session_was_ended(error):
                result.ended = "ended by the server"
            else:
                raise
        finally:
            stands.set()
            with contextlib.suppress(LockNotOwnedError, BackendError):  # over, or too busy to say so in time
                await lease.release()

    async def _thaw(self, goes_on: asyncio.Event, done: asyncio.Event) -> None:
        """At any time from at once to long after; on PostgreSQL also when the successor is done."""
        if self._is_postgresql and self._random.random() < 0.3:
            await done.wait()
        else:
            await asyncio.sleep(self._random.uniform(0, self._random.choice([1, 3]) * TTL))
        goes_on.set()

    async def _succeed(self, lease: Lease, writer: str, result: Round) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                async with self._engine.begin() as connection:
                    begun = now()
                    try:
                        await fence(connection, lease)
                    finally:
                        result.waited.append(now() - begun)
                    result.seen = list(await connection.scalars(self._writings(writer)))
                    await asyncio.sleep(self._random.choice([0, 0, self._random.uniform(0, TTL)]))
                    await connection.execute(sa.insert(NOTE).values(name="successor", writer="successor"))
                return
            except DBAPIError as error:
                if not wants_another_try(error):
                    raise

    @staticmethod
    def _writings(writer: str) -> sa.Select[tuple[str]]:
        return sa.select(NOTE.c.name).where(NOTE.c.writer == writer).order_by(NOTE.c.id)

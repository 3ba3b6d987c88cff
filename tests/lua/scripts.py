"""The scripts of the lock, run by hand on a real server."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis
from redis.asyncio import Redis

from aiolocks._transport.calls import Script
from aiolocks._transport.driver import Link, reply_reader
from aiolocks._transport.keys import key

MINUTE = 60_000
HOUR = 3_600_000
BELL = 2_000
QUEUE = 10_000
"""Milliseconds."""

_NOT_ENOUGH = object()


class LockScripts:
    """The steps of one lock under a name of its own; arguments and replies as they travel.

    Whoever stands in the queue is called by a name, which is the session's in that of its bell.

    Args:
        mutant: Texts to run instead of those in the files, by the name of the script.
    """

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        self.redis = redis
        self.prefix = prefix
        self.name = secrets.token_hex(4)
        self.lock = key(prefix, "lock", self.name)
        self.fence = key(prefix, "lock", self.name, "fence")
        self.queue = key(prefix, "lock", self.name, "queue")
        self.mutant = mutant or {}

    def bell(self, who: str) -> bytes:
        return key(self.prefix, "lock", self.name, f"bell.{who}")

    async def acquire(self, token: str, **kwargs: Any) -> Any:
        return await self.redis.execute_command(*self.acquiring(token, **kwargs))

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        return await self._run("lock_renew", [self.lock, self.fence], token, ttl, retention)

    async def release(self, token: str, **kwargs: Any) -> Any:
        return await self.redis.execute_command(*self.releasing(token, **kwargs))

    async def arm(self, who: str, **kwargs: Any) -> Any:
        return await self.redis.execute_command(*self.arming(who, **kwargs))

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        return await self._run("lock_adopt", [self.lock, self.fence], old, new, ttl, retention, metadata)

    async def owned(self, token: str) -> Any:
        return await self._run("lock_owned", [self.lock], token)

    async def locked(self) -> Any:
        return await self._run("lock_locked", [self.lock])

    # -- the words of a step, for who says them himself

    def acquiring(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
        queued: str | None = None,
        in_turn: bool = False,
    ) -> tuple[Any, ...]:
        arguments = (token, ttl, retention, metadata, int(in_turn))
        return self._words("lock_acquire", self._keys(queued), *arguments)

    def releasing(
        self, token: str, *, retention: int = HOUR, ring: bool = True, leave: str | None = None
    ) -> tuple[Any, ...]:
        return self._words("lock_release", self._keys(leave), token, retention, int(ring))

    def arming(self, who: str, *, ttl: int = BELL, queue_ttl: int = QUEUE) -> tuple[Any, ...]:
        return self._words("queue_arm", [self.bell(who)], self.queue, ttl, queue_ttl)

    # -- what happens to those who wait

    async def die(self, *who: str) -> None:
        """Those are not there any more: their bells have come to their end."""
        for one in who:
            assert await self.redis.delete(self.bell(one)) == 1

    def _keys(self, queued: str | None) -> list[bytes]:
        return [self.lock, self.fence, self.queue] + ([] if queued is None else [self.bell(queued)])

    async def _run(self, script: str, keys: list[bytes], *arguments: Any) -> Any:
        return await self.redis.execute_command(*self._words(script, keys, *arguments))

    def _words(self, script: str, keys: list[bytes], *arguments: Any) -> tuple[Any, ...]:
        return ("EVAL", self.mutant.get(script) or Script(script).text, len(keys), *keys, *arguments)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Ear]:
        """A connection to the same server that tracks as the sessions do."""
        ear = await Ear.open(self.redis)
        try:
            yield ear
        finally:
            await ear.aclose()

    # -- what is there

    async def state(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Lock, fence and queue, byte for byte, without their ttls."""
        dump = self.redis.dump
        return await dump(self.lock), await dump(self.fence), await dump(self.queue)

    async def value(self) -> bytes | None:
        value: bytes | None = await self.redis.get(self.lock)
        return value

    async def fence_value(self) -> bytes | None:
        value: bytes | None = await self.redis.get(self.fence)
        return value

    async def waiting(self) -> list[bytes]:
        """The bells of who stands in the queue, in order."""
        bells: list[bytes] = await self.redis.zrange(self.queue, 0, -1)
        return bells

    async def stands(self, who: str) -> bool:
        """Whether that bell hangs."""
        return bool(await self.redis.exists(self.bell(who)))

    async def everything(self) -> list[bytes]:
        """All keys of this name."""
        keys: list[bytes] = await self.redis.keys(f"{self.prefix}:lock*:{{{self.name}}}")
        return keys

    async def clear(self) -> None:
        for left in await self.everything():
            await self.redis.delete(left)

    async def expires_in(
        self,
        *,
        lock: int | None = None,
        fence: int | None = None,
        queue: int | None = None,
        bells: dict[str, int] | None = None,
    ) -> bool:
        """Whether the ttls have just been set to these milliseconds."""
        expected = [(self.lock, lock), (self.fence, fence), (self.queue, queue)]
        expected += [(self.bell(who), ms) for who, ms in (bells or {}).items()]
        return all(
            [
                ms - min(5_000, ms // 2) < await self.redis.pttl(key) <= ms
                for key, ms in expected
                if ms is not None
            ]
        )


class Ear(asyncio.Protocol):
    """A connection that the server tells when what was read on it, behind CACHING YES, has changed."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reader = reply_reader(_NOT_ENOUGH)
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._pushes: list[Any] = []
        link.transport.set_protocol(self)

    @classmethod
    async def open(cls, redis: Redis) -> Ear:
        ear = cls(await Link.open(redis.connection_pool, protocol=3))
        await ear.say("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        return ear

    async def say(self, *words: Any) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._link.transport.write(hiredis.pack_command(words))  # type: ignore[arg-type]
        return await reply

    async def arm(self, lock: LockScripts, who: str) -> Any:
        await self.say("CLIENT", "CACHING", "YES")
        return await self.say(*lock.arming(who))

    async def told(self) -> list[Any]:
        """What this connection was told since the last time: before the reply to what is sent behind it."""
        await self.say("PING")
        pushes, self._pushes = self._pushes, []
        return pushes

    async def aclose(self) -> None:
        self._link.transport.close()
        await self._link.wait_closed()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_ENOUGH:
            if type(reply) is hiredis.PushNotification:
                self._pushes.append(list(reply))
            elif isinstance(reply, Exception):
                self._replies.popleft().set_exception(reply)
            else:
                self._replies.popleft().set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(exc)
        for reply in self._replies:
            reply.set_exception(exc or ConnectionError("closed"))

"""The scripts of the lock, run by hand on a real server."""

from __future__ import annotations

import secrets
from typing import Any

from redis.asyncio import Redis

from aiolocks._transport.calls import Script
from aiolocks._transport.keys import key

MINUTE = 60_000
HOUR = 3_600_000
"""Milliseconds."""


class LockScripts:
    """The steps of one lock under a name of its own; arguments and replies as they travel.

    Args:
        mutant: Texts to run instead of those in the files, by the name of the script.
    """

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        name = secrets.token_hex(4)
        self.redis = redis
        self.lock = key(prefix, "lock", name)
        self.fence = key(prefix, "lock", name, "fence")
        self._mutant = mutant or {}

    async def acquire(
        self, token: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        return await self.run("lock_acquire", [self.lock, self.fence], token, ttl, retention, metadata)

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        return await self.run("lock_renew", [self.lock, self.fence], token, ttl, retention)

    async def release(self, token: str, *, retention: int = HOUR) -> Any:
        return await self.run("lock_release", [self.lock, self.fence], token, retention)

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        return await self.run("lock_adopt", [self.lock, self.fence], old, new, ttl, retention, metadata)

    async def owned(self, token: str) -> Any:
        return await self.run("lock_owned", [self.lock], token)

    async def locked(self) -> Any:
        return await self.run("lock_locked", [self.lock])

    async def run(self, script: str, keys: list[bytes], *arguments: Any) -> Any:
        text = self._mutant.get(script) or Script(script).text
        return await self.redis.execute_command("EVAL", text, len(keys), *keys, *arguments)

    # -- what is there

    async def state(self) -> tuple[bytes | None, bytes | None]:
        """Lock and fence, byte for byte, without their ttls."""
        return await self.redis.dump(self.lock), await self.redis.dump(self.fence)

    async def value(self) -> bytes | None:
        value: bytes | None = await self.redis.get(self.lock)
        return value

    async def fence_value(self) -> bytes | None:
        value: bytes | None = await self.redis.get(self.fence)
        return value

    async def expires_in(self, *, lock: int | None = None, fence: int | None = None) -> bool:
        """Whether the ttls have just been set to these milliseconds."""
        expected = [(self.lock, lock), (self.fence, fence)]
        return all([ms - 5_000 < await self.redis.pttl(key) <= ms for key, ms in expected if ms is not None])

"""The scripts of a schedule, run by hand on a real server."""

from __future__ import annotations

import json
from typing import Any

from redis.asyncio import Redis

from tests.lua.mutants import text_of
from tests.lua.scripts import DAY, HOUR, MINUTE, Scripts, microseconds

THIRD = "c3" * 16
THESE, OTHERS = "5" * 16, "7" * 16
"""Two definitions."""
WEEK = 7 * DAY
PERMITS = ("forms", "bells", "fence", "queue", "permits")


class ScheduleScripts(Scripts):
    """The steps of a schedule. Its ticks are told by how many minutes before now they are due."""

    kind = "schedule"
    bare = frozenset({"schedule_read"})
    deadlines = frozenset({"", "history"})

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        roles = ("", "leases", "register", "fence", "queue", "bell.me", "history")
        self.keys = [self.key(role) for role in roles]
        self.holders, self.leases, self.register, self.fence, _, _, self.history = self.keys
        self._origin: int | None = None

    def text(self, step: str) -> bytes:
        if step in self.bare:
            return super().text(step)
        shared = (*PERMITS, "stolen") if step.startswith("permits_") else (*PERMITS, "ticks")
        shared += ("claims",) if step in ("schedule_claim", "schedule_trigger") else ()
        files = [*(f"shared/{name}" for name in shared), step]
        return b"".join(self.mutant.get(file) or text_of(file).encode() for file in files)

    async def clear(self) -> None:
        await super().clear()
        self._origin = None

    async def due(self, minutes: float) -> int:
        """The due time of a tick that many minutes ago; the same each time it is asked for."""
        if self._origin is None:
            self._origin = await microseconds(self.redis) // 1000
        return self._origin - int(minutes * MINUTE)

    async def claim(
        self,
        token: str,
        ago: float | None,
        *,
        known: float | None = None,
        flags: str = "s",
        redo: int = 0,
        gap: int = MINUTE,
        ttl: int = MINUTE,
        metadata: str = "",
        latest: int | str = "",
        in_time: int = 1000,
        lasting: int = WEEK,
        of: str = THESE,
        again: float | None = None,
    ) -> Any:
        metadata = metadata or described(of)
        arguments: tuple[Any, ...] = (token, ttl, HOUR, metadata, lasting, flags, redo)
        if ago is None:
            return await self.run(self.words("schedule_trigger", self.keys, *arguments))
        due, before = await self.due(ago), await self.due(ago + 1)
        knows = "" if known is None else await self.due(known)
        following = due + gap if again is None else await self.due(again)
        arguments += (due, knows, before, gap, latest, in_time, of, following)
        return await self.run(self.words("schedule_claim", self.keys, *arguments))

    async def release(
        self, token: str, outcome: str = "done", detail: str = "", *, redo: int = 0, of: str = THESE
    ) -> Any:
        arguments = (token, HOUR, outcome, json.dumps(detail), redo, of)
        return await self.run(self.words("schedule_release", self.keys, *arguments))

    async def renew(self, token: str, *, ttl: int = MINUTE) -> Any:
        return await self.run(self.words("permits_renew", self.keys[:6], token, ttl, HOUR, WEEK, "0" * 16))

    async def read(self, records: int = 100) -> Any:
        return await self.run(
            self.words("schedule_read", [self.holders, self.register, self.history], records)
        )

    async def begun(self, ago: float, *, of: str = THESE) -> None:
        """The register is there, and that tick is claimed: no later one was due yet."""
        assert (await self.claim(THIRD, ago, gap=WEEK, of=of))[:2] == [0, b"n"]

    async def end(self, token: str) -> None:
        """The time of that lease has come to its end."""
        assert await self.redis.zadd(self.holders, {token: 1}, xx=True, ch=True) == 1

    async def claimed(self, *, of: str = THESE) -> int | None:
        found = await self.redis.hget(self.register, f"claimed:{of}")
        return None if found is None else int(found.partition(b":")[0])

    async def set_claimed(
        self, due: int, *, of: str = THESE, asked: int | None = None, until: int = 0
    ) -> None:
        now = await microseconds(self.redis) // 1000
        slot = f"{due}:{now if asked is None else asked}:{until or now + WEEK}"
        await self.redis.hset(self.register, f"claimed:{of}", slot)

    async def claimed_by_older(self, ago: float) -> None:
        """A version that knows no definitions has claimed that tick."""
        await self.redis.hset(self.register, "claimed", await self.due(ago))

    async def told_to_older(self) -> bytes | None:
        return await self.redis.hget(self.register, "claimed")

    async def definitions(self) -> set[str]:
        fields = [field.decode() for field in await self.redis.hkeys(self.register)]
        return {field.removeprefix("claimed:") for field in fields if field.startswith("claimed:")}

    async def next(self) -> dict[str, int]:
        """When the next claim of each definition is made."""
        fields = await self.redis.hgetall(self.register)
        return {
            field.decode().removeprefix("next:"): int(moment)
            for field, moment in fields.items()
            if field.startswith(b"next:")
        }

    async def records(self) -> list[list[Any]]:
        return [json.loads(one) for one in await self.redis.zrange(self.history, 0, -1)]

    async def outcomes(self) -> list[str]:
        return [record[0] for record in await self.records()]

    async def unended(self) -> set[str]:
        """The tokens of the runs that have begun and not ended."""
        fields = [field.decode() for field in await self.redis.hkeys(self.register)]
        return {field.removeprefix("run:") for field in fields if field.startswith("run:")}


def described(definition: str, **more: Any) -> str:
    """The metadata of a run."""
    return json.dumps({**more, "definition": definition}, separators=(",", ":"))

"""The scripts of jobs that run once, run by hand on a real server."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from tests.lua.scripts import HOUR, MINUTE, Scripts, shipped

PERMITS = ("forms", "bells", "fence", "queue", "permits")


class JobScripts(Scripts):
    """The steps of a job. A waiter that asks has a token, and its bell and seat are of that."""

    kind = "uniquejob"
    deadlines = frozenset({"", "over"})

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        roles = ("", "leases", "value", "fence", "owner", "over", "before", "seen", "about")
        self.holders, self.leases, self.value, self.fence = map(self.key, roles[:4])
        self.owner, self.over, self.before, self.seen, self.about = map(self.key, roles[4:])

    def text(self, step: str) -> bytes:
        shared: tuple[str, ...] = (*PERMITS, "tickets")
        if step in ("job_acquire", "job_release"):
            shared += ("runs", "room")
        elif step in ("job_enqueue", "job_withdraw"):
            shared = ("forms", "fence", "tickets")
        elif step == "job_renew":
            shared += ("runs",)
        elif step == "sit":
            shared = ()
        files = [*(f"shared/{name}" for name in shared), step]
        return b"".join(self.mutant.get(file) or shipped(file) for file in files)

    def keys(self, who: str, ticket: str = "") -> list[bytes]:
        held = [self.holders, self.leases, self.value, self.fence, self.queue]
        keys = [*held, self.bell(who), self.owner, self.over, self.seen]
        return [*keys, self.run_of(ticket), self.about] if ticket else keys

    def run_of(self, ticket: str) -> bytes:
        """The key that holds the token which runs that ticket."""
        return self.key(f"run.{ticket.partition('.')[0]}")

    async def acquire(
        self,
        token: str,
        *,
        who: str | None = None,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str = "{}",
        flags: str = "w",
        room: int | str = "",
        ticket: str = "",
        begin: str = "",
        session: str = "",
        limit: int = 1,
    ) -> Any:
        ours = f"bell.{session or token}"
        arguments = (token, ttl, retention, metadata, token[:16], flags, room, ticket, begin, ours, limit)
        return await self.run(self.words("job_acquire", self.keys(who or token, ticket), *arguments))

    async def renew(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        ticket: str = "",
        limit: int = 1,
    ) -> Any:
        arguments = (token, ttl, retention, ticket, limit)
        return await self.run(self.words("job_renew", self.keys(token, ticket), *arguments))

    async def release(
        self, token: str, flags: str = "r", *, retention: int = HOUR, ticket: str = "", known: int = 1
    ) -> Any:
        arguments = (token, retention, token[:16], flags, ticket, known)
        return await self.run(self.words("job_release", self.keys(token, ticket), *arguments))

    async def enqueue(
        self,
        ticket: str,
        ttl: int | None = None,
        flag: str = "",
        *,
        metadata: str = "{}",
        known: int = MINUTE,
        most: int = 100,
    ) -> Any:
        ms = int(ticket.partition(".")[2]) if ttl is None else ttl
        keys = [self.owner, self.over, self.before, self.about]
        return await self.run(self.words("job_enqueue", keys, ticket, ms, flag, metadata, known, most))

    async def withdraw(self, ticket: str) -> Any:
        keys = [self.owner, self.over, self.before, self.about]
        return await self.run(self.words("job_withdraw", keys, ticket))

    async def perform(self, token: str, ticket: str, begin: str = "k", **kwargs: Any) -> Any:
        return await self.acquire(token, ticket=ticket, begin=begin, **kwargs)

    async def wait(self, *tokens: str, **kwargs: Any) -> None:
        """Those are refused, hang up their bells, and are refused again."""
        for token in tokens:
            assert (await self.acquire(token, **kwargs))[0] == 0
            await self.sit(token, seat=token[:16])
            assert (await self.acquire(token, **{"flags": "wql", **kwargs}))[0] == 0

    # -- what is there

    async def stand(self) -> list[str]:
        """The beginnings of the tokens of who stands in the queue, in order."""
        return [entry.decode()[-16:] for entry in await self.waiting()]

    async def may_wait(self) -> set[str]:
        """Those of whom that is settled."""
        seen = {one.decode(): int(number) for one, number in (await self.redis.hgetall(self.seen)).items()}
        return {one[-16:] for one, number in seen.items() if number > 0 and one not in ("count", "begun")}

    async def owns(self) -> str | None:
        owner = await self.redis.get(self.owner)
        return None if owner is None else owner.decode()

    async def stands_beside(self) -> dict[str, str]:
        """The metadata of tickets."""
        found = await self.redis.hgetall(self.about)
        return {ticket.decode(): metadata.decode() for ticket, metadata in found.items()}

    async def runs(self) -> list[str]:
        return [token.decode() for token in await self.redis.zrange(self.holders, 0, -1)]

    async def are_over(self) -> dict[str, int]:
        """The remembered ends, and for how many ms more."""
        seconds, micros = await self.redis.time()
        now = seconds * 1000 + micros // 1000
        found = await self.redis.zrange(self.over, 0, -1, withscores=True)
        return {one.decode(): int(end - now) for one, end in found}

    async def end(self, token: str) -> None:
        """The time of that lease has come to its end."""
        assert await self.redis.zadd(self.holders, {token: 1}, xx=True, ch=True) == 1

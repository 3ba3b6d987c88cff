"""The scripts of limits, as they travel."""

from __future__ import annotations

from typing import Any

from aiolocks.kinds.limits import line_of
from tests.lua.scripts import HOUR, MINUTE, PermitScripts

ONE = {"all": 1, "a": 1}


class LimitScripts(PermitScripts):
    """The steps of limits. A line is named by caps, as users give them; each token is also a seat."""

    kind = "limits"
    shared = ("forms", "bells", "fence", "queue", "limits", "lines")

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.roles = ["", "leases", "turns", "fence", "queue"]
        self.turns = self.key("turns")
        self.caps: dict[str, int] = ONE

    def of(self, **caps: int) -> LimitScripts:
        """The same name, and other keys."""
        other = type(self)(self.redis, self.prefix, self.mutant)
        other.name, other.caps = self.name, caps
        other.queue = self.queue
        other.holders, other.leases, other.turns, other.fence, _ = map(other.key, self.roles)
        return other

    def text(self, step: str) -> bytes:
        if step != "force_limits":
            return super().text(step)
        self.shared, shared = ("bells", "stolen", "forcing"), self.shared
        try:
            return super().text(step)
        finally:
            self.shared = shared

    @property
    def line(self) -> str:
        return line_of(self.caps)

    @property
    def line_queue(self) -> bytes:
        return self.key(f"queue.{self.line}")

    @property
    def queues(self) -> list[bytes]:
        return [self.queue, self.line_queue]

    def bell(self, who: str) -> bytes:
        return self.key(f"bell.{who}.{self.line}")

    def keys(self, who: str) -> list[bytes]:
        return [*map(self.key, self.roles), self.bell(who), self.line_queue]

    async def take(self, token: str, who: str = "me", *, flags: str = "", ttl: int = MINUTE) -> Any:
        """The answer of `limits_acquire`."""
        arguments = (token, ttl, HOUR, "{}", self.line, token[:16], flags)
        return await self.run(self.words("limits_acquire", self.keys(who), *arguments))

    async def takes(self, token: str, who: str = "me", **how: Any) -> bool:
        return (await self.take(token, who, **how))[0] == 1

    async def wait(self, token: str, who: str = "me") -> list[bytes]:
        """Is refused, and waits from now on; the bells that were rung."""
        refused, _, *rung = await self.take(token, who, flags="w")
        assert refused == 0
        return rung

    async def give(self, token: str, who: str = "me", *, flags: str = "rl") -> list[bytes]:
        """Releases what is held; the bells that were rung."""
        freed, *rung = await self.run(self.releasing(token, who=who, seat=token[:16], flags=flags))
        assert freed == 1
        return rung

    async def used(self) -> list[int]:
        return await self.run(self.words("limits_locked", self.keys("me"), self.line))

    async def holding(self) -> set[str]:
        """The tokens that hold, as far as both keys and the counts agree."""
        leases: dict[bytes, bytes] = await self.redis.hgetall(self.leases)
        counts = {one.decode(): int(number) for one, number in leases.items() if one.startswith(b"#")}
        tokens = {one.decode(): lease for one, lease in leases.items() if not one.startswith(b"#")}
        assert set(tokens) == {one.decode() for one in await self.redis.zrange(self.holders, 0, -1)}
        counted: dict[str, int] = {}
        for lease in tokens.values():
            for one in lease.partition(b":")[0].decode().split(","):
                name = "#" + one.partition("=")[0]
                counted[name] = counted.get(name, 0) + 1
        keys = counts.pop("#", 0)
        assert counts == counted
        assert keys == len(counted)
        return set(tokens)

    async def waiting_lines(self) -> list[str]:
        """The keys at which lines wait, in the order of their turns, each with its line."""
        members = [member.decode().split() for member in await self.redis.zrange(self.turns, 0, -1)]
        places = [one for one in members if one[0][0] not in "!#"]
        back = sorted([place, turn, line[1:]] for line, place, turn in (m for m in members if m[0][0] == "!"))
        assert sorted([place, turn, line] for place, turn, line in places) == back
        return [f"{place} {line}" for place, turn, line in sorted(places, key=lambda one: one[1])]

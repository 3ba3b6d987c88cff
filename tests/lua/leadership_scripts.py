"""The scripts of a leadership, as they travel."""

from __future__ import annotations

from typing import Any

from aiolocks.kinds.leadership import Look, TermFound
from tests.lua.scripts import PermitScripts

FIRST = "1" * 16
"""A seat of a session."""


class LeadershipScripts(PermitScripts):
    """The steps of a leadership, and of those who observe it."""

    kind = "leadership"
    shared = (*PermitScripts.shared, "terms")

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.terms, self.news = self.key("terms"), self.key("news")

    def keys(self, who: str) -> list[bytes]:
        return [*super().keys(who), self.terms, self.news]

    def text(self, step: str) -> bytes:
        if step != "leadership_look":
            return super().text(step)
        self.shared, shared = ("forms", "fence"), self.shared
        try:
            return super().text(step)
        finally:
            self.shared = shared

    async def elect(self, token: str, metadata: str = "{}", **how: Any) -> Any:
        return await self.acquire(token, value="", seat=FIRST, metadata=metadata, **how)

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("leadership_annotate", self.keys("me"), token, metadata))

    async def look(self, since: int | str = "+inf") -> Look:
        keys = [self.key(), self.leases, self.terms]
        return Look(await self.run(self.words("leadership_look", keys, since)))

    async def log(self) -> list[TermFound]:
        """The terms that stand there, in order, each with its fencing token as its score."""
        found = []
        for member, score in await self.redis.zrange(self.terms, 0, -1, withscores=True):
            minted, _, described = member.partition(b":")
            assert int(minted) == int(score)
            found.append(TermFound(int(minted), described))
        return found

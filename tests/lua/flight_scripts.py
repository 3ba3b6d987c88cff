"""The scripts of the single flight, run by hand on a real server."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.lua.scripts import HOUR, MINUTE, Scripts, standing

LINGER = 5_000
"""Milliseconds."""


class FlightScripts(Scripts):
    """The steps of a single flight; those that it shares with the lock stand without what is in front."""

    kind = "singleflight"
    shared = ("forms", "bells", "fence", "locks", "flights")
    bare: ClassVar[frozenset[str]] = frozenset({"lock_renew", "lock_owned", "lock_locked"})
    seating = ("flight_acquire",)

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.run_key = self.key()
        self.value = self.key("value")
        self.fence = self.key("fence")

    def acquiring(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        fingerprint: str = "",
        after: bytes | str = "",
        queued: str | None = None,
        waits: str | None = None,
        in_turn: bool = False,
        ahead: float = 0,
        anew: bytes | str = "",
    ) -> tuple[Any, ...]:
        keys = [self.run_key, self.value, self.fence, self.queue]
        keys += [self.bell(who)] if (who := queued or waits) else []
        metadata = f'{{"fingerprint":"{fingerprint}","user":{{}}}}'
        flags = standing(queued=queued, waits=waits, in_turn=in_turn)
        arguments = (token, ttl, retention, metadata, fingerprint, after, flags, ahead, anew)
        return self.words("flight_acquire", keys, *arguments)

    def publishing(
        self,
        token: str,
        run: bytes,
        *,
        keep: int = 0,
        stale: int = 0,
        linger: int = LINGER,
        cost: int = 0,
        pause: int | str = "",
        retention: int = HOUR,
        tag: str = "v",
        payload: bytes = b"payload",
        made: int | None = None,
        begun: bytes | None = None,
    ) -> tuple[Any, ...]:
        keys = [self.run_key, self.value, self.fence, self.queue]
        arguments = (
            token,
            run,
            retention,
            keep,
            keep + stale,
            linger,
            cost,
            pause,
            tag,
            payload,
            2**53 if made is None else made,
            run if begun is None else begun,
        )
        return self.words("flight_publish", keys, *arguments)

    def forgetting(self, token: str = "f0" * 16, *, retention: int = HOUR) -> tuple[Any, ...]:
        return self.words("flight_forget", [self.run_key, self.value, self.fence], token, retention)

    async def forget(self, token: str = "f0" * 16, **kwargs: Any) -> bool:
        (dropped,) = await self.run(self.forgetting(token, **kwargs))
        return bool(dropped)

    async def acquire(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.acquiring(token, **kwargs))

    async def publish(self, token: str, run: bytes, **kwargs: Any) -> Any:
        return await self.run(self.publishing(token, run, **kwargs))

    async def release(self, token: str) -> Any:
        keys = [self.run_key, self.fence, self.queue]
        return await self.run(self.words("lock_release", keys, token, HOUR, 1))

    async def begin(self, token: str, **kwargs: Any) -> bytes:
        """The fencing token of a run that was had."""
        granted, run, *_ = await self.acquire(token, **kwargs)
        assert granted == 1
        fencing: bytes = run
        return fencing

    async def once(
        self, token: str = "b2" * 16, *, fingerprint: str = "", retention: int = HOUR, **kwargs: Any
    ) -> bytes:
        """The fencing token of a run that was had, and has left something."""
        kwargs["retention"] = retention
        run = await self.begin(token, fingerprint=fingerprint, retention=retention)
        assert (await self.publish(token, run, **kwargs))[0] == 1
        return run

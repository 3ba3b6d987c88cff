"""The scripts of all kinds, run by hand on a real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from aiolocks.transport.driver import RawConnection
from aiolocks.transport.keys import key
from aiolocks.transport.request import lua_sections

MINUTE = 60_000
HOUR = 3_600_000
DAY = 24 * HOUR
BELL = 2_000
QUEUE = 10_000
"""Milliseconds."""

SEAT = "0" * 16
WALK = 64
"""The most entries of the queue that one step looks at."""
"""Of who stands in the queue for a whole session."""

CARD = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}, separators=(",", ":"))
"""Stands beside the bells of a session."""

NO_FENCES = (
    *("", "garbage", "-1", "1.5", "nan", "-inf", "inf", "1e300", "0x17"),
    *(str(2**53 - 1), str(2**53), "9" * 400),
)
"""Numbers that no clock can have minted."""

TELLING_OF_THIEVES = (
    *(
        f"{kind}_{step}"
        for kind in ("lock", "reentrant", "permits", "multi", "spans")
        for step in ("renew", "release")
    ),
)


@cache
def shipped(file: str) -> bytes:
    """The text of a section: `permits_acquire`, `fence`; `sit` is a file of the tests."""
    if file == "sit":
        return (Path(__file__).parent / "sit.lua").read_bytes()
    return lua_sections()[file.removeprefix("shared/")]


_LOOP = re.compile(rb"^[^-\n]*?\b(?:while\b.*?\bdo\b|repeat\b)", re.MULTILINE)
_BOUND = b"""local turns = 0
local function turn()
  turns = turns + 1
  if turns > 20000 then error('this script does not end') end
end
"""


@lru_cache(maxsize=256)
def ending(text: bytes) -> bytes:
    """That script, which fails instead of going round for ever.

    A script that has written cannot be stopped: with an endless mutant, the server would be lost for all
    later tests.
    """
    return _BOUND + _LOOP.sub(rb"\g<0> turn()", text)


@lru_cache(maxsize=256)
def _digest(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


class Scripts:
    """The steps of one kind of lock, under a name of its own; arguments and replies as they travel.

    A waiter in the queue is called by a name, which is the session's in that of its bell.

    Args:
        mutant: Texts to run instead of those in the files, by their names: `lock_acquire`, `shared/fence`.
    """

    by_digest: ClassVar[bool] = True
    """Whether a text goes to the server only once: it has many thousand bytes."""
    kind: ClassVar[str]
    shared: ClassVar[tuple[str, ...]] = ()
    """The shared scripts before each step; `sit` stands alone."""
    bare: ClassVar[frozenset[str]] = frozenset()
    """The steps that do without."""
    looking: ClassVar[tuple[str, ...]] = ()
    """The steps that look through all keys."""
    seating: ClassVar[tuple[str, ...]] = ()
    """The steps that seat one who is refused, in a queue of bells alone."""

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        self.redis = redis
        self.prefix = prefix
        self.name = secrets.token_hex(4)
        self.mutant = mutant or {}
        self.queue = self.key("queue")

    def another(self) -> Self:
        """Of another name."""
        return type(self)(self.redis, self.prefix, self.mutant)

    def key(self, role: str = "") -> bytes:
        return key(self.prefix, self.kind, self.name, role)

    def bell(self, who: str) -> bytes:
        return self.key(f"bell.{who}")

    def text(self, step: str) -> bytes:
        shared = () if step == "sit" or step in self.bare else self.shared
        shared = ("lock_straight", "bells") if step == "lock_release" else shared
        shared = () if step == "lock_renew" else shared
        shared = ("forms", "bells", "fence", "locks") if step == "lock_steal" else shared
        shared += ("stolen",) if step.endswith(("_steal", *TELLING_OF_THIEVES)) else ()
        shared += ("ours",) if step in self.looking else ()
        shared += ("seats",) if step in self.seating else ()
        shared += ("recall",) if step in ("reentrant_acquire", "multi_acquire") else ()
        files = [*(f"shared/{name}" for name in shared), step]
        return b"".join(self.mutant.get(file) or shipped(file) for file in files)

    def words(self, step: str, keys: Sequence[bytes], *arguments: Any) -> tuple[Any, ...]:
        text = ending(self.text(step)) if self.mutant else self.text(step)
        return ("EVAL", text, len(keys), *keys, *arguments)

    async def run(self, words: tuple[Any, ...]) -> Any:
        command, *rest = words
        if command == "EVAL" and self.by_digest:
            with suppress(NoScriptError):
                return await self.redis.execute_command("EVALSHA", _digest(rest[0]), *rest[1:])
        return await self.redis.execute_command(*words)

    async def is_now(self, told: bytes) -> bool:
        """Whether that is the server's time, in microseconds, of a moment ago."""
        seconds, micros = await self.redis.time()
        return len(told) == 16 and -10_000_000 < int(told) - (seconds * 1_000_000 + micros) <= 0

    # -- the queue

    @property
    def queues(self) -> list[bytes]:
        return [self.queue]

    def sitting(
        self, who: str, *, ttl: int = BELL, queue_ttl: int = QUEUE, seat: str = "", card: str = ""
    ) -> tuple[Any, ...]:
        return self.words("sit", [self.bell(who)], ttl, queue_ttl, seat, card, *self.queues)

    async def sit(self, who: str, **kwargs: Any) -> None:
        await self.run(self.sitting(who, **kwargs))

    async def die(self, *who: str) -> None:
        """Those are not there any more: their bells have come to their end."""
        for one in who:
            assert await self.redis.delete(self.bell(one)) == 1

    async def waiting(self, queue: bytes | None = None) -> list[bytes]:
        """The bells, with their seats, of who stands in the queue, in order."""
        bells: list[bytes] = await self.redis.zrange(queue or self.queue, 0, -1)
        return bells

    async def stands(self, who: str) -> bool:
        """Whether that bell is there."""
        return bool(await self.redis.exists(self.bell(who)))

    async def states(self, *who: str) -> list[bytes | None]:
        """Of those bells: hanging (empty), `rung`, or dead (None)."""
        return [await self.redis.get(self.bell(one)) for one in who]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Ear]:
        """A connection to the same server that tracks as the sessions do."""
        ear = await Ear.open(self.redis)
        try:
            yield ear
        finally:
            await ear.aclose()

    # -- what is there

    deadlines: ClassVar[frozenset[str]] = frozenset()
    """Roles of the sorted sets whose scores are moved by who sends a step again."""

    async def everything(self) -> list[bytes]:
        """All keys of this name."""
        keys: list[bytes] = await self.redis.keys(f"{self.prefix}:{self.kind}*:{{{self.name}}}")
        return sorted(keys)

    async def state(self) -> Any:
        """All keys, byte for byte, without their ttls; of sets of deadlines who is in them."""
        moved = {self.key(role) for role in self.deadlines}
        found = {}
        for one in await self.everything():
            found[one] = await (self.redis.zrange(one, 0, -1) if one in moved else self.redis.dump(one))
        return found

    async def clear(self) -> None:
        if keys := await self.everything():
            await self.redis.delete(*keys)

    async def ttls(self) -> dict[bytes, int]:
        return {one: await self.redis.pttl(one) for one in await self.everything()}

    async def lasts(self, one: bytes, ms: int) -> bool:
        """Whether the ttl has just been set to these milliseconds."""
        return about(await self.redis.pttl(one), ms)


async def microseconds(redis: Redis) -> int:
    """The server's time."""
    seconds, rest = await redis.time()
    return int(seconds) * 10**6 + int(rest)


def about(remaining: float, ms: int) -> bool:
    """Whether `remaining` is left of a time that has just been `ms`."""
    return ms - min(5_000, ms // 2) < remaining <= ms


def standing(
    flags: str = "", *, queued: str | None, waits: str | None, in_turn: bool = False, told: bool = False
) -> str:
    """How one stands that is `queued` with its bell, and leaves when it gets in, or `waits` with it."""
    parts = ("ql" if queued else "", "w" if waits else "", "t" if in_turn else "", "h" if told else "")
    return "".join(sorted({*flags, *"".join(parts)}, key="qtposwhbl".index))


class LockScripts(Scripts):
    """The steps of a simple lock."""

    kind = "lock"
    stealing: ClassVar[str] = "lock_steal"

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.lock = self.key()
        self.fence = self.key("fence")

    async def acquire(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.acquiring(token, **kwargs))

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        return await self.run(self.words("lock_renew", [self.lock, self.fence], token, ttl, retention))

    async def steal(
        self, token: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        keys = [*self._keys(None)[:3], self.key("nest")]
        arguments = (token, ttl, retention, metadata)
        return await self.run(self.words(self.stealing, keys, *arguments))

    async def release(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.releasing(token, **kwargs))

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        arguments = (old, new, ttl, retention, metadata)
        return await self.run(self.words("lock_adopt", [self.lock, self.fence], *arguments))

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("lock_annotate", [self.lock], token, metadata))

    async def owned(self, token: str) -> Any:
        return await self.run(self.words("lock_owned", [self.lock], token))

    async def locked(self) -> Any:
        return await self.run(self.words("lock_locked", [self.lock]))

    # -- the words of a step, for a test that says them itself

    def acquiring(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
        queued: str | None = None,
        waits: str | None = None,
        in_turn: bool = False,
        told: bool = False,
        flags: str = "",
    ) -> tuple[Any, ...]:
        flags = standing(flags, queued=queued, waits=waits, in_turn=in_turn, told=told)
        keys = self._keys(queued or waits)
        return self.words("lock_acquire", keys, token, ttl, retention, metadata, flags)

    def releasing(
        self,
        token: str,
        *,
        retention: int = HOUR,
        ring: bool = True,
        leave: str | None = None,
        at_least: int | None = None,
    ) -> tuple[Any, ...]:
        more = () if at_least is None else (at_least,)
        return self.words("lock_release", self._keys(leave), token, retention, int(ring), *more)

    def _keys(self, queued: str | None) -> list[bytes]:
        return [self.lock, self.fence, self.queue] + ([] if queued is None else [self.bell(queued)])

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
        return all([await self.lasts(one, ms) for one, ms in expected if ms is not None])


class ReentrantScripts(LockScripts):
    """The steps of a lock that its owner may take again, and, of the same name, those of the simple lock."""

    shared = ("forms", "bells", "fence", "locks", "nest")
    stealing = "reentrant_steal"
    bare = frozenset(
        {
            "lock_acquire",
            "lock_renew",
            "lock_adopt",
            "lock_annotate",
            "lock_owned",
            "lock_locked",
        }
    )
    deadlines = frozenset({"nest"})
    seating = ("reentrant_acquire",)

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.nest = self.key("nest")
        self.simple = LockScripts(redis, prefix, mutant)
        self.simple.__dict__.update(
            {word: self.__dict__[word] for word in ("name", "lock", "fence", "queue")}
        )

    def text(self, step: str) -> bytes:
        if step != "reentrant_locked":
            return super().text(step)
        return b"".join(
            self.mutant.get(file) or shipped(file)
            for file in ("shared/forms", "shared/bells", "shared/locks", step)
        )

    def acquiring(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
        queued: str | None = None,
        waits: str | None = None,
        in_turn: bool = False,
        told: bool = False,
        flags: str = "",
    ) -> tuple[Any, ...]:
        flags = standing(flags, queued=queued, waits=waits, in_turn=in_turn, told=told)
        keys = self._keys(queued or waits)
        return self.words("reentrant_acquire", keys, token, ttl, retention, metadata, flags)

    def releasing(
        self, token: str, *, retention: int = HOUR, ring: bool = True, leave: str | None = None
    ) -> tuple[Any, ...]:
        return self.words("reentrant_release", self._keys(leave), token, retention, int(ring))

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        return await self.run(self.words("reentrant_renew", self._keys(None), token, ttl, retention))

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        del metadata  # the metadata beside the lock are those of the lease that took it first
        return await self.run(self.words("reentrant_adopt", self._keys(None), old, new, ttl, retention))

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("reentrant_annotate", self._keys(None), token, metadata))

    async def owned(self, token: str) -> Any:
        return await self.run(self.words("reentrant_owned", self._keys(None), token))

    async def locked(self, owner: str = "") -> Any:
        return await self.run(self.words("reentrant_locked", [self.lock], owner))

    def _keys(self, queued: str | None) -> list[bytes]:
        keys = [self.lock, self.fence, self.queue, self.nest]
        return keys + ([] if queued is None else [self.bell(queued)])

    async def state(self) -> Any:
        return await Scripts.state(self)

    async def nested(self) -> dict[bytes, float]:
        """The owner's tokens, by their deadlines."""
        return dict(await self.redis.zrange(self.nest, 0, -1, withscores=True))

    async def end(self, token: str) -> None:
        """The time of that lease has come to its end."""
        assert await self.redis.zadd(self.nest, {token: 1}, xx=True, ch=True) == 1


class MultiScripts(Scripts):
    """The steps of several simple locks at once."""

    kind = "lock"
    names = 3

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.all = [LockScripts(redis, prefix, mutant) for _ in range(self.names)]
        for number, one in enumerate(self.all):
            one.name = f"{self.name}.{number}"
            one.lock, one.fence, one.queue = one.key(), one.key("fence"), one.key("queue")

    def text(self, step: str) -> bytes:
        shared: tuple[str, ...] = ("shared/forms", "shared/bells", "shared/locks")
        if step == "multi_acquire":
            parts = ("forms", "bells", "fence", "locks", "seats", "recall")
            shared = tuple(f"shared/{part}" for part in parts)
        elif step in ("multi_locked", "sit"):
            shared = ()
        shared += ("shared/stolen",) if step in TELLING_OF_THIEVES else ()
        return b"".join(self.mutant.get(file) or shipped(file) for file in (*shared, step))

    def of(self, *numbers: int) -> MultiScripts:
        """The same, for some of the locks."""
        part = MultiScripts(self.redis, self.prefix, self.mutant)
        part.name = self.name
        part.all = [self.all[number] for number in numbers]
        return part

    def bell(self, who: str) -> bytes:
        tails = [one.key().partition(b":lock:")[2].hex() for one in self.all[1:]]
        return self.all[0].key(".".join(("bell", who, *tails)))

    @property
    def queues(self) -> list[bytes]:
        return [one.queue for one in self.all]

    def keys(self, queued: str | None = None, *, queues: bool = True) -> list[bytes]:
        keys = [one.lock for one in self.all] + [one.fence for one in self.all]
        keys += self.queues if queues else []
        return keys + ([] if queued is None else [self.bell(queued)])

    def acquiring(
        self,
        token: str,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str = "{}",
        flags: str = "",
        queued: str | None = None,
        waits: str | None = None,
    ) -> tuple[Any, ...]:
        flags = standing(flags, queued=queued, waits=waits)
        arguments = (len(self.all), token, ttl, retention, metadata, flags)
        return self.words("multi_acquire", self.keys(queued or waits), *arguments)

    def releasing(
        self, token: str, *, retention: int = HOUR, ring: bool = True, leave: str | None = None
    ) -> tuple[Any, ...]:
        return self.words("multi_release", self.keys(leave), len(self.all), token, retention, int(ring))

    async def acquire(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.acquiring(token, **kwargs))

    async def release(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.releasing(token, **kwargs))

    async def seal(self, token: str, minted: int, *, retention: int = HOUR, queued: str | None = None) -> Any:
        arguments = (len(self.all), token, minted, retention)
        return await self.run(self.words("multi_seal", self.keys(queued), *arguments))

    async def give_back(self, token: str, who: str, *, retention: int = HOUR) -> Any:
        arguments = (len(self.all), token, retention)
        return await self.run(self.words("multi_return", self.keys(who), *arguments))

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        keys = self.keys(queues=False)
        return await self.run(self.words("multi_renew", keys, len(self.all), token, ttl, retention))

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str = "{}"
    ) -> Any:
        arguments = (len(self.all), old, new, ttl, retention, metadata)
        return await self.run(self.words("multi_adopt", self.keys(queues=False), *arguments))

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("multi_annotate", [one.lock for one in self.all], token, metadata))

    async def owned(self, token: str) -> Any:
        return await self.run(self.words("multi_owned", [one.lock for one in self.all], token))

    async def locked(self) -> Any:
        return await self.run(self.words("multi_locked", [one.lock for one in self.all]))

    async def values(self) -> list[bytes | None]:
        return [await one.value() for one in self.all]

    async def fences(self) -> list[bytes | None]:
        return [await one.fence_value() for one in self.all]

    async def everything(self) -> list[bytes]:
        keys: list[bytes] = await self.redis.keys(f"{self.prefix}:lock*:{{{self.name}*}}")
        return sorted(keys)


class PermitScripts(Scripts):
    """The steps of kinds with several permits."""

    kind = "semaphore"
    shared = ("forms", "bells", "fence", "queue", "permits")
    deadlines = frozenset({""})

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.roles = ["", "leases", "value", "fence", "queue"]
        self.holders, self.leases, self.value, self.fence, _ = map(self.key, self.roles)

    def keys(self, who: str) -> list[bytes]:
        return [*map(self.key, self.roles), self.bell(who)]

    def acquiring(
        self,
        token: str,
        permits: int = 1,
        *,
        value: int | str = 3,
        who: str = "me",
        seat: str = SEAT,
        flags: str = "",
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
        kept: int = DAY,
    ) -> tuple[Any, ...]:
        arguments = (token, ttl, retention, metadata, permits, value, seat, flags, kept)
        return self.words("permits_acquire", self.keys(who), *arguments)

    def releasing(
        self,
        token: str,
        *,
        who: str = "me",
        seat: str = SEAT,
        flags: str = "r",
        retention: int = HOUR,
        at_least: int | None = None,
    ) -> tuple[Any, ...]:
        more = () if at_least is None else (at_least,)
        return self.words("permits_release", self.keys(who), token, retention, seat, flags, *more)

    def sitting(self, who: str, *, seat: str = SEAT, **kwargs: Any) -> tuple[Any, ...]:
        return super().sitting(who, seat=seat, **kwargs)

    async def acquire(self, token: str, permits: int = 1, **kwargs: Any) -> Any:
        return await self.run(self.acquiring(token, permits, **kwargs))

    async def release(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.releasing(token, **kwargs))

    async def renew(
        self, token: str, *, ttl: int = MINUTE, retention: int = HOUR, kept: int = DAY, seat: str = SEAT
    ) -> Any:
        return await self.run(self.words("permits_renew", self.keys("me"), token, ttl, retention, kept, seat))

    async def steal(
        self, token: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        return await self.run(self.words("permits_steal", self.keys("me"), token, ttl, retention, metadata))

    async def adopt(
        self, old: str, new: str, *, ttl: int = MINUTE, retention: int = HOUR, metadata: str | bytes = "{}"
    ) -> Any:
        arguments = (old, new, ttl, retention, metadata)
        return await self.run(self.words("permits_adopt", self.keys("me"), *arguments))

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("permits_annotate", self.keys("me"), token, metadata))

    async def owned(self, token: str) -> Any:
        return await self.run(self.words("permits_owned", self.keys("me"), token))

    async def available(self, value: int | str = 3, *, flags: str = "") -> Any:
        return await self.run(self.words("permits_available", self.keys("me"), value, flags))

    async def resize(self, value: int, *, first: int = 3, kept: int = DAY, seat: str = SEAT) -> Any:
        return await self.run(self.words("permits_resize", self.keys("me"), first, value, kept, seat))

    # -- what is there

    def entry(self, who: str, seat: str = SEAT) -> bytes:
        return self.bell(who) + seat.encode()

    async def held(self) -> dict[bytes, int]:
        """How many permits each token holds."""
        leases = await self.redis.hgetall(self.leases)
        total = int(leases.pop(b"held", 0))
        found = {token: int(lease.partition(b":")[0]) for token, lease in leases.items()}
        assert set(await self.redis.zrange(self.holders, 0, -1)) == set(found)
        assert sum(found.values()) == total
        return found

    async def lease(self, token: str) -> bytes | None:
        value: bytes | None = await self.redis.hget(self.leases, token)
        return value

    async def end(self, token: str) -> None:
        """The time of that lease has come to its end."""
        assert await self.redis.zadd(self.holders, {token: 1}, xx=True, ch=True) == 1


class SpanScripts(Scripts):
    """The steps of what holds spans in three modes."""

    kind = "rangelock"
    shared = ("forms", "bells", "fence", "queue", "spans")
    deadlines = frozenset({"ends", "waits"})
    looking = ("spans_acquire", "spans_locked")
    sides = ("readers", "upgradables", "writers", "reservations", "turns", "calls", "places")

    def __init__(self, redis: Redis, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.roles = [
            "",
            "ends",
            "waits",
            "fence",
            "queue",
            *(f"{side}.{end}" for side in self.sides for end in "ab"),
        ]
        self.spans, self.ends, self.waits, self.fence, _ = map(self.key, self.roles[:5])

    def keys(self, who: str) -> list[bytes]:
        return [*map(self.key, self.roles), self.bell(who)]

    def acquiring(
        self,
        token: str,
        mode: str,
        a: float | str = 0,
        b: float | str = 10,
        *,
        under: str = "-",
        who: str = "me",
        flags: str = "",
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
        marks: int = BELL,
    ) -> tuple[Any, ...]:
        arguments = (token, ttl, retention, metadata, mode, a, b, under, marks, SEAT, flags)
        return self.words("spans_acquire", self.keys(who), *arguments)

    def releasing(
        self, token: str, *, who: str = "me", flags: str = "r", retention: int = HOUR
    ) -> tuple[Any, ...]:
        return self.words("spans_release", self.keys(who), token, retention, SEAT, flags)

    def sitting(self, who: str, **kwargs: Any) -> tuple[Any, ...]:
        return super().sitting(who, seat=SEAT, **kwargs)

    async def acquire(
        self, token: str, mode: str, a: float | str = 0, b: float | str = 10, **kwargs: Any
    ) -> Any:
        return await self.run(self.acquiring(token, mode, a, b, **kwargs))

    async def release(self, token: str, **kwargs: Any) -> Any:
        return await self.run(self.releasing(token, **kwargs))

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        return await self.run(self.words("spans_renew", self.keys("me"), token, ttl, retention, SEAT))

    async def adopt(
        self,
        old: str,
        new: str,
        mode: str,
        a: float | str = 0,
        b: float | str = 10,
        *,
        ttl: int = MINUTE,
        retention: int = HOUR,
        metadata: str | bytes = "{}",
    ) -> Any:
        arguments = (old, new, ttl, retention, metadata, mode, a, b, SEAT)
        return await self.run(self.words("spans_adopt", self.keys("me"), *arguments))

    async def annotate(self, token: str, metadata: str = "new") -> Any:
        return await self.run(self.words("spans_annotate", self.keys("me"), token, metadata))

    async def owned(self, token: str) -> Any:
        return await self.run(self.words("spans_owned", self.keys("me"), token, SEAT))

    async def locked(self, mode: str, a: float | str = 0, b: float | str = 10, *, under: str = "-") -> Any:
        return await self.run(self.words("spans_locked", self.keys("me"), mode, a, b, under, SEAT))

    async def change(self, token: str, mode: str, a: float | str = 0, b: float | str = 10) -> Any:
        return await self.run(self.words("spans_change", self.keys("me"), token, mode, a, b, SEAT))

    # -- what is there

    async def wait(
        self, who: str, mode: str, a: float | str = 0, b: float | str = 10, **kwargs: Any
    ) -> list[Any]:
        """That one is refused, takes its place, and is refused again, as waiters are."""
        token = token_of(who)
        first = await self.acquire(token, mode, a, b, who=who, flags="w", **kwargs)
        assert first[0] == 0, first
        await self.sit(who, ttl=MINUTE)  # there may be a hundred of them
        refused: list[Any] = await self.acquire(token, mode, a, b, who=who, flags="w", **kwargs)
        assert refused[0] == 0, refused
        return refused

    async def seat(self, who: str, mode: str, a: float | str = 0, b: float | str = 10) -> None:
        """That one is refused, and takes its place, by one request: where there are many."""
        assert (await self.acquire(token_of(who), mode, a, b, who=who, flags="w"))[0] == 0

    async def come(self, who: str, mode: str, a: float | str = 0, b: float | str = 10, **kwargs: Any) -> Any:
        """That one tries again, having been woken."""
        return await self.acquire(token_of(who), mode, a, b, who=who, **{"flags": "wpl", **kwargs})

    async def held(self) -> dict[bytes, bytes]:
        """Mode and ends of each that holds."""
        spans = await self.redis.hgetall(self.spans)
        return {
            token: b" ".join(span.split(b" ")[:3]) for token, span in spans.items() if b"bell." not in token
        }

    async def mark(self, who: str) -> str | None:
        """p for a reservation, q for a place, t for a turn, - for none; None for who does not wait."""
        span = await self.redis.hget(self.spans, self.bell(who))
        if span is None:
            return None
        mark = span.split(b" ")[3].decode()
        place = await self.redis.zscore(self.key("places.a"), self.bell(who))
        return "q" if mark == "-" and place is not None else mark

    async def side(self, side: str) -> list[tuple[bytes, float, float]]:
        """Those spans: whose, and their ends."""
        lefts = await self.redis.zrange(self.key(f"{side}.a"), 0, -1, withscores=True)
        rights = dict(await self.redis.zrange(self.key(f"{side}.b"), 0, -1, withscores=True))
        assert {one for one, _ in lefts} == set(rights)
        return [(one, left, rights[one]) for one, left in lefts]

    async def end(self, token: str) -> None:
        """The time of that lease has come to its end."""
        assert await self.redis.zadd(self.ends, {token: 1}, xx=True, ch=True) == 1

    async def end_waiting(self, who: str) -> None:
        """The time of what that waiter has put there has come to its end."""
        assert await self.redis.zadd(self.waits, {self.bell(who): 1}, xx=True, ch=True) == 1


def token_of(who: str) -> str:
    """A token for who is called so."""
    return who.encode().hex().ljust(32, "0")


class Ear(asyncio.Protocol):
    """A connection that the server tells when what was read on it, behind CACHING YES, has changed."""

    def __init__(self, raw: RawConnection) -> None:
        self._raw = raw
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._pushes: list[Any] = []
        raw.transport.set_protocol(self)

    @classmethod
    async def open(cls, redis: Redis) -> Ear:
        ear = cls(await RawConnection.open(redis.connection_pool, protocol=3))
        await ear.say("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        return ear

    async def say(self, *words: Any) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._raw.transport.write(hiredis.pack_command(words))  # type: ignore[arg-type]
        return await reply

    async def sit(self, lock: Scripts, who: str) -> None:
        await self.say("CLIENT", "CACHING", "YES")
        await self.say(*lock.sitting(who))

    async def told(self) -> list[Any]:
        """The pushes on this connection since the last time: before the reply to a later request."""
        await self.say("PING")
        pushes, self._pushes = self._pushes, []
        return pushes

    async def aclose(self) -> None:
        self._raw.transport.close()
        await self._raw.wait_closed()

    def data_received(self, data: bytes) -> None:
        for reply in self._raw.replies.read(data):
            if type(reply) is hiredis.PushNotification:
                self._pushes.append(list(reply))
            elif isinstance(reply, Exception):
                self._replies.popleft().set_exception(reply)
            else:
                self._replies.popleft().set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw.lost(exc)
        for reply in self._replies:
            reply.set_exception(exc or ConnectionError("closed"))

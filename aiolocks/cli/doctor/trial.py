"""The trial: two sessions acquire, renew, hand over and release a name that no program uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from ... import Backoff, ConfigurationError, Lock, LockError, LockEvent, Session
from ..._tasks import spawn
from ...inspect.twins import in_words, twins_in_use
from ...lock.sources import engine_of
from ...transport import Dialect
from ...transport.driver import RawConnection
from ...transport.faults import CONNECTING
from ...transport.keys import key
from ..exits import NO_SERVER, CommandError
from .facts import PATIENCE, Facts, ask
from .findings import Finding, Level
from .refusals import DENIED, mend, trouble_of

_TTL: Final = 5.0
_SHORT: Final = 0.5
_FEW: Final = 3
_KEYSPACE: Final = "notify-keyspace-events"
_REASONS: Final = {
    "maxmemory": "CONFIG SET maxmemory <more>, or remove keys that are not needed",
    "replica": "connect to the master, and see min-replicas-to-write",
    "persist": "make room on the disk that CONFIG GET dir names",
    "this user may not": "ACL SETUSER <user> with the rules of the minimal ACL in the docs",
    "did not write": "DEL that key, or choose another --prefix",
}
"""Parts of what a refusal says, and what fixes it where no check has found it before."""
NOT_MADE: Final = Finding(
    Level.NOTE,
    "trial",
    "no lock was acquired, for this user might not be able to release it",
    "fix the errors above, then run the doctor again",
)


class _Waiting:
    """A listener that tells when somebody begins to wait."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def on_waiting(self, event: LockEvent) -> None:
        self.begun.set()


async def pushes(client: Redis, facts: Facts, *, user: str) -> AsyncGenerator[Finding, None]:
    """Whether the server offers RESP3 and tracking, by which it tells waiters that it is their turn.

    Args:
        client: A client with RESP3 and one connection, which this closes.
        facts: Of the server.
        user: The name by which the server knows the user.
    """
    try:
        dialect = await _learned(client, closes=facts.closes)
        if dialect.unasked:
            yield Finding(
                Level.NOTE,
                "questions",
                f"the server, or a proxy before it, closes the connection on {', '.join(dialect.unasked)}: a "
                "session connects again and does without",
                "let the proxy pass them; without CLIENT INFO, INFO and CLIENT KILL, a request that is late "
                "when a connection breaks may hold a lock for a ttl",
            )
        if why := dialect.why:
            yield Finding(
                Level.WARNING,
                "resp3",
                f"there is no RESP3, {why}: {_cost(facts)}",
                "allow HELLO 3 in the server (no rename-command HELLO) and in proxies between",
            )
            return
        yield Finding(Level.OK, "resp3", "the server speaks RESP3")
        refused: dict[str, str] = {}
        for words in (("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"), ("CLIENT", "CACHING", "YES")):
            try:
                await ask(client, *words)
            except ResponseError as error:
                # CACHING says that it needs TRACKING, where only that is denied.
                if words[1] == "TRACKING" or trouble_of(error) == DENIED:
                    refused[f"client|{words[1].lower()}"] = trouble_of(error)
        if refused:
            # Keyspace notifications may serve in its place: the trial shows it.
            yield Finding(
                Level.NOTE,
                "tracking",
                f"{' and '.join(refused)} is refused, so waiters are not woken by tracking",
                f"{mend(refused, f'ACL SETUSER {user}')}, where this user may see the names of all keys that "
                "change",
            )
        else:
            yield Finding(Level.OK, "tracking", "the server tells waiters that it is their turn")
    finally:
        with suppress(Exception):  # of a connection that is of no use any more
            await client.aclose()


async def _learned(client: Redis, *, closes: bool) -> Dialect:
    """What a session would find out of this server: why it speaks RESP2, and what it must not ask.

    `closes`: a question has closed a connection, so that each is tried.
    """
    dialect, pool = Dialect(), client.connection_pool

    def open_raw(protocol: int, patience: float, named: bool) -> Coroutine[Any, Any, RawConnection]:  # noqa: FBT001
        return RawConnection.open(pool, protocol=protocol, patience=patience, named=named)

    try:
        async with asyncio.timeout(3 * PATIENCE):
            raw = await dialect.open(open_raw, label="the server")
            closes = closes or bool(dialect.unasked) or await raw.closes_on(("CLIENT", "INFO"), PATIENCE)
            raw.abort()
            if closes:
                raw = await dialect.open_anew(open_raw, label="the server")
    except CONNECTING as error:
        raise CommandError(f"the server has gone away: {error}", NO_SERVER) from None
    raw.abort()
    return dialect


def _cost(facts: Facts) -> str:
    if not _missing(facts.settings.get(_KEYSPACE, "")):
        return "each session hears of free locks on a second connection, by keyspace notifications"
    longest = Backoff().maximum
    return (
        f"waiters ask again and again, so a lock lies free for up to {longest * 1000:g} ms after its "
        f"release, each process that waits sends {2 / longest:.0f} requests a second for each name, and a "
        "loss is known at the next renewal"
    )


def _missing(value: str) -> list[str]:
    """The events that `wakeup='keyspace'` needs, and that are not told."""
    return [flag for flag in "Kgx" if flag not in value and not (flag in "gx" and "A" in value)]


def keyspace(facts: Facts) -> Finding:
    """Whether keyspace notifications are on, which `--wakeup keyspace` needs."""
    value = facts.settings.get(_KEYSPACE)
    if value is None:
        return Finding(Level.NOTE, "keyspace", f"the user may not read {_KEYSPACE}", "see the trial")
    missing = _missing(value)
    if not missing:
        return Finding(Level.OK, "keyspace", f"{_KEYSPACE} is {value!r}")
    return Finding(
        Level.ERROR,
        "keyspace",
        f"{_KEYSPACE} is {value!r} and lacks {''.join(missing)}: wakeup='keyspace' cannot serve",
        f"CONFIG SET {_KEYSPACE} {value}{''.join(missing)}",
    )


async def tried(
    client: Redis | RedisCluster, *, prefix: str, name: str, wakeup: str, explained: bool
) -> Finding:
    """Acquires, renews, hands over and releases a name that no program uses, and removes all keys of it.

    A failure is `explained` where a check has found an error before.
    """
    waiting = _Waiting()
    patience = _SHORT if explained else PATIENCE  # a refusal that may pass is tried again for so long
    options: dict[str, Any] = {
        "prefix": prefix,
        "wakeup": wakeup,
        "command_timeout": PATIENCE,
        "fence_retention": 1.0,
        "guard": None,
    }
    try:
        async with (
            asyncio.timeout(3 * PATIENCE),
            Session(client, **options) as one,
            Session(client, **options, listeners=[waiting]) as other,
        ):
            await (await Lock(one, name, ttl=_TTL, blocking_timeout=patience).acquire()).release()
            took = await _hand_over(one, other, name, waiting)
            woken = {way for way, times in other.statistics().wakeups.items() if times}
    except ConfigurationError as error:
        return Finding(Level.ERROR, "trial", str(error), f"CONFIG SET {_KEYSPACE} Kgx, or use wakeup='auto'")
    except (LockError, TimeoutError) as error:
        return Finding(
            Level.ERROR,
            "trial",
            f"a lock was not acquired: {error}",
            _advice(str(error), explained=explained),
        )
    finally:
        await _sweep(client, prefix, name)
    said = f"a lock was acquired, renewed, handed over in {took * 1000:.1f} ms and released"
    if heard := woken & {"tracking", "keyspace"}:
        return Finding(Level.OK, "trial", f"{said}; the waiter was woken by {heard.pop()}")
    if wakeup == "poll":
        return Finding(Level.OK, "trial", f"{said}; the waiter asked again, as wakeup='poll' says")
    return Finding(
        Level.WARNING,
        "trial",
        f"{said}; the waiter heard no push and asked again",
        "allow RESP3 and CLIENT TRACKING, also in proxies between; or CONFIG SET notify-keyspace-events Kgx",
    )


async def twin_names(client: Redis | RedisCluster, prefix: str) -> Finding | None:
    """Names in use that stand as they are, and percent-encoded; None also where the user may not look."""
    try:
        async with Session(client, prefix=prefix, wakeup="poll", command_timeout=PATIENCE) as session:
            found = await twins_in_use(engine_of(session))
    except LockError:
        return None
    if not found:
        return None
    more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return Finding(
        Level.WARNING,
        "names",
        f"{', '.join(in_words(found[:_FEW]))}{more}: two names that do not exclude each other",
        "make names by one way: name_of(template, ...), lock.of(...), a decorator or Locked; no f-string",
    )


async def _hand_over(one: Session, other: Session, name: str, waiting: _Waiting) -> float:
    """Seconds from the release by one session to the grant to the other."""
    loop = asyncio.get_running_loop()
    await (await Lock(other, name, ttl=_TTL, blocking_timeout=PATIENCE).acquire()).release()  # connects
    began = loop.time()
    lease = await Lock(one, name, ttl=_TTL, blocking_timeout=PATIENCE).acquire()
    trip = loop.time() - began
    await lease.extend(_TTL)
    lock = Lock(other, name, ttl=_TTL, blocking_timeout=2 * PATIENCE)
    waiter = spawn(loop, lock.acquire(), name="aiolocks-waits", context=None)
    begun = spawn(loop, waiting.begun.wait(), name="aiolocks-begun", context=None)
    try:
        await asyncio.wait({waiter, begun}, return_when="FIRST_COMPLETED")
        await asyncio.sleep(0.02 + 4 * min(trip, 0.1))  # it listens by then
        began = loop.time()
        await lease.release()
        second = await waiter
        took = loop.time() - began
        await second.release()
    finally:
        waiter.cancel()
        waiting.begun.set()
        await asyncio.wait({waiter})
    return took


def _advice(said: str, *, explained: bool) -> str:
    if explained:
        return "fix the errors above, then run the doctor again"
    return next((fix for part, fix in _REASONS.items() if part in said), "fix what the server says there")


async def _sweep(client: Redis | RedisCluster, prefix: str, name: str) -> None:
    """Removes what the trial has left; what cannot be removed has a ttl."""
    for role in ("", "fence", "queue"):
        with suppress(ResponseError, CommandError):
            await ask(client, "DEL", key(prefix, "lock", name, role))

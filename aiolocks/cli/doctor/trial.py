"""The trial: two sessions acquire, renew, hand over and release a name that is nobody's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from ... import Backoff, ConfigurationError, Lock, LockError, LockEvent, Session
from ...transport import Dialect
from ...transport.driver import RawConnection
from ...transport.faults import CONNECTING
from ...transport.keys import key
from ..exits import NO_SERVER, CommandError
from .facts import PATIENCE, Facts, ask
from .findings import Finding, Level

_TTL: Final = 5.0
_SHORT: Final = 0.5
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
        if why := await _no_resp3(client):
            yield Finding(
                Level.WARNING,
                "resp3",
                f"there is no RESP3, {why}: {_cost(facts)}",
                "allow HELLO 3 in the server (no rename-command HELLO) and in proxies between",
            )
            return
        yield Finding(Level.OK, "resp3", "the server speaks RESP3")
        denied: list[str] = []
        for words in (("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"), ("CLIENT", "CACHING", "YES")):
            try:
                await ask(client, *words)
            except ResponseError as error:
                # CACHING says that it needs TRACKING, where only that is denied.
                if words[1] == "TRACKING" or "permission" in str(error):
                    denied.append(f"client|{words[1].lower()}")
        if denied:
            # Keyspace notifications may serve in its place: the trial shows it.
            yield Finding(
                Level.NOTE,
                "tracking",
                f"{' and '.join(denied)} is refused, so waiters are not woken by tracking",
                f"ACL SETUSER {user} {' '.join(f'+{word}' for word in denied)}, where this user may see the "
                "names of all keys that change",
            )
        else:
            yield Finding(Level.OK, "tracking", "the server tells waiters that it is their turn")
    finally:
        with suppress(Exception):  # of a connection that is of no use any more
            await client.aclose()


async def _no_resp3(client: Redis) -> str:
    """Why a session would speak RESP2 here; empty where it speaks RESP3."""
    dialect, pool = Dialect(), client.connection_pool
    try:
        async with asyncio.timeout(3 * PATIENCE):
            raw = await dialect.open(
                lambda protocol, patience: RawConnection.open(pool, protocol=protocol, patience=patience),
                label="the server",
            )
    except CONNECTING as error:
        raise CommandError(f"the server has gone away: {error}", NO_SERVER) from None
    raw.abort()
    return dialect.why


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
    """Acquires, renews, hands over and releases a name that is nobody's, and removes all keys of it.

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


async def _hand_over(one: Session, other: Session, name: str, waiting: _Waiting) -> float:
    """Seconds from the release by one session to the grant to the other."""
    loop = asyncio.get_running_loop()
    await (await Lock(other, name, ttl=_TTL, blocking_timeout=PATIENCE).acquire()).release()  # connects
    began = loop.time()
    lease = await Lock(one, name, ttl=_TTL, blocking_timeout=PATIENCE).acquire()
    trip = loop.time() - began
    await lease.extend(_TTL)
    waiter = asyncio.ensure_future(Lock(other, name, ttl=_TTL, blocking_timeout=2 * PATIENCE).acquire())
    try:
        await asyncio.wait(
            {waiter, asyncio.ensure_future(waiting.begun.wait())}, return_when="FIRST_COMPLETED"
        )
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

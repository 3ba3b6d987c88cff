"""Checks of what the user may do: each command and key that scripts need is tried, and nothing is written."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from importlib import resources
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import MovedError, NoPermissionError, NoScriptError, ResponseError

from ...transport.keys import ANY_KEY, key, parse, prefix_of
from ...transport.steps.family import families, kinds
from .facts import ask, text
from .findings import Finding, Level
from .refusals import CLOSED, mend, trouble, trouble_of

_ATTEMPTS: Final = {
    word: f"{word} {rest}".rstrip()
    for word, rest in {
        "get": "KEY",
        "set": "KEY v PX -1",
        "del": "KEY",
        "exists": "KEY",
        "pexpire": "KEY 1",
        "pttl": "KEY",
        "time": "",
        "zadd": "KEY score m",
        "zcard": "KEY",
        "zrange": "KEY 0 -1",
        "zrank": "KEY m",
        "zrem": "KEY m",
        "hdel": "KEY f",
        "hexists": "KEY f",
        "hget": "KEY f",
        "hgetall": "KEY",
        "hincrby": "KEY f x",
        "hkeys": "KEY",
        "hlen": "KEY",
        "hmget": "KEY f",
        "hset": "KEY f v f",
        "zcount": "KEY -inf +inf",
        "zrangebylex": "KEY - +",
        "zrangebyscore": "KEY -inf +inf",
        "zremrangebyrank": "KEY 0 0",
        "zremrangebyscore": "KEY 0 0",
        "zscore": "KEY m",
        "type": "KEY",
        "unlink": "KEY",
        "scan": "0 COUNT 1",
    }.items()
}
"""How each command is tried out, such that it writes nothing."""

LOCK: Final[Sequence[str]] = (
    *("get", "set", "del", "exists", "pexpire", "pttl", "time"),
    *("zadd", "zcard", "zrange", "zrank", "zrem"),
)
"""The commands that the scripts of a `Lock` call."""
INSPECTING: Final[Sequence[str]] = ("scan", "type", "hgetall")
"""The commands of `session.inspect()`."""


def others() -> dict[str, Sequence[str]]:
    """The commands that further kinds need besides the commands of a `Lock`, by kind.

    NOTE: the table in docs/reference/index.md is made of the same.
    """
    needs: dict[str, Sequence[str]] = {kind.title: kind.needs for kind in kinds().values() if kind.needs}
    return needs | {"session.inspect()": INSPECTING}


CHECKS: Final = ("scripts", "keys", "commands")
"""The checks of what a lock cannot do without."""
_CONNECTION: Final = {
    "client|info": ("CLIENT", "INFO"),
    "client|kill": ("CLIENT", "KILL", "ID", "9223372036854775807", "ADDR", "0.0.0.0:0"),
}
"""The requests of a new connection, and how to try them: no connection has this number."""
_ROLES: Final = {"": ":*", "fence": ".fence:*", "queue": ".queue:*", "bell.x": ".bell.*"}
"""The keys beside a lock, and the end of the pattern that allows them."""
_SCANNING: Final = 1.0
"""Seconds in which the keys of a server are looked through for prefixes; of very many, some are not seen."""


async def allowed(client: Redis, *, prefix: str, name: str, user: str) -> AsyncGenerator[Finding, None]:
    """The rights that this user lacks, with the ACL rule that allows each. No program uses the name."""
    grant = f"ACL SETUSER {user}"
    scripts = await _scripts(client, key(prefix, "lock", name), grant)
    yield scripts
    if scripts.level is Level.ERROR:
        return
    keys = await _keys(client, prefix, name, grant)
    yield keys
    if keys.level is not Level.ERROR:
        for finding in await _words(client, key(prefix, "lock", name), grant):
            yield finding
    yield await _connection(client, grant)
    if (shared := await _prefixes(client, prefix)) is not None:
        yield shared


async def _scripts(client: Redis, probe: bytes, grant: str) -> Finding:
    troubles: dict[str, str] = {}
    for word, script in {"eval": "return 1", "evalsha": "0" * 40}.items():
        try:
            try:
                await ask(client, word.upper(), script, 0)
            except ResponseError as error:
                if isinstance(error, NoScriptError) or trouble_of(error) not in ("", CLOSED):
                    raise
                await ask(client, word.upper(), script, 1, probe)  # a proxy needs a key to know the server
        except NoScriptError:
            pass
        except ResponseError as error:
            if not (why := trouble_of(error)):
                raise  # it serves no client now
            troubles[word] = why
    if not troubles:
        return Finding(Level.OK, "scripts", "the server runs Lua scripts for this user")
    says = "; ".join(f"{word}: {why}" for word, why in troubles.items())
    return Finding(
        Level.ERROR, "scripts", f"every request of a lock is a script, and {says}", mend(troubles, grant)
    )


async def _keys(client: Redis, prefix: str, name: str, grant: str) -> Finding:
    refused: list[str] = []
    for role in _ROLES:
        try:
            await ask(client, "EVAL", "return 1", 1, key(prefix, "lock", name, role))
        except NoPermissionError:
            refused.append(f"{prefix}:lock{_ROLES[role]}")
    if refused:
        says = f"the user may not use the keys {', '.join(refused)}"
        return Finding(Level.ERROR, "keys", says, f"{grant} ~{prefix}:*")
    try:
        await ask(client, "EVAL", "return 1", 1, key(prefix, "waits", "all"))
    except MovedError:  # a node of a cluster asks for permission first, and then who has the key
        pass
    except NoPermissionError:
        says = (
            f"the user may not use the keys {prefix}:waits:*: deadlocks over several processes are not found"
        )
        return Finding(Level.WARNING, "keys", says, f"{grant} ~{prefix}:waits:*")
    return Finding(Level.OK, "keys", f"the user may use the keys {prefix}:*")


async def _words(client: Redis, probe: bytes, grant: str) -> list[Finding]:
    """The commands that scripts may not call: of a `Lock`, and of other kinds."""
    script = resources.files(__package__ or "").joinpath("words.lua").read_text()
    said: list[Any] = await ask(client, "EVAL", script, 1, probe, *_ATTEMPTS.values())
    answers = zip(_ATTEMPTS, map(text, said), strict=True)
    troubles = {word: why for word, answer in answers if (why := trouble(answer))}
    found: list[Finding] = []
    if refused := {word: troubles[word] for word in LOCK if word in troubles}:
        says = "; ".join(f"{word}: {why}" for word, why in refused.items())
        found.append(
            Finding(Level.ERROR, "commands", f"the scripts of a Lock need {says}", mend(refused, grant))
        )
    else:
        found.append(Finding(Level.OK, "commands", "the scripts of a Lock may call all that they need"))
    if refused := {word: why for word, why in troubles.items() if word not in LOCK}:
        lacking = ", ".join(
            what for what, words in others().items() if any(word in refused for word in words)
        )
        found.append(Finding(Level.NOTE, "kinds", f"the user cannot use {lacking}", mend(refused, grant)))
    else:
        found.append(Finding(Level.OK, "kinds", "the scripts of all other kinds may call all that they need"))
    return found


async def _connection(client: Redis, grant: str) -> Finding:
    troubles: dict[str, str] = {}
    for word, words in _CONNECTION.items():
        try:
            await ask(client, *words)
        except ResponseError as error:
            if why := trouble_of(error):
                troubles[word] = why
    if not troubles:
        return Finding(
            Level.OK, "reconnecting", "a session can end its old connection after a new one is made"
        )
    says = "; ".join(f"{word}: {why}" for word, why in troubles.items())
    return Finding(
        Level.NOTE,
        "reconnecting",
        f"a request that is late when a connection breaks may hold a lock for a ttl ({says})",
        f"{mend(troubles, grant)}, where this user may close connections of others",
    )


async def _prefixes(client: Redis, prefix: str) -> Finding | None:
    """The prefixes in use that a user of this one may use too, or whose users may use this one."""
    found: set[str] = set()
    cursor, until = "0", time.monotonic() + _SCANNING
    while time.monotonic() < until:
        try:
            cursor, keys = await ask(client, "SCAN", cursor, "MATCH", ANY_KEY, "COUNT", 1000)
        except (ResponseError, ValueError):  # before several servers, Envoy makes one reply of theirs
            return None  # what it may not see is not looked at
        for raw in keys:
            one = raw if isinstance(raw, bytes) else str(raw).encode()
            other = prefix_of(one)
            place = None if other is None else parse(other, one)
            if other is not None and place is not None and place.kind in families():
                found.add(other)
        if text(cursor) == "0":
            break
    inner = [other for other in found if other.startswith(f"{prefix}:")]
    outer = [other for other in found if prefix.startswith(f"{other}:")]
    pairs = [(prefix, one) for one in sorted(inner)] + [(one, prefix) for one in sorted(outer)]
    if not pairs:
        return Finding(Level.OK, "prefixes", f"no other prefix in use shares keys with {prefix}:*")
    says = "; ".join(
        f"a user who may use ~{one}:* may use the locks of the prefix {two}" for one, two in pairs
    )
    return Finding(
        Level.WARNING, "prefixes", says, "choose prefixes that do not begin with another one and a colon"
    )

"""Checks of what a server tells of itself. No function of this module does I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from .facts import Facts
from .findings import Finding, Level
from .refusals import CLOSED, UNKNOWN, mend, trouble_of

OLDEST: Final = (6, 2)
_OTHERS: Final = {"Valkey": "valkey_version", "Redict": "redict_version"}
"""Servers that began as a copy of Redis, and the field of INFO that names their own version."""
_CLOCKS: Final = 1.0
"""Seconds by which the clocks of a server and of this machine may differ."""
_NEARLY: Final = 0.9
_SMALL_TABLE: Final = 10_000
_TABLE: Final = 1_000_000


def about(facts: Facts) -> Iterator[Finding]:
    """The findings from these facts, in the order in which they should be read."""
    if not facts.info:
        yield Finding(
            Level.NOTE,
            "info",
            f"INFO is {_refused(facts, 'info')}, so version, role, memory and replicas are not known",
            _mended(facts, "info"),
        )
    else:
        for check in _OF_INFO:
            yield check(facts)
    if facts.settings:
        yield _tracking_table(facts)
    else:
        yield Finding(
            Level.NOTE,
            "settings",
            f"CONFIG GET is {_refused(facts, 'config|get')}, so some settings were not checked",
            _mended(facts, "config|get"),
        )
    if facts.ahead is not None:
        yield _clock(facts)


def _refused(facts: Facts, word: str) -> str:
    """Why a question was refused."""
    error = facts.refused.get(word)
    return (error and trouble_of(error)) or "refused"


def _mended(facts: Facts, word: str) -> str:
    why = _refused(facts, word)
    administrator = "run the doctor as an administrator, or: " if why not in (UNKNOWN, CLOSED) else ""
    return administrator + mend({word: why}, "ACL SETUSER <user>")


def _version(facts: Facts) -> Finding:
    said = str(facts.info.get("redis_version", ""))
    name = "Redis"
    for other, field in _OTHERS.items():  # they say which Redis they can stand in for, too
        if own := facts.info.get(field):
            name, said = other, str(own)
    numbers = tuple(int(number) for number in re.findall(r"\d+", said)[:2])
    if not numbers or numbers >= OLDEST:
        return Finding(Level.OK, "version", f"{name} {said or 'of an unknown version'}")
    return Finding(
        Level.ERROR,
        "version",
        f"{name} {said} is too old: locks need {'.'.join(map(str, OLDEST))} or newer",
        "install Redis 7.2 or newer, or Valkey 8 or newer",
    )


def _role(facts: Facts) -> Finding:
    if facts.number("loading"):
        return Finding(
            Level.ERROR,
            "role",
            "the server loads its data and refuses commands until it has done so",
            "wait until INFO persistence says loading:0",
        )
    if facts.info.get("role") == "slave":
        host, port = facts.info.get("master_host"), facts.info.get("master_port")
        return Finding(
            Level.ERROR,
            "role",
            "the server is a replica, and locks need the master",
            f"connect to the master: --redis redis://{host}:{port}",
        )
    return Finding(Level.OK, "role", "the server is a master")


def _eviction(facts: Facts) -> Finding:
    policy = str(facts.info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return Finding(Level.OK, "eviction", "the server throws no key away when its memory is full")
    if not facts.number("maxmemory"):
        return Finding(Level.OK, "eviction", f"maxmemory-policy {policy} has no effect without maxmemory")
    return Finding(
        Level.WARNING,
        "eviction",
        f"maxmemory-policy is {policy}: the server may throw held locks away when its memory is full",
        "CONFIG SET maxmemory-policy noeviction",
    )


def _memory(facts: Facts) -> Finding:
    used, most = facts.number("used_memory"), facts.number("maxmemory")
    if not most:
        return Finding(Level.OK, "memory", "maxmemory is not set")
    share = f"{used:,} of {most:,} bytes (maxmemory) are in use".replace(",", " ")
    fix = f"CONFIG SET maxmemory {2 * max(used, most)}, or remove keys that are not needed"
    if facts.info.get("maxmemory_policy", "noeviction") != "noeviction" or used < _NEARLY * most:
        return Finding(Level.OK, "memory", share)
    if used < most:
        return Finding(Level.WARNING, "memory", f"{share}: no lock can be acquired when all are", fix)
    return Finding(Level.ERROR, "memory", f"{share}: the server refuses to acquire any lock", fix)


def _persistence(facts: Facts) -> Finding:
    if facts.info.get("rdb_last_bgsave_status") == "err" and facts.settings.get("save") != "":
        return Finding(
            Level.ERROR,
            "persistence",
            "the last snapshot (BGSAVE) failed, and the server refuses writes until one succeeds",
            "make room on the disk that CONFIG GET dir names, then BGSAVE; or: "
            "CONFIG SET stop-writes-on-bgsave-error no",
        )
    if facts.info.get("aof_last_write_status") == "err":
        return Finding(
            Level.ERROR,
            "persistence",
            "the server could not write its append-only file, and refuses writes until it can",
            "make room on the disk that CONFIG GET dir names",
        )
    if not facts.number("aof_enabled"):
        kept = "nothing" if facts.settings.get("save") == "" else "what the last snapshot has"
        return Finding(
            Level.NOTE,
            "persistence",
            f"after a crash the server knows {kept}: holders learn of it when they have connected again",
            "CONFIG SET appendonly yes, then CONFIG SET appendfsync always (an acquire waits for the disk)",
        )
    how = facts.settings.get("appendfsync", "")
    if how in ("", "always"):
        return Finding(Level.OK, "persistence", "the server writes each lock to its append-only file")
    lost = "a crash of the machine loses the locks of what the system had not yet written"
    if how == "everysec":
        lost = (
            "a crash of the machine loses the locks of the last second; where the disk is slow, the end of "
            "the process alone, too, and of more than a second"
        )
    return Finding(
        Level.NOTE,
        "persistence",
        f"appendfsync is {how}: {lost}",
        "CONFIG SET appendfsync always (an acquire waits for the disk)",
    )


def _replicas(facts: Facts) -> Finding:
    replicas = facts.number("connected_slaves")
    wanted = facts.settings.get("min-replicas-to-write") or facts.settings.get("min-slaves-to-write") or "0"
    good = facts.number("min_slaves_good_slaves") if "min_slaves_good_slaves" in facts.info else replicas
    if wanted.isdecimal() and good < int(wanted):
        return Finding(
            Level.ERROR,
            "replicas",
            f"{good} of the {wanted} replicas of min-replicas-to-write are there: the server refuses writes",
            f"start the replicas that are missing, or: CONFIG SET min-replicas-to-write {good}",
        )
    if replicas:
        return Finding(
            Level.OK,
            "replicas",
            f"{replicas} are connected; locks with replicas=1 wait until one of them has the lock",
        )
    return Finding(
        Level.NOTE,
        "replicas",
        "there are none: no lock can be acquired or renewed while this server is down",
        "start a second server with replicaof <host> <port>, and Sentinel; see Choose a topology in the docs",
    )


def _clients(facts: Facts) -> Finding:
    connected, most = facts.number("connected_clients"), facts.number("maxclients")
    if not most or connected < _NEARLY * most:
        return Finding(Level.OK, "clients", f"{connected} are connected")
    return Finding(
        Level.WARNING,
        "clients",
        f"{connected} of {most} (maxclients) are connected, and each session needs a connection of its own",
        f"CONFIG SET maxclients {2 * most}",
    )


def _tracking_table(facts: Facts) -> Finding:
    said = facts.settings.get("tracking-table-max-keys", "")
    most = int(said) if said.isdecimal() else 0
    tracked = facts.number("tracking_total_keys")
    if not most or (most >= _SMALL_TABLE and tracked < _NEARLY * most):
        return Finding(
            Level.OK, "table", f"the tracking table holds {tracked} keys of {most or 'any number'}"
        )
    return Finding(
        Level.WARNING,
        "table",
        f"the tracking table holds {tracked} keys of {most}: when it is full, waiters are woken for nothing",
        f"CONFIG SET tracking-table-max-keys {max(_TABLE, 2 * most)}",
    )


def _clock(facts: Facts) -> Finding:
    ahead = facts.ahead or 0.0
    if abs(ahead) <= _CLOCKS + facts.uncertain:
        return Finding(
            Level.OK, "clock", f"the clocks of the server and of this machine differ by {abs(ahead):.3f} s"
        )
    side = "ahead of" if ahead > 0 else "behind"
    return Finding(
        Level.WARNING,
        "clock",
        f"the server's clock is {abs(ahead):.1f} s {side} that of this machine, "
        "and schedules and fencing tokens go by the server's",
        "timedatectl set-ntp true, on the server and on this machine",
    )


_OF_INFO: Final[tuple[Callable[[Facts], Finding], ...]] = (
    _version,
    _role,
    _eviction,
    _memory,
    _persistence,
    _replicas,
    _clients,
)

"""The rules after every test, of any subject.

No key left that should not be and none without a ttl, no connection and no task left over, nothing reported
to the event loop's exception handler, no token in a log. The fixtures in ``conftest.py`` see to it that every
async test is looked at.

Objects that a test has abandoned may need a moment to go: an undo that is under way, a task whose
cancellation has been asked for. So everything is looked at until it is clean, for at most `GRACE`; a clean
test waits for nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

GRACE = 0.2
"""Seconds in which what is under way may end: as long as an undo over a slow link may take."""

_OF_A_NODE = "restore-asking"
"""Last used for this: the connections by which nodes of a cluster give each other keys, kept for a while."""


class HygieneError(AssertionError):
    """Raised behind a test that left something behind."""

    def __init__(self, problems: Iterable[str]) -> None:
        super().__init__("left behind:\n" + "\n".join(f"- {problem}" for problem in problems))


@dataclass(frozen=True)
class Leavings:
    """The keys that a test may leave on a server.

    Attributes:
        anything: Any key, as long as it has a ttl: the test is about holders that never release.
        patterns: Keys of the test's own, as for `fnmatch`; they need no ttl either.
    """

    anything: bool = False
    patterns: tuple[str, ...] = ()

    def forgive(self, key: str, ttl_ms: int) -> bool:
        if any(fnmatchcase(key, pattern) for pattern in self.patterns):
            return True
        return ttl_ms >= 0 and (self.anything or is_fence(key))


def is_fence(key: str) -> bool:
    """Whether a key may stay for a while: the last fencing token, ``prefix:kind.fence:{name}``, the value
    of a semaphore, the terms of a leadership, the card of a session that has waited. A name may well contain
    the same.
    """
    place = key.partition("{")[0]
    return any(role in place for role in (".fence:", ".value:", ".card:", ".terms:", ".stolen:"))


class Inspector:
    """Looks at one server from outside: its keys and its connections.

    It is synchronous, and so no part of any event loop and nothing that could disturb there.

    Args:
        client: A connection of its own to the server.
        prefix: Look only at keys that begin so and were not there at `begin`, and at no connections: others
            use the server too.
    """

    def __init__(self, client: BlockingRedis, *, prefix: str | None = None) -> None:
        self._redis = client
        self._prefix = prefix
        self._connections_before: frozenset[int] = frozenset()
        self._keys_before: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Take what is there now as given. A server of our own is emptied first."""
        if self._prefix is None:
            _, *connections = (
                self._redis.pipeline(transaction=False).flushall().client_list().client_id().execute()
            )
            self._connections_before = frozenset(others(*connections))
        else:
            self._keys_before = frozenset(key for key, _ in self._keys())

    def keys(self) -> list[str]:
        """Keys on it, but those of fencing tokens."""
        return sorted(key for key, _ in self._keys() if not is_fence(key) and key not in self._keys_before)

    def problems(self, leavings: Leavings) -> list[str]:
        """The faults at the end of a test."""
        found = []
        if self._prefix is None:
            asked = self._redis.pipeline(transaction=False).info("keyspace").client_list().client_id()
            databases, *connections = asked.execute()
            keys = self._keys_in(databases)
        else:
            keys = self._keys()
        for key, ttl_ms in keys:
            if key not in self._keys_before and not leavings.forgive(key, ttl_ms):
                left = "without a ttl" if ttl_ms < 0 else f"for {ttl_ms} ms more"
                found.append(f"key {key!r}, {left}")
        if self._prefix is None:
            found += [
                f"connection to the server, of {client['name'] or 'no name'}, last used for {client['cmd']}"
                for identity, client in others(*connections).items()
                if identity not in self._connections_before and client["cmd"] != _OF_A_NODE
            ]
        return found

    def remove_keys(self) -> None:
        """Leave a server that others use as it was; one of our own is emptied by the next `begin` anyway."""
        if self._prefix is not None:
            for key, _ in self._keys():
                if key not in self._keys_before:
                    self._redis.unlink(key)

    def close(self) -> None:
        self._redis.close()

    def _keys(self) -> Iterator[tuple[str, int]]:
        """Every key with its ttl in milliseconds, -1 for none; of all databases where the server is ours."""
        if self._prefix is not None:
            return self._keys_like(f"{self._prefix}*")
        return self._keys_in(self._redis.info("keyspace"))

    def _keys_in(self, databases: Iterable[str]) -> Iterator[tuple[str, int]]:
        for database in databases:
            self._redis.select(int(database.removeprefix("db")))
            yield from self._keys_like("*")

    def _keys_like(self, pattern: str) -> Iterator[tuple[str, int]]:
        keys = list(self._redis.scan_iter(match=pattern, count=1000))
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        for key, ttl_ms in zip(keys, pipeline.execute() if keys else (), strict=True):
            if ttl_ms != -2:  # it has expired since
                yield key.decode(errors="backslashreplace"), ttl_ms


def others(connections: Iterable[dict[str, str]], own: int) -> dict[int, dict[str, str]]:
    """Connections but that one, by their id."""
    return {int(one["id"]): one for one in connections if int(one["id"]) != own}


class LoopWatch:
    """Looks at the running event loop: tasks left over, and what was reported to its exception handler."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._before = asyncio.all_tasks()
        self._handler_before = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._report)

    def problems(self) -> list[str]:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() - self._before if task is not own]
        return [f"{task!r}" for task in tasks] + [
            f"in the loop's exception handler: {text}" for text in self.reports
        ]

    def close(self) -> None:
        """End the leftover tasks, so that they do not reach into the next test."""
        self._loop.set_exception_handler(self._handler_before)
        for task in asyncio.all_tasks() - self._before - {asyncio.current_task()}:
            task.cancel()

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self.reports.append(f"{context['message']}\n{trace}".rstrip())


class TokenWatch(logging.Handler):
    """Looks at everything that the library logs, for the token of a lease."""

    # 128 bits or more in hexadecimal. Forty digits are no token: they are the digest that the server knows a
    # script by.
    _TOKEN = re.compile(r"(?<![0-9a-f])(?![0-9a-f]{40}(?![0-9a-f]))[0-9a-f]{32,}")

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if self._TOKEN.search(text):
            self.problems.append(f"a token in the log: {text}")

    @contextmanager
    def installed(self) -> Iterator[None]:
        logger = logging.getLogger("aiolocks")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


def pool_problems(client: Redis) -> list[str]:
    """Connections that were taken out of a client's pool and not given back. Ask before it is closed."""
    # No public name tells; every pool of redis-py has this one.
    out = len(client.connection_pool._in_use_connections)
    return [f"{out} connections out of the pool of {client!r}"] if out else []


async def settle(look: Callable[[], list[str]], *, grace: float = GRACE) -> list[str]:
    """Look until there are no problems, for at most `grace` seconds; the problems that stay."""
    # Errors that nobody retrieved are reported when their task is collected. The young generation is where
    # those of this test are; a full collection would cost more than most tests.
    gc.collect(1)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    while (problems := look()) and loop.time() < deadline:
        await asyncio.sleep(0.002)
    return problems

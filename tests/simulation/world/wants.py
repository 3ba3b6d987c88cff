"""What a task may want of a kind of lock, and how a schedule uses it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.support.history import Mode


@dataclass(frozen=True, kw_only=True)
class Want:
    """The request of one acquire.

    Attributes:
        names: Of the lock, or of several at once.
        mode: The claims that it excludes.
        low: Left end of an interval.
        high: Right end of an interval, which is not part of it.
        permits: How many permits of a semaphore.
        keys: Of limits, of which it wants a permit each.
        cache: Seconds for which its session keeps it between uses.
        by: Another kind that excludes it.
        confirm: Whether the end of its block waits for the answer to the release.
    """

    names: tuple[str, ...] = ("x",)
    mode: Mode = "writer"
    low: float = float("-inf")
    high: float = float("inf")
    permits: int = 1
    keys: tuple[str, ...] = ()
    cache: float = 0.0
    by: str = ""
    confirm: bool = True

    def __str__(self) -> str:
        text = "+".join(self.names)
        if self.cache or self.by:
            text += f" by {self.by}" if self.by else f" (cache {self.cache:g} s)"
        if self.keys:
            text += f" with {'+'.join(self.keys)}"
        if self.mode != "writer" or self.low > float("-inf"):
            text += f" as {self.mode}"
        if self.low > float("-inf"):
            text += f" of {self.low:g}-{self.high:g}"
        text += "" if self.confirm else " unconfirmed"
        return text if self.permits == 1 else f"{text} x {self.permits}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of lock.

    Attributes:
        wanted: Draws what a task wants.
        lock: Describes it: `lock(session, want, **options)`; of several servers, there is a session for each.
        doings: The acts of a holder beside holding, with how often.
        capacity: How many permits there are.
        strict: Whether it is had in the order of arrival.
        spans: Whether it has readers and writers.
        phased: Whether its readers and writers take turns.
        nests: Whether its holder may have it again.
        topology: The servers under it: `one` server, independent `masters`, a `cluster`, or behind
            `sentinel`.
        hosts: The servers that it is on.
        stepwise: Whether it is taken one part after the other: a waiter may find by its poll that it is free.
        apart: Whether the keys of a lease may be on two nodes for a while.
        replicas: How many replicas must have a lease before it counts.
        limited: Whether it has keys, each with its cap.
        whole: All that there is.
        cached: Whether its session may keep it between uses.
        steals: Whether some of its tasks take it by force.
        unconfirmed: Whether most of its blocks do not wait for the answer to the release.
        work: The tool that is built with locks, by its name in `works`; then there is no `lock` of its own.
        play: What a task does with that tool, if it does not stand in `works`.
        near: So many waiters at the front of a queue are near it; None: as in the library, which are more
            than a world has.
        faults: The only ones that befall it, unless others are asked for; empty: all.
        lasting: A part of keys that stay for ever.
        remembered: Parts of keys that stay for a week.
    """

    name: str
    wanted: Callable[[random.Random], Want]
    lock: Callable[..., Any]
    doings: tuple[str, ...] = ()
    capacity: int = 1
    strict: bool = False
    spans: bool = False
    phased: bool = False
    nests: bool = False
    topology: str = "one"
    hosts: tuple[str, ...] = ("redis",)
    stepwise: bool = False
    apart: bool = True
    replicas: int = 0
    limited: bool = False
    whole: Want = Want()
    steals: bool = False
    cached: bool = False
    unconfirmed: bool = False
    work: str = ""
    play: Callable[..., Awaitable[None]] | None = None
    near: int | None = None
    faults: tuple[str, ...] = ()
    lasting: str = ""
    remembered: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def one(_: random.Random) -> Want:
    return Want()


def simple(cls: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, want, **options: cls(session, want.names[0], **options)


def none(*_: Any, **__: Any) -> Any:
    raise NotImplementedError


HANDLED = ("extend", "adopt", "detach")

"""The leases that the running code is inside of, the innermost first: a context variable.

A child task, a thread of `asyncio.to_thread` and a callback get a copy of the context, and so know them, too.

Invariants:
- no entry keeps a lease alive: contexts last as long as the tasks, timers and threads that have them;
- the exit of a body takes its own entry off, if it is the innermost one of its context; any other entry that
  has ended stays, is passed over, and goes when the chain has grown to twice what was alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from .lease import Lease


Entry: TypeAlias = "tuple[weakref.ref[Lease], Entry | None, int, int]"
"""The lease; the entry around it; how many there are with it; and with how many the ended ones go."""

FEW: Final = 16
INSIDE: Final[ContextVar[Entry | None]] = ContextVar("aiolocks_inside", default=None)


def nested(lease: weakref.ref[Lease], around: Entry) -> Entry:
    """The entry of a lease that is entered inside of other leases."""
    if around[2] < around[3]:
        return lease, around, around[2] + 1, around[3]
    alive = [ref for ref in _chain(around) if (one := ref()) is not None and one._bears]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - for this file
    limit = max(FEW, 2 * len(alive))
    entry: Entry | None = None
    for number, ref in enumerate(reversed(alive), 1):
        entry = ref, entry, number, limit
    return lease, entry, len(alive) + 1, limit


def enter(lease: Lease) -> None:
    """The code of this context is inside of it from now on."""
    ref, around = weakref.ref(lease), INSIDE.get()
    INSIDE.set((ref, None, 1, FEW) if around is None else nested(ref, around))


def leave(lease: Lease) -> None:
    """The code of this context is not inside of it any more, if it was so last."""
    innermost = INSIDE.get()
    if innermost is not None and innermost[0]() is lease:
        INSIDE.set(innermost[1])


def leases() -> Iterator[Lease]:
    """The leases that the running code is inside of, the innermost first."""
    for ref in _chain(INSIDE.get()):
        lease = ref()
        if lease is not None and lease._bears:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
            yield lease


def _chain(entry: Entry | None) -> Iterator[weakref.ref[Lease]]:
    while entry is not None:
        yield entry[0]
        entry = entry[1]

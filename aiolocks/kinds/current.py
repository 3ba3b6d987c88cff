"""`current_lease` and `ensure_held`: a function reaches the lease that its caller holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from ..errors import LockNotOwnedError
from ..lock.acquirable import Acquirable
from ..lock.inside import leases as entered
from ..lock.lease import Lease
from ..lock.naming import fits
from ..lock.options import lock_name
from ..lock.sources import is_session, works_for

if TYPE_CHECKING:
    from .. import Session
    from .spans import RangeLease, RangeLock, RWLock, SpanLease

LeaseT = TypeVar("LeaseT", bound=Lease)
Mode = Literal["reader", "upgradable", "writer"]
_MODES: Final = ("reader", "upgradable", "writer")
"""Each mode may do what the modes before it may."""


@overload
def current_lease(lock: None = None, /) -> Lease: ...
@overload
def current_lease(lock: RWLock, /) -> SpanLease: ...
@overload
def current_lease(lock: RangeLock, /) -> RangeLease: ...
@overload
def current_lease(lock: Acquirable[LeaseT], /) -> LeaseT: ...


def current_lease(lock: Any = None, /) -> Any:
    """The innermost lease that the running code is inside of.

    ```python
    orders = Lock(redis, "order:{order_id}")


    @orders
    async def ship(order_id: int) -> None:
        await store.write(order_id, current_lease(orders).fencing_token)
    ```

    A task is inside of a lease from its `async with` on until the end of that body: also in a function that
    the lock decorates, in a handler with `Locked`, `Limited` or `locked`, and in the function of a
    `Schedule`, a `Leadership`, a `UniqueJob` or a `Combiner`. The tasks that it begins there are inside, too,
    and so are functions of `asyncio.to_thread` and the `def` handlers of FastAPI. A lease that was acquired
    and not entered does not count, nor does one that was released or detached. A lease that was lost counts
    until its body has ended: `ensure_held` of it raises. No I/O.

    Args:
        lock: A lease of this lock only, or of a copy of it, as `of` and a decorator make them. For a `Lock`,
            also the lease of a `MultiLock` that has its name. Default: of any lock.

    Raises:
        LookupError: The running code is not inside of such a lease.
        TypeError: This is no lock.
    """
    return innermost(lock, entered_leases())


def innermost(lock: Any, leases: Iterable[Lease]) -> Lease:
    """The first of these leases, which are innermost first, that is one of that lock; of any, if it is None.

    Raises:
        LookupError, TypeError: As `current_lease`.
    """
    if lock is None:
        for lease in leases:
            return lease
        raise LookupError("the running code is not inside of a lease")
    one: Any = getattr(lock, "_one", lock)  # of a RWLock or a RangeLock
    if not isinstance(one, Acquirable):
        raise TypeError(f"current_lease() takes a lock, not {lock!r}")
    for lease in leases:
        if _is_of(one, lease, of_any_mode=one is not lock):
            return lease
    raise LookupError(f"the running code is not inside of a lease of {lock!r}")


def ensure_held(
    name: str, /, *, kind: str | None = None, mode: Mode | None = None, session: Session | None = None
) -> Lease:
    """Returns the lease of that name that the running code is inside of, if it can be relied on now.

    For a function that must be called under a lock. It finds what `current_lease` finds. No I/O, so call it
    right before every write.

    Args:
        name: Name of the lock, as `name_of` makes it of values; one of the names of a `MultiLock`.
        kind: Kind of the lock, such as `"lock"`, `"multilock"` or `"rwlock"`. Default: any.
        mode: For a `RWLock` or a `RangeLock`: the least that the caller must hold. A writer may do what an
            upgradable may, and an upgradable what a reader may. Of a `RangeLock`, the interval is not looked
            at. Default: any, and any kind.
        session: The session that holds it. Default: any.

    Raises:
        LockNotOwnedError: The running code is not inside of such a lease.
        LockLostError: It is, and the lease was lost.
        TypeError, ValueError: An argument is wrong.
    """
    return held_now(name, entered_leases(), kind=kind, mode=mode, session=session)


def held_now(
    name: str, leases: Iterable[Lease], *, kind: str | None, mode: Mode | None, session: Session | None
) -> Lease:
    """The lease that `ensure_held` returns, out of these leases, which are innermost first.

    Raises:
        LockNotOwnedError, LockLostError, TypeError, ValueError: As `ensure_held`.
    """
    wanted = lock_name(name)
    if kind is not None and not isinstance(kind, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"kind must be a str such as 'lock', not {type(kind).__name__}")
    if mode is not None and mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    if session is not None and not is_session(session):
        raise TypeError(f"session must be an aiolocks.Session, not {type(session).__name__}")
    lost: Lease | None = None
    for lease in leases:
        if (
            wanted in lease._names  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            and _is_of_kind(lease, kind, mode)
            and (session is None or _works_for(lease, session))
        ):
            if lease.remaining() > 0.0:
                return lease
            lost = lost or lease
    if lost is not None:
        lost.ensure_held()
    label = (kind or "lock") if mode is None else f"{kind or 'lock'} ({mode})"
    raise LockNotOwnedError(label, wanted, "the running code is not inside of a lease of it")


def entered_leases() -> Iterator[Lease]:
    """The leases that the running code is inside of, the innermost first."""
    return entered()


def _is_of_kind(lease: Lease, kind: str | None, mode: Mode | None) -> bool:
    of, _, its_mode = lease.kind.partition(".")
    if kind is not None and kind.lower() not in (of, lease.kind):
        return False
    return mode is None or (its_mode != "" and _MODES.index(its_mode) >= _MODES.index(mode))


def _is_of(lock: Any, lease: Lease, *, of_any_mode: bool) -> bool:
    kind, label = lease.kind, lock._label.lower()  # noqa: SLF001 - as below
    if of_any_mode:
        kind, label = kind.partition(".")[0], label.partition(".")[0]
    texts, names = lock._held_as(), lease._names  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if kind == label:
        named = all(any(fits(text, name) for text in texts) for name in names)
        named = named and all(any(fits(text, name) for name in names) for text in texts)
    else:
        named = (label, kind) == ("lock", "multilock") and any(fits(texts[0], name) for name in names)
    return named and _works_for(lease, *lock._sources_())  # pyright: ignore[reportPrivateUsage]


def _works_for(lease: Lease, *sources: Any) -> bool:
    """Whether one of these sessions, or of the default sessions of these clients, holds it."""
    engine: Any = lease._engine  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return engine is None or any(works_for(source, engine) for source in sources)  # None: of `testing.held`

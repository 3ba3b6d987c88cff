"""`current_lease` and `ensure_held` for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from ..kinds.current import Mode, entered_leases, held_now, innermost
from .described import Described
from .leases import leases

if TYPE_CHECKING:
    from ._generated import Lease, LeaseT, Lock, RangeLease, RangeLock, RWLock, Session


@overload
def current_lease(lock: None = None, /) -> Lease: ...
@overload
def current_lease(lock: RWLock, /) -> Lease: ...
@overload
def current_lease(lock: RangeLock, /) -> RangeLease: ...
@overload
def current_lease(lock: Lock[LeaseT], /) -> LeaseT: ...


def current_lease(lock: Any = None, /) -> Any:
    """The innermost lease of this thread that the running code is inside of, as `aiolocks.current_lease`.

    ```python
    orders = locks.lock("order:{order_id}")


    @orders
    def ship(order_id):
        store.write(order_id, current_lease(orders).fencing_token)
    ```

    A thread is inside of a lease from its `with` on until the end of that body: also in a function that the
    lock decorates, and in the function of a `Schedule` or a `Leadership`. A thread that it starts there is
    not, unless it runs in a copy of the context (`contextvars.copy_context().run`). No I/O.

    Args:
        lock: A lease of this lock only, or of a copy of it, as `of` and a decorator make them. Default: of
            any lock.

    Raises:
        LookupError: The running code is not inside of such a lease.
        TypeError: This is no lock of `aiolocks.sync`.
    """
    if lock is not None and not isinstance(lock, Described):
        raise TypeError(f"current_lease() of aiolocks.sync takes one of its locks, not {lock!r}")
    inner = None if lock is None else lock._here()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of the same package
    inside = _inside()
    return inside[innermost(inner, inside)]


def ensure_held(
    name: str, /, *, kind: str | None = None, mode: Mode | None = None, session: Session | None = None
) -> Lease:
    """Returns the lease of that name that the running code is inside of, if it can be relied on now.

    As `aiolocks.ensure_held`; it finds what `current_lease` finds. No I/O.

    Args:
        name: Name of the lock, as `name_of` makes it of values; one of the names of a `MultiLock`.
        kind: Kind of the lock, such as `"lock"` or `"rwlock"`. Default: any.
        mode: For a `RWLock` or a `RangeLock`: the least that the caller must hold. Default: any, and any
            kind.
        session: The session that holds it. Default: any.

    Raises:
        LockNotOwnedError: The running code is not inside of such a lease.
        LockLostError: It is, and the lease was lost.
        TypeError, ValueError: An argument is wrong.
    """
    inner = None if session is None else session._link.session()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of the same package
    inside = _inside()
    return inside[held_now(name, inside, kind=kind, mode=mode, session=inner)]


def _inside() -> dict[Any, Lease]:
    """Each lease of a thread by the asynchronous one, innermost first; then the ones of `testing.held`."""
    found = {lease._lease: cast("Lease", lease) for lease in leases()}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
    for lease in entered_leases():
        if cast("Any", lease)._engine is None:  # noqa: SLF001
            found[lease] = cast("Lease", lease)
    return found

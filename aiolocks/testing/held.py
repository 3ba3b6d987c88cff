"""`held`: the code inside is under a lock, without a server: for unit tests."""

# ruff: noqa: D102 - `Lease` says what its methods do

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Never, Self, final

from ..errors import LockLostError, LockNotOwnedError
from ..lock import inside
from ..lock.lease import Lease, LeaseState
from ..lock.options import lock_name


@final
class HeldLease(Lease):
    """A lease that `held` makes. No server knows it; it ends with its block, or by one of its methods."""

    __slots__ = ("_kind", "_lost", "_name", "_state", "_token")

    def __init__(self, name: str, kind: str, fencing_token: int) -> None:
        self._kind = kind
        self._lost = asyncio.Event()
        self._name = name
        self._state = LeaseState.HELD
        self._token = fencing_token

    def lose(self) -> None:
        """From now on it is lost: `ensure_held` raises `LockLostError`."""
        if self._state is LeaseState.HELD:
            self._state = LeaseState.LOST
            self._lost.set()

    def _end(self, state: LeaseState) -> None:
        if self._state is LeaseState.LOST:
            raise LockNotOwnedError(self._kind, self._name, "it was lost")
        self._state = state

    @property
    def _engine(self) -> Any:
        return None

    @property
    def _bears(self) -> bool:
        return self._state in (LeaseState.HELD, LeaseState.LOST)

    @property
    def _names(self) -> tuple[str, ...]:
        return (self._name,)

    @property
    def name(self) -> str:
        return self._name

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def ttl(self) -> float:
        return 30.0

    @property
    def metadata(self) -> Mapping[str, Any]:
        return MappingProxyType({})

    @property
    def token(self) -> str:
        return "held-in-a-test"  # no secret: no server knows it

    @property
    def fencing_token(self) -> int:
        return self._token

    @property
    def state(self) -> LeaseState:
        return self._state

    def remaining(self) -> float:
        return self.ttl if self._state is LeaseState.HELD else 0.0

    def ensure_held(self) -> None:
        if self._state is not LeaseState.HELD:
            lost = self._state is LeaseState.LOST
            reason = "lose() was called" if lost else f"it was {self._state.value}"
            raise LockLostError(self._kind, self._name, reason, lost=lost)

    async def owned(self) -> bool:
        return self._state is LeaseState.HELD

    async def extend(self, ttl: object = None) -> None:
        self.ensure_held()

    async def annotate(self, metadata: object) -> None:
        self.ensure_held()

    async def release(self) -> None:
        self._end(LeaseState.RELEASED)

    async def wait_lost(self) -> None:
        await self._lost.wait()

    def detach(self) -> str:
        self.ensure_held()
        self._end(LeaseState.DETACHED)
        return "held-in-a-test"

    def enter(self) -> Never:
        raise RuntimeError(f"the block of {self!r} is that of held() itself")

    async def __aenter__(self) -> Self:
        self.enter()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __repr__(self) -> str:
        return f"<HeldLease {self._kind} {self._name!r} {self._state.name} fencing_token={self._token}>"


@contextmanager
def held(
    name: str,
    kind: str = "lock",
    *,
    mode: Literal["reader", "upgradable", "writer"] | None = None,
    fencing_token: int = 1,
) -> Generator[HeldLease]:
    """The code of the block is inside of a lease of that name: for unit tests, without a server.

    ```python
    def test_who_ships_must_hold_the_order():
        with held("order:17") as lease:
            ship(17)                    # calls ensure_held("order:17")
        with held("order:17") as lease, pytest.raises(LockLostError):
            lease.lose()
            ship(17)
    ```

    `current_lease` and `ensure_held` find it, as they find the lease of a real lock of any session. Its
    requests (`extend`, `annotate`, `owned`, `release`) do nothing but change its state.

    Args:
        name: Name of the lock.
        kind: Kind of the lock, such as `"lock"` or `"semaphore"`; `"rwlock"` and `"rangelock"` need a `mode`.
        mode: `"reader"`, `"upgradable"` or `"writer"`.
        fencing_token: Its fencing token. Default 1.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    lock_name(name)
    if (kind in ("rwlock", "rangelock")) != (mode is not None):
        raise ValueError(f"mode= is of rwlock and rangelock, and these need it, not {kind!r} with {mode!r}")
    lease = HeldLease(name, kind if mode is None else f"{kind}.{mode}", fencing_token)
    inside.enter(lease)
    try:
        yield lease
    finally:
        inside.leave(lease)
        if lease.state is LeaseState.HELD:
            lease._state = LeaseState.RELEASED  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its own file

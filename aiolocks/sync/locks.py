"""Locks for threads: as context managers and as decorators. The rest of them is made."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Never, ParamSpec, TypeVar, final

from ..lock.acquirable import Acquirable, locks_of_calls
from ..lock.misuse import Shown, no_attribute
from .described import Described
from .leases import LeaseT

P = ParamSpec("P")
_NO_FUNCTION: Final[Any] = Shown("<none>")
R = TypeVar("R")


class BaseLock(Described, Generic[LeaseT]):
    """A lock for threads: as a context manager, and as a decorator."""

    _enters: ClassVar[bool] = True
    """The deputy of a thread is inside of the lease, so that what the thread waits for in vain is found."""

    __slots__ = ("_entered",)

    def _prepare(self) -> None:
        self._entered: list[_Block[LeaseT]] = []

    # -- as a context manager and a decorator

    @final
    def __enter__(self) -> LeaseT:
        block: _Block[LeaseT] = _Block(self, self._here())
        self._entered.append(block)
        try:
            return block.__enter__()
        except BaseException:
            self._entered.remove(block)
            raise

    @final
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        me = threading.current_thread()
        inside = [block for block in self._entered if block.lease is not None]
        # FastAPI ends a dependency in another thread than it began.
        mine = [block for block in inside if block.holder is me] or (inside if len(inside) == 1 else [])
        if not mine:
            raise RuntimeError(
                f"cannot tell which lease to release: {self!r} was not entered in this thread, nor has "
                "another thread entered one that must be meant. Use `with lock.acquire():`, which keeps its "
                "lease"
            )
        block = mine[-1]
        self._entered.remove(block)
        block.__exit__(exc_type, exc, traceback)

    @final
    def __call__(self, function: Callable[P, R] = _NO_FUNCTION, /) -> Callable[P, R]:
        """Decorates a function: each call of it holds the lock.

        The name is a template of the function's parameters, such as `"order:{order_id}"`, as for the
        decorators of `aiolocks.Lock`.

        Raises:
            TypeError: It is not a function, or is a coroutine function or a generator; or the name has a
                field that is not one of its parameters; or another decorator without `functools.wraps` hides
                the parameters. From a call: the value of a field has no text that is the same in every
                process.
            ValueError: The template is wrong. From a call: its name is empty or too long, or an argument is
                not equal to itself, such as `nan`.
        """
        if function is _NO_FUNCTION:
            raise TypeError(f"use `with lock:` or `@lock`: {self!r} is not called")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"a lock of aiolocks.sync decorates a plain function, not {function!r}: for a coroutine "
                "function take the classes of aiolocks itself"
            )
        if inspect.isgeneratorfunction(function):
            raise TypeError(
                f"a lock decorates a function that has done its work when it returns, not {function!r}: "
                "write `with lock:` in the generator"
            )
        if not callable(function):
            raise TypeError(f"a lock of aiolocks.sync decorates a function, not {function!r}")
        decorating, lock_of = self._here(), locks_of_calls(self._here(), function)

        @functools.wraps(function)
        def holding(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal decorating, lock_of
            if (lock := self._here()) is not decorating:  # in a forked process
                decorating, lock_of = lock, locks_of_calls(lock, function)
            block: _Block[LeaseT] = _Block(self, lock_of(args, kwargs))
            with block:
                return function(*args, **kwargs)

        return holding

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            of_lease = not name.startswith("_") and hasattr(self._lease_type, name)
            raise no_attribute(self, name, "the lease that acquire() gives has it" if of_lease else "")


@final
class _Block(Generic[LeaseT]):
    """One `with` of a lock.

    Attributes:
        holder: The thread that has begun it.
        lease: The lease that it holds.
    """

    __slots__ = ("_inner", "_lock", "holder", "lease")

    def __init__(self, lock: BaseLock[LeaseT], inner: Acquirable[Any]) -> None:
        self._lock = lock
        self._inner = inner
        self.holder = threading.current_thread()
        self.lease: LeaseT | None = None

    def __enter__(self) -> LeaseT:
        lock = self._lock
        enters, thread = lock._enters and not _may_be_left_open(), lock._join_loop()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module, as below
        errand = lock._errand(thread, self._inner, lambda inner: inner.acquire(), None, enters=enters)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            lease: LeaseT | None = thread.do(errand)
            self.lease = lease
            assert lease is not None, "it was acquired, or an error was raised"
            return lease._begin()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            self.lease = None
            errand.give_up(thread)
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self.lease = self.lease, None
        assert lease is not None, "it was entered"
        lease.__exit__(exc_type, exc, traceback)


def _may_be_left_open() -> bool:
    """Whether this thread may do other work while the block is open, as where a generator has yielded inside.

    Such a thread does not wait for itself when it wants what it holds.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as `inspect.currentframe`
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False

"""Errors for uses that cannot work."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - as `get_running_loop`, without an error
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar, Final, Never, final

_PACKAGE: Final = __name__.partition(".")[0]

_RENEWED: Final = "a lease is renewed by itself, and lease.extend(ttl) sets another ttl"
_HELD: Final = "use lease.ensure_held(), lease.remaining() or lease.state"
_RELEASED: Final = "use `async with`, or release() of the lease"
_FORCED: Final = "use force_release(name) of a session"

# The names that other libraries use for a method, or that are easily taken for it.
_MEANT_ATTRIBUTES: Final = {
    "break_lock": _FORCED,
    "close": "use aclose()",
    "force_unlock": _FORCED,
    "held": _HELD,
    "is_acquired": _HELD,
    "is_held": _HELD,
    "is_locked": "use locked() of a lock",
    "keep_alive": _RENEWED,
    "prolong": _RENEWED,
    "reacquire": _RENEWED,
    "refresh": _RENEWED,
    "release_lock": _RELEASED,
    "renew": _RENEWED,
    "unlock": _RELEASED,
    "valid": _HELD,
}


def no_attribute(what: object, name: str, meant: str = "") -> AttributeError:
    """The error for an attribute that does not exist; it says which one is meant, where that is known.

    Args:
        what: The object.
        name: The attribute.
        meant: What this kind of object says of it; it comes first.
    """
    if not meant and (name != "close" or hasattr(what, "aclose")):
        meant = _MEANT_ATTRIBUTES.get(name, "")
    wrong = f"{type(what).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{wrong}: {meant}" if meant else wrong, name=name, obj=what)


@final
class Shown:
    """A default that stands for what a caller has left out, as `help` shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_UNKNOWN: Final = ("positional", "unknown")
"""The parameters that take what does not exist, for an error that says what is meant."""


def hide_unknown(cls: type) -> None:
    """Signatures are shown without the parameters that are there for errors alone: by `help`, by editors."""
    for base in cls.__mro__:
        if not base.__module__.startswith(_PACKAGE):
            continue
        for member in vars(base).values():
            function = getattr(member, "__func__", member)
            written = inspect.unwrap(function) if isinstance(function, FunctionType) else None
            hides = isinstance(written, FunctionType) and "unknown" in written.__code__.co_varnames
            if hides and not hasattr(function, "__signature__"):
                signature = inspect.signature(function)
                known = [one for one in signature.parameters.values() if one.name not in _UNKNOWN]
                setattr(function, "__signature__", signature.replace(parameters=known))  # noqa: B010 - as no type checker knows


class AsyncOnly:
    """Entered by `async with`, and at home in one process: says so to `with`, and to `pickle`."""

    __slots__ = ()

    _elsewhere: ClassVar[str]  # the way to have it in another process

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hide_unknown(cls)

    if not TYPE_CHECKING:  # to a type checker, there are no such methods

        def __enter__(self) -> Never:
            raise TypeError(f"write `async with` instead of `with`: {self!r} is asynchronous")

        def __exit__(self, *_: object) -> None: ...  # `with` asks for it before it calls the other

        def __reduce__(self) -> Never:
            raise TypeError(f"{self!r} cannot be pickled or copied: {self._elsewhere}")

        def __getattr__(self, name: str) -> Never:
            raise no_attribute(self, name, self._meant(name))

    @staticmethod
    def _meant(name: str) -> str:  # noqa: ARG004 - subclasses look at it
        """What is meant by an attribute that it has not; empty where that is not known."""
        return ""


class NotEntered:
    """Not entered itself: says what is, to `async with`, to `with`, and to an attribute of a lock."""

    __slots__ = ()

    _instead: ClassVar[str]  # what a program takes in its place

    if not TYPE_CHECKING:  # to a type checker, there are no such methods

        def __aenter__(self) -> Never:
            raise TypeError(f"{self!r} is not entered itself: {self._instead}")

        def __aexit__(self, *_: object) -> None: ...  # asked for before the other is called

        __enter__, __exit__ = __aenter__, __aexit__

        def __getattr__(self, name: str) -> Never:
            raise no_attribute(self, name, self._instead)


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs.

    Raises:
        RuntimeError: None does, as under trio.
    """
    loop = _get_running_loop()
    if loop is None:
        raise RuntimeError(
            "no running event loop of asyncio, on which aiolocks runs: use it in a coroutine of "
            "asyncio.run(), not of trio.run(); with anyio, choose the backend 'asyncio'"
        )
    return loop

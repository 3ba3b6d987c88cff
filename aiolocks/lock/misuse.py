"""Errors for uses that cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Never


class AsyncOnly:
    """Entered by `async with`, and at home in one process: says so to `with`, and to `pickle`."""

    __slots__ = ()

    _elsewhere: ClassVar[str]  # the way to have it in another process

    if not TYPE_CHECKING:  # to a type checker, there are no such methods

        def __enter__(self) -> Never:
            raise TypeError(f"write `async with` instead of `with`: {self!r} is asynchronous")

        def __exit__(self, *_: object) -> None: ...  # `with` asks for it before it calls the other

        def __reduce__(self) -> Never:
            raise TypeError(f"{self!r} cannot be pickled or copied: {self._elsewhere}")

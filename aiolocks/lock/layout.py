"""Instances of few bytes: of the classes of which a program may have many thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def laid_out(*names: str) -> Callable[[type[T]], type[T]]:
    """The instances of a class have these attributes in a row, and no dictionary, whenever each is set.

    CPython keeps such a row for a class, with places for the attributes that its first instances had. An
    attribute without a place makes a dictionary of the row, which takes four times as much. So the first
    instance, made here, has had all of them. They need not be all attributes that there are: at most 30 have
    a place, and what is set at the end of an instance may do without. A subclass has places of its own.
    """

    def lay_out(cls: type[T]) -> type[T]:
        first = object.__new__(cls)
        for name in names:
            setattr(first, name, None)
        return cls

    return lay_out

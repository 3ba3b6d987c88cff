"""Checks of many texts, values or members in one test.

A test of its own for each of a thousand takes more time than what it looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """As `pytest.mark.parametrize` with these names and values, but one test, which tells all that fail.

    The function gets no fixtures.
    """
    rows = [row if "," in names else (row,) for row in values]
    keys = [name.strip() for name in names.split(",")]

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def of_each() -> None:
            assert rows, "there is nothing to look at"
            failed = []
            for row in rows:
                given = dict(zip(keys, row, strict=True))
                try:
                    check(**given)
                except Exception as error:
                    error.add_note(f"with {given!r}"[:500])
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(rows)} fail", failed)

        of_each.__name__ = check.__name__
        of_each.__qualname__ = check.__qualname__
        of_each.__module__ = check.__module__
        of_each.__doc__ = check.__doc__
        return of_each

    return decorate

"""Names that stand in two forms: as a program writes them, and percent-encoded, as templates make them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

from .._infos import KindAndName
from ..lock.engine import Engine
from ..transport.keys import parse
from ..transport.steps.inspect import FIRST, scan

_STEPS: Final = 100
"""Steps of a scan, of a thousand keys of the server each: about 20 ms of the server's time."""


class Twins(NamedTuple):
    """Two names that are meant to be one.

    Attributes:
        plain: With the values as they are.
        encoded: With the values as a decorator, `of` or `name_of` writes them.
    """

    kind: str
    plain: str
    encoded: str


def twins(places: Collection[KindAndName]) -> list[Twins]:
    """The names among them that stand in both forms."""
    return sorted(
        Twins(kind, plain, name)
        for kind, name in places
        if "%" in name and (plain := unquote(name)) != name and (kind, plain) in places
    )


def in_words(found: Iterable[Twins]) -> list[str]:
    """Each pair, for an operator."""
    return [f"{one.kind} {one.plain!r} and {one.encoded!r}" for one in found]


async def twins_in_use(engine: Engine) -> list[Twins]:
    """The same of the names that are held, or were used lately: their fence stands for that.

    Of a large server it looks at a part.
    """
    prefix = engine.settings.prefix
    places: set[KindAndName] = set()
    cursor = FIRST
    for _ in range(_STEPS):
        scanned = await engine.ask(scan(prefix, cursor))
        places |= {(key.kind, key.name) for one in scanned.keys if (key := parse(prefix, one)) is not None}
        if scanned.cursor is None:
            break
        cursor = scanned.cursor
    return twins(places)

"""Pages as their viewers see them: each is sent once as a whole, and then the changes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final, NamedTuple, final

from ..._infos import KindAndName
from ._rows import Row

DEFAULT_ROWS: Final = 50
MOST_ROWS: Final = 200
_MOST_BEHIND: Final = 20
"""Messages that a viewer may be behind; then it gets the whole page again."""

TAKES_WITHIN: Final = 10.0
"""Seconds within which a viewer has to take what it is sent."""

SORTS: Final = ("waiters", "oldest", "name")


class Query(NamedTuple):
    """The content that a page is asked for.

    Attributes:
        place: Of the page of a name: its kind and name. None for the overview.
        text: Of the overview: a part of the names that are shown, in lower case.
        kind: Of the overview: the kind that is shown; empty for all.
        sort: Of the overview: one of `SORTS`.
        rows: Of the overview: how many locks are shown at most.
    """

    place: KindAndName | None = None
    text: str = ""
    kind: str = ""
    sort: str = SORTS[0]
    rows: int = DEFAULT_ROWS


@final
class Viewer:
    """A user that looks at a page, and has yet to be sent these messages.

    Attributes:
        whole: The next message has to be the whole page.
        took_at: Loop time when it has taken something last.
    """

    __slots__ = ("_ended", "_messages", "_news", "_taking", "took_at", "whole")

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._taking: asyncio.Timeout | None = None
        self.took_at = asyncio.get_running_loop().time()
        self.whole = True

    def tell(self, message: bytes, *, whole: bool = False) -> None:
        """One more message."""
        if len(self._messages) >= _MOST_BEHIND:
            self._messages.clear()
            self.whole = True
            return
        self.whole = self.whole and not whole
        self._messages.append(message)
        self._news.set()

    def end(self) -> None:
        """It gets nothing more."""
        self._ended = True
        self._news.set()
        if self._taking is not None and not self._taking.expired():
            self._taking.reschedule(0)

    async def takes(self, sending: Awaitable[None]) -> None:
        """Sends it something.

        Raises:
            TimeoutError: It does not take it, or its stream has been ended.
        """
        try:
            async with asyncio.timeout(TAKES_WITHIN) as self._taking:
                await sending
        finally:
            self._taking = None
        self.took_at = asyncio.get_running_loop().time()

    async def next(self, within: float) -> bytes | None:
        """All that there is to send; empty if nothing has come in time, and None at the end."""
        try:
            async with asyncio.timeout(within):
                await self._news.wait()
        except TimeoutError:
            return b""
        if self._ended:
            return None
        self._news.clear()
        messages = b"".join(self._messages)
        self._messages.clear()
        return messages


@final
class View:
    """One page, for all that look at it.

    Invariant: a viewer that has been sent the whole page, and each message since, has `_facts` and `_rows`.
    """

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.places: tuple[KindAndName, ...] = ()  # of its locks
        self._facts: dict[str, str] = {}
        self._rows: dict[str, dict[str, str]] = {}  # by section and row, in their order
        self._now = 0.0

    def publish(self, facts: Mapping[str, Any], sections: Mapping[str, Iterable[Row]], now: float) -> None:
        """The page as it is now; JSON once for all of its viewers."""
        self._now = now
        told = {name: _json(fact) for name, fact in facts.items()}
        rows = {name: {row["id"]: _json(row) for row in some} for name, some in sections.items()}
        changed = {name: fact for name, fact in told.items() if self._facts.get(name) != fact}
        changes = {name: change for name, some in rows.items() if (change := self._change(name, some))}
        self._facts, self._rows = told, rows
        behind = [viewer for viewer in self.viewers if not viewer.whole]
        if behind:
            message = _message(changed, changes, now, whole=False)
            for viewer in behind:
                viewer.tell(message)
        self.greet(*(viewer for viewer in self.viewers if viewer.whole))

    def greet(self, *viewers: Viewer) -> None:
        """The whole page, as it was published last; nothing before that."""
        if self._facts and viewers:
            whole = {name: _section(some, some) for name, some in self._rows.items()}
            message = _message(self._facts, whole, self._now, whole=True)
            for viewer in viewers:
                viewer.tell(message, whole=True)

    def _change(self, name: str, rows: dict[str, str]) -> str:
        before = self._rows.get(name)
        if before is None:
            return _section(rows, rows)
        new = {one: row for one, row in rows.items() if before.get(one) != row}
        same_order = before.keys() == rows.keys() and list(before) == list(rows)
        return _section(new, None if same_order else rows) if new or not same_order else ""


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _section(rows: Mapping[str, str], order: Iterable[str] | None) -> str:
    """Rows that are new or have changed, and the order of all of them if it has."""
    texts = ",".join(rows.values())
    return f'{{"rows":[{texts}]}}' if order is None else f'{{"order":{_json(list(order))},"rows":[{texts}]}}'


def _message(facts: Mapping[str, str], sections: Mapping[str, str], now: float, *, whole: bool) -> bytes:
    """One event of the stream. JSON as this module writes it has no line end."""
    told = ",".join(f'"{name}":{fact}' for name, fact in facts.items())
    parts = ",".join(f'"{name}":{section}' for name, section in sections.items())
    flag = "true" if whole else "false"
    return f'data: {{"now":{now:.2f},"whole":{flag},"facts":{{{told}}},"sections":{{{parts}}}}}\n\n'.encode()

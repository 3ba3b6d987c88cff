"""The leaders of a leadership, as others see them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, final

from ..errors import BackendError
from ..lock.context import Context
from ..lock.holders import described_in, who_in
from ..lock.wakeups import KeyListener
from ..transport import BELL_TTL, ignore
from ..transport.request import Call
from .terms import Look, Observing, TermFound

log = logging.getLogger("aiolocks.session")

_SOON: Final = 0.002
"""Seconds after the end of a lease at which the server is asked who leads now."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """One term of a leadership, as the server has it. A field that is not known is None.

    Attributes:
        name: Name of the leadership.
        fencing_token: That of the term: larger than that of every earlier one.
        value: The value that the leader has published, by `value=` or `proclaim`.
        host: Name of the leader's machine.
        pid: Its process id there.
        task: Name of its task.
        metadata: The metadata that the user has attached: the session's and the leadership's.
        elected_at: The server's time when the term began, as seconds since 1970.
        remaining: Seconds that the leader's lease had left when the server was asked; 0.0 for a term that had
            ended by then. The lease is renewed for as long as the leader lives.
    """

    name: str
    fencing_token: int
    value: Any = None
    host: str | None = None
    pid: int | None = None
    task: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    elected_at: float | None = None
    remaining: float = 0.0


def leader_of(name: str, look: Look) -> LeaderInfo | None:
    """The leader that was found."""
    return None if look.leading is None else _info(name, look, look.leading, look.left_ms / 1000)


def _info(name: str, look: Look, term: TermFound, remaining: float = 0.0) -> LeaderInfo:
    described = described_in(term.described) or {}
    return LeaderInfo(
        name=name,
        fencing_token=term.fencing_token,
        # The fencing token is the server's time, unless that clock has been set back since.
        elected_at=term.fencing_token / 1e6 if term.fencing_token <= look.now_us else None,
        remaining=remaining,
        **who_in(described),
    )


@final
class Observer:
    """An observer that is told of each change.

    A push only says that something has changed. The observer then asks who leads, and for the terms since the
    last one that it knows: so none is missed, however many changes one push stands for.

    Invariants:
    - the request that makes the server tell of the next change goes before the one that looks;
    - each term that the server still remembers is told of once, in the order of fencing tokens, and the last
      one again when something beside it has changed.
    """

    __slots__ = ("_commands", "_ear", "_engine", "_name", "_newest", "_told")

    def __init__(self, engine: Context, name: str) -> None:
        self._engine = engine
        self._commands = Observing(engine.settings.prefix, name)
        self._name = name
        self._ear = KeyListener(engine.bells, self._commands.news)
        self._newest: int | None = None  # the newest term that was told of, or was over when it began
        self._told: TermFound | None = None

    async def changes(self) -> AsyncGenerator[LeaderInfo | None]:
        """The leader as of now, and then each change."""
        first = True
        with self._ear:
            while True:
                look = await self._look()
                if look is not None:
                    for change in self._changes_in(look, first=first):
                        yield change
                    first = False
                await self._next(look)

    async def _look(self) -> Look | None:
        """The state on the server, or None where the server is away."""
        engine = self._engine
        engine.check_usable()
        self._ear.forget()
        until = engine.now() + engine.settings.command_timeout
        engine.send(Call(self._commands.listen(), ignore, ignore, until=until), corked=True)
        try:
            return await engine.ask(self._commands.look(self._newest), patient=True)
        except BackendError as error:
            if not error.transient:
                raise
            log.log(engine.log_level(error), "leadership %r cannot be observed now: %s", self._name, error)
            return None

    def _changes_in(self, look: Look, *, first: bool) -> list[LeaderInfo | None]:
        was, leading = self._told, look.leading
        if self._newest is not None and self._newest > look.newest and leading is not None:
            self._newest = 0  # the server has lost its data, and its clock is earlier than its last grants
        begun = [term for term in look.since if leading is None or term.fencing_token < leading.fencing_token]
        changes: list[LeaderInfo | None] = [_info(self._name, look, term) for term in begun]
        if leading != was or changes or first:
            changes.append(leader_of(self._name, look))
        self._told = leading
        newest = look.newest if leading is None else max(look.newest, leading.fencing_token)
        self._newest = max(self._newest or 0, newest)
        return changes

    async def _next(self, look: Look | None) -> None:
        """Returns when there may be something new."""
        longest = self._engine.longest_sleep or BELL_TTL
        if look is not None and look.leading is not None:
            longest = min(longest, look.left_ms / 1000 + _SOON)
        await self._ear.sleep(longest)

"""What `run` and `lead` say of their name: the holder that they wait for, or a server that cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from ... import LockError, LockInfo, Session
from ..._visible import visible
from ...inspect.looking import look
from ...lock.sources import engine_of
from ..exits import NO_SERVER, CommandError, say
from ..listing.shown import held_by

_AFTER: Final = 1.0
"""Seconds: a shorter wait needs no explanation."""


def described(command: tuple[str, ...]) -> dict[str, str]:
    """Metadata of the lock, for waiters to see. The program alone: its arguments may be secret."""
    return {"command": command[0].rpartition("/")[2]}


@contextmanager
def named(name: str) -> Generator[None]:
    """Puts the name before what is said of an unusable server: a log has the lines of many commands."""
    try:
        yield
    except CommandError as error:
        if error.status != NO_SERVER:
            raise
        raise CommandError(f"'{visible(name)}': {error}", NO_SERVER) from None


async def explain(session: Session, kind: str, name: str) -> None:
    """Names the holder of the lock on stderr, once: after a second, or later if no process holds it then."""
    while True:
        await asyncio.sleep(_AFTER)
        try:
            found = await look(engine_of(session), [(kind, name)], waiters=0)
        except LockError:  # a user that may lock need not be allowed to look
            say(f"waiting for '{visible(name)}', which is held elsewhere")
            return
        for info in found:
            if info.holders:
                say(f"waiting for '{visible(name)}', {held_by(info)}{_running(info)}")
                return


def _running(info: LockInfo) -> str:
    command = info.holders[0].metadata.get("command")
    return f" ({visible(command)})" if isinstance(command, str) and command else ""

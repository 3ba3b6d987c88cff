"""A session on the server that a command was given, and its errors as the command line says them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import click

from ... import BackendError, Session
from ...inspect.looking import prefixes_in_use
from ...lock.sources import engine_of
from ..exits import NO_SERVER, CommandError
from ..server import connected

_PATIENCE: Final = 3.0
"""Seconds that each request may take: what is asked for at a time is little."""
_WORDS: Final = "scan type hgetall exists eval evalsha get pttl time zrange"


@asynccontextmanager
async def asking(url: str, prefix: str) -> AsyncGenerator[Session, None]:
    """A session for the length of a command.

    Raises:
        CommandError: There is no such server, or it does not let us do what the command does.
        click.UsageError: The prefix, or what the session was asked for, is not as it should be.
    """
    try:
        async with (
            connected(url) as server,
            Session(server.client, prefix=prefix, wakeup="poll", command_timeout=_PATIENCE) as session,
        ):
            yield session
    except BackendError as error:
        raise CommandError(reason(error), NO_SERVER) from None
    except ValueError as error:  # of an argument
        raise click.UsageError(str(error), click.get_current_context()) from None


async def other_prefixes(session: Session, prefix: str) -> dict[str, int]:
    """How many names there are under other prefixes; none where the user may not scan."""
    try:
        found = await prefixes_in_use(engine_of(session))
    except BackendError:
        return {}
    return {other: names for other, names in found.items() if other != prefix}


def reason(error: BackendError) -> str:
    """The cause of the error, and the remedy."""
    if "this user may not do it" in str(error):
        return (
            f"{error}; to look, the user needs +{_WORDS.replace(' ', ' +')}, and ~ for all keys of the prefix"
        )
    return str(error)

"""What a shell is told that completes a command line: kinds, and the names that are on the server now."""

from __future__ import annotations

import asyncio
import glob
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from .. import Session

_PATIENCE: Final = 3.0
"""Seconds that a user waits for names. A server that is away, or has very many, gives none."""
_MOST: Final = 100
_SCHEDULE: Final = "schedule"


def kinds(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The kinds that begin so."""
    from ..transport.steps.family import families  # noqa: PLC0415 - as below

    return [CompletionItem(kind) for kind in sorted(families()) if kind.startswith(incomplete)]


def names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names that begin so, of what is held or waited for; for `aiolocks schedule`, of schedules."""
    try:
        return asyncio.run(_names(context, incomplete))
    except Exception:  # noqa: BLE001 - a prompt is no place for errors: the command itself says them
        return []


async def _names(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from .listing.asking import asking  # noqa: PLC0415 - commands that do not complete need not load it

    kind = _SCHEDULE if context.command.name == _SCHEDULE else context.params.get("kind")
    async with (
        asyncio.timeout(_PATIENCE),
        asking(context.params["url"], context.params["prefix"]) as session,
    ):
        found = await _known(session, kind, incomplete)
    some = [name for name in sorted(found) if name.startswith(incomplete) and name.isprintable()]
    return [CompletionItem(name) for name in some[:_MOST]]


async def _known(session: Session, kind: str | None, incomplete: str) -> set[str]:
    if kind == _SCHEDULE:
        from .listing.lasting import schedules  # noqa: PLC0415 - as above

        return {*await schedules(session)}
    infos = await session.inspect(glob.escape(incomplete) + "*")
    return {info.name for info in infos if kind in (None, info.kind)}

"""`aiolocks deadlocks`."""

from __future__ import annotations

import asyncio
import dataclasses
import sys

import click

from ... import Deadlock, DeadlockedTask
from ..._visible import visible
from ..exits import DEADLOCKED, say
from ..server import prefix_option, redis_option
from . import texts
from .asking import asking
from .commands import json_option
from .shown import document, duration


@click.command(help=texts.DEADLOCKS, short_help="List tasks that wait for each other.")
@json_option
@prefix_option
@redis_option()
def deadlocks(*, as_document: bool, prefix: str, url: str) -> None:
    """See `texts.DEADLOCKS`."""
    found = asyncio.run(_deadlocks(url, prefix))
    if as_document:
        click.echo(document(prefix=prefix, deadlocks=[_as_json(deadlock) for deadlock in found]))
    elif found:
        click.echo("\n\n".join(_in_full(deadlock) for deadlock in found))
    else:
        say(f"no deadlock is known under the prefix '{visible(prefix)}'")
    if found:
        sys.exit(DEADLOCKED)


async def _deadlocks(url: str, prefix: str) -> list[Deadlock]:
    async with asking(url, prefix) as session:
        return await session.deadlocks()


def _as_json(deadlock: Deadlock) -> dict[str, list[dict[str, object]]]:
    return {
        "tasks": [
            {
                **dataclasses.asdict(task),
                "holds": [{"kind": kind, "name": name} for kind, name in task.holds],
            }
            for task in deadlock.tasks
        ]
    }


def _in_full(deadlock: Deadlock) -> str:
    """A task a line."""
    lines = [f"deadlock of {len(deadlock.tasks)} task{'' if len(deadlock.tasks) == 1 else 's'}:"]
    return "\n".join([*lines, *(f"  {_one(task)}" for task in deadlock.tasks)])


def _one(task: DeadlockedTask) -> str:
    encoding = sys.stdout.encoding

    def lock(kind: str, name: str) -> str:
        return f"{visible(kind, encoding)} '{visible(name, encoding)}'"

    held = ", ".join(lock(kind, name) for kind, name in task.holds)
    process = f"{task.host or '?'} pid {'?' if task.pid is None else task.pid} {task.task or ''}".rstrip()
    wanted = f"{duration(task.waited_for)} for {lock(task.kind, task.name)}"
    return f"{visible(process, encoding)} has waited {wanted}, holds {held}"

"""`aiolocks schedule`: the next tick of a schedule, and its last runs."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from rich.cells import cell_len

from ... import TickRecord
from ..._visible import visible
from ..completing import names
from ..exits import NOT_HELD, CommandError
from ..numbers import WholeRange
from ..server import prefix_option, redis_option
from . import texts
from .asking import asking
from .commands import json_option
from .lasting import KeptRuns, kept_of, next_ticks, schedules, when
from .shown import document, duration

_MOST: Final = 100
_MOST_NAMED: Final = 10
"""Other schedules that a message names."""
_HEADER: Final = ("DUE", "LATE", "OUTCOME", "TOOK", "RUN", "HOST", "PID", "")
_RIGHT: Final = ("LATE", "TOOK", "RUN", "PID")


@click.command(help=texts.SCHEDULE, short_help="Show the next tick of a schedule, and its last runs.")
@click.argument("name", shell_complete=names)
@click.option(
    "--limit", type=WholeRange(1, _MOST), default=20, show_default=True, metavar="N",
    help="How many runs are listed, the latest first.",
)  # fmt: skip
@json_option
@prefix_option
@redis_option()
def schedule(*, name: str, limit: int, as_document: bool, prefix: str, url: str) -> None:
    """See `texts.SCHEDULE`."""
    kept, others = asyncio.run(_ask(url, prefix, name, limit))
    if as_document:
        click.echo(document(prefix=prefix, name=name, **_as_json(kept)))
    elif kept.times or kept.records:
        encoding = sys.stdout.encoding
        click.echo("\n".join(f"schedule '{visible(name, encoding)}': {line}" for line in next_ticks(kept)))
        if kept.records:
            click.echo("\n".join(_table(kept.records, encoding)))
    if not kept.times and not kept.records:
        there = f"; there are {', '.join(map(visible, others))}" if others else ""
        raise CommandError(
            f"no process has kept a schedule '{visible(name)}' under the prefix '{visible(prefix)}'{there}",
            NOT_HELD,
        )
    if not kept.alive and not kept.runs:
        raise CommandError(f"no process keeps the schedule '{visible(name)}' now", NOT_HELD)


async def _ask(url: str, prefix: str, name: str, limit: int) -> tuple[KeptRuns, list[str]]:
    """The schedule; where there is none of that name, the names of some that there are."""
    async with asking(url, prefix) as session:
        kept = await kept_of(session, name, limit)
        others = [] if kept.times or kept.records else await schedules(session)
    return kept, others[:_MOST_NAMED]


def _table(records: Sequence[TickRecord], encoding: str) -> Iterator[str]:
    rows = [_HEADER, *(tuple(_cells(record, encoding)) for record in records)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            " " * (width - cell_len(cell)) + cell
            if title in _RIGHT
            else cell + " " * (width - cell_len(cell))
            for title, width, cell in zip(_HEADER, widths, row, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _cells(record: TickRecord, encoding: str) -> Iterator[str]:
    out_of_turn = record.due is None
    skipped = record.outcome in ("skipped", "missed")
    yield when(record.due or record.began.replace(microsecond=0))
    late = None if record.due is None or skipped else (record.began - record.due).total_seconds()
    yield duration(late)
    yield record.outcome
    yield duration(record.duration)
    yield "-" if out_of_turn or skipped else str(record.attempt)
    yield visible(record.host or "-", encoding)
    yield "-" if record.pid is None else str(record.pid)
    yield "out of turn" if out_of_turn else visible(record.error, encoding)


def _as_json(kept: KeptRuns) -> dict[str, Any]:
    return {
        "kept": bool(kept.alive),
        "ticks": [
            {
                "claimed": one.claimed / 1000,
                "asked": one.asked / 1000,
                "next": None if one.next is None else one.next / 1000,
                "kept": one in kept.alive,
            }
            for one in kept.times
        ],
        "history": [_record(record) for record in kept.records],
    }


def _record(record: TickRecord) -> dict[str, Any]:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    del fields["missed"]  # which takes the times of the schedule to tell
    fields["metadata"] = dict(record.metadata)
    for name in ("due", "began", "ended"):
        fields[name] = None if fields[name] is None else fields[name].timestamp()
    return fields

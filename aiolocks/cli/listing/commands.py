"""`aiolocks ls`, `show`, `release` and `top`, as the command line takes them."""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import glob
import json
import socket
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ... import LockInfo
from ..._visible import in_line, visible
from ...inspect.freeing import name_space
from ...inspect.looking import literal_places, prefixes_in_use
from ...inspect.twins import twins
from ...lock.sources import engine_of
from ...transport.steps.family import families, holdable
from ..completing import kinds, names
from ..exits import NOT_HELD, CommandError, say
from ..server import prefix_option, redis_option
from . import texts
from .asking import asking, other_prefixes
from .lasting import LASTING, Facts, lasting
from .shown import (
    as_json,
    details,
    document,
    duration,
    elsewhere,
    in_two_forms,
    kept,
    kind_of,
    sentence,
    stands,
    whereabouts,
)

F = TypeVar("F", bound=Callable[..., object])

_SHORTEST: Final = 0.1
_LONGEST: Final = 86_400.0
_ANY_PREFIX: Final = "aiolocks"

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_document", is_flag=True, help="Print one JSON document for scripts, and nothing else."
)
kind_option: Callable[[Any], Any] = click.option(
    "--kind",
    metavar="KIND",
    shell_complete=kinds,
    help="Only this kind: lock, fairlock, semaphore, rwlock …  [default: every kind]",
)


@click.command(help=texts.LS, short_help="List what is held, by whom, and how many wait.")
@click.argument("pattern", default="*", shell_complete=names)
@json_option
@prefix_option
@redis_option()
def ls(*, pattern: str, as_document: bool, prefix: str, url: str) -> None:
    """See `texts.LS`."""
    infos, others = asyncio.run(_list(url, prefix, pattern, others=_is_default() and not as_document))
    if as_document:
        click.echo(document(prefix=prefix, locks=[as_json(info) for info in infos]))
    elif infos:
        from .table import print_table  # noqa: PLC0415 - scripts do not need it

        print_table(infos)
    else:
        say(f"nothing is held or waited for: '{visible(pattern)}' under the prefix '{visible(prefix)}'")
    if not as_document and (found := twins({(info.kind, info.name) for info in infos})):
        say(in_two_forms(found))
    if others:
        say(elsewhere(others))


@click.command(help=texts.PREFIXES, short_help="List the prefixes that are in use.")
@json_option
@redis_option()
def prefixes(*, as_document: bool, url: str) -> None:
    """See `texts.PREFIXES`."""
    found = asyncio.run(_prefixes(url))
    if as_document:
        listed = [{"prefix": prefix, "names": names} for prefix, names in found.items()]
        click.echo(document(prefixes=listed))
    elif found:
        shown = [(visible(prefix, sys.stdout.encoding), str(names)) for prefix, names in found.items()]
        width = max(len(prefix) for prefix, _ in (("PREFIX", ""), *shown))
        for prefix, names in (("PREFIX", "NAMES"), *shown):
            click.echo(f"{prefix:<{width}}  {names:>5}")
    else:
        say("nothing is held or waited for under any prefix")


@click.command(help=texts.SHOW, short_help="Show who holds a lock, in full.")
@click.argument("name", shell_complete=names)
@kind_option
@json_option
@prefix_option
@redis_option()
def show(*, name: str, kind: str | None, as_document: bool, prefix: str, url: str) -> None:
    """See `texts.SHOW`."""
    found = asyncio.run(_show(url, prefix, name, _space(kind, families())))
    infos = [info for info, _ in found]
    if as_document:
        held = [info for info in infos if info.holders or info.waiters or stands(info)]
        click.echo(document(prefix=prefix, name=name, locks=[as_json(info) for info in held]))
    else:
        click.echo("\n\n".join(_in_full(info, facts) for info, facts in found), nl=bool(infos))
    if not any(map(stands, infos)):
        raise CommandError(_nobody(name, prefix), NOT_HELD)


@click.command(help=texts.RELEASE, short_help="Free a lock from its holder.")
@click.argument("name", shell_complete=names)
@click.option("--force", is_flag=True, help="Do it. Without, the command only says what it would free.")
@kind_option
@json_option
@prefix_option
@redis_option()
def release(*, name: str, force: bool, kind: str | None, as_document: bool, prefix: str, url: str) -> None:
    """See `texts.RELEASE`."""
    infos = asyncio.run(_release(url, prefix, name, _space(kind), force=force))
    if as_document:
        freed = [as_json(info) for info in infos] if force else []
        click.echo(document(prefix=prefix, name=name, freed=freed))
    if not infos:
        raise CommandError(_nobody(name, prefix), NOT_HELD)
    if not force:
        would = "; ".join(map(sentence, infos))
        if kind == "ratelimit":
            raise CommandError(
                f"--force would fill the bucket of {would}: more requests go on than it allows", 2
            )
        raise CommandError(f"--force would free {would}: its holder may still be at work", 2)
    if not as_document:
        for info in infos:
            click.echo(f"freed {sentence(info, sys.stdout.encoding)}")


@click.command(help=texts.TOP, short_help="Watch who holds what.")
@click.argument("pattern", default="*", shell_complete=names)
@click.option(
    "--interval", type=float, default=1, show_default=True, metavar="S",
    help="Seconds between two samples.",
)  # fmt: skip
@prefix_option
@redis_option()
def top(*, pattern: str, interval: float, prefix: str, url: str) -> None:
    """See `texts.TOP`."""
    if not _SHORTEST <= interval <= _LONGEST:  # also refuses NaN
        message = f"--interval must be from {_SHORTEST:g} to {_LONGEST:g} seconds, not {interval:g}"
        raise click.UsageError(message, click.get_current_context())
    from .top import Order, watch  # noqa: PLC0415 - the other commands do not need it

    order = Order(url=url, prefix=prefix, pattern=pattern, interval=interval, others=_is_default())
    sys.exit(asyncio.run(watch(order)))


def _is_default() -> bool:
    """Whether the user has named no prefix, and perhaps does not know that there are several."""
    return click.get_current_context().get_parameter_source("prefix") is ParameterSource.DEFAULT


def _nobody(name: str, prefix: str) -> str:
    return f"nobody holds '{visible(name)}' under the prefix '{visible(prefix)}'"


def _space(kind: str | None, among: Collection[str] | None = None) -> str | None:
    try:
        return None if kind is None else name_space(kind, among)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None


async def _show(url: str, prefix: str, name: str, kind: str | None) -> list[tuple[LockInfo, Facts]]:
    """What stands under a name, and the further facts of each; a schedule between its runs, too."""
    async with asking(url, prefix) as session:
        found = {info.kind: info for info in await session.inspect(glob.escape(name))}
        lasts = {one: await lasting(session, one, name) for one in LASTING if kind in (None, one)}
    for one in (one for one, facts in lasts.items() if facts):
        found.setdefault(one, LockInfo(kind=one, name=name))
    return [(found[one], lasts.get(one, [])) for one in sorted(found) if kind in (None, one)]


async def _list(
    url: str, prefix: str, pattern: str, *, others: bool
) -> tuple[list[LockInfo], dict[str, int]]:
    """The locks that match; with `others`, also how many names there are under other prefixes."""
    async with asking(url, prefix) as session:
        infos = await session.inspect(pattern)
        if others and not (infos and literal_places(pattern) is not None):
            return infos, await other_prefixes(session, prefix)
    return infos, {}


async def _prefixes(url: str) -> dict[str, int]:
    async with asking(url, _ANY_PREFIX) as session:
        return await prefixes_in_use(engine_of(session))


async def _release(url: str, prefix: str, name: str, kind: str | None, *, force: bool) -> list[LockInfo]:
    async with asking(url, prefix) as session:
        if force:
            return await session.force_release(name, kind=kind, by=_operator())
        found = await session.inspect(glob.escape(name))
    wanted = holdable() if kind is None else (kind,)
    # A rate limit that is not full can be filled.
    return [info for info in found if info.kind in wanted and (stands(info) or info.kind == "ratelimit")]


def _operator() -> str | None:
    """The user of this command, as the holder is told; None where the system knows no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):
        return None


def _taken(info: LockInfo) -> int:
    """The permits of a semaphore that are held."""
    return sum(holder.permits or 1 for holder in info.holders)


def _in_full(info: LockInfo, further: Facts) -> str:
    """All that is known of it, a fact a line; at the end these."""
    encoding = sys.stdout.encoding
    permits = f"{_taken(info)} of {info.value or '?'} held, " if info.kind == "semaphore" else ""
    kind = kind_of(info, info.holders[0] if info.holders else None)
    what = f"{visible(kind, encoding)} '{visible(info.name, encoding)}'"
    shown = [f"{what}: {permits}{info.waiters} waiting"]
    if info.problem:
        shown.append(f"  problem         {in_line(info.problem)}")
    if info.kept_until is not None:
        subject = "" if info.kind == "ratelimit" else "nobody holds it "
        shown.append(f"  {subject}{kept(info)}, {duration(info.kept_for)} more")
    for number, holder in enumerate(info.holders):
        if number:
            shown.append("")
        known = {
            "holder": holder.lease_id,
            "host": holder.host,
            "pid": holder.pid,
            "task": holder.task,
            "held for": duration(holder.held_for),
            "remaining": duration(holder.remaining),
            "fencing token": holder.fencing_token,
            "value": None if holder.value is None else json.dumps(holder.value, ensure_ascii=False),
            **{f"+ {key}": value for key, value in holder.metadata.items()},
        }
        shown += [
            f"  {visible(key, encoding):<15} {visible(str(fact), encoding)}"
            for key, fact in known.items()
            if fact is not None
        ]
        if holds := details(LockInfo(kind=info.kind, name="", value=info.value), holder, encoding):
            shown.append(f"  {'holds':<15} {holds}")
    if len(info.holders) > 1 and (info.waiting or further):
        shown.append("")
    if not info.holders and (
        stands_for := details(dataclasses.replace(info, problem="", kept_until=None), None)
    ):
        shown.append(f"  {'state':<15} {stands_for}")
    for waiter in info.waiting:
        waited = "" if waiter.waited_for is None else f" for {duration(waiter.waited_for)}"
        shown.append(f"  {'waiting':<15} {visible(whereabouts(waiter), encoding)}{waited}")
    if info.waiters > len(info.waiting) > 0:
        shown.append(f"  {'waiting':<15} and {info.waiters - len(info.waiting)} more")
    shown += [f"  {label:<15} {visible(fact, encoding)}" for label, fact in further]
    return "\n".join(shown)

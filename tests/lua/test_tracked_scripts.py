"""A connection that tracks is told after a renewal or a question: of each later change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiolocks.kinds.leadership import KIND, TERMS
from aiolocks.kinds.multilock import SeveralSteps
from aiolocks.kinds.permits import PermitSteps
from aiolocks.kinds.reentrant import ReentrantSteps
from aiolocks.kinds.spans import Span, SpanSteps
from aiolocks.transport import LockSteps, Request
from aiolocks.transport.steps.base import NameSteps
from tests.lua.scripts import HOUR, MINUTE, Ear, LockScripts

TOKEN = "a1" * 32
SPACE: dict[str, Any] = {"retention_ms": HOUR, "session": "s"}
KINDS: dict[str, Callable[[str], Any]] = {
    "lock": lambda prefix: LockSteps(prefix, "a", **SPACE),
    "reentrant": lambda prefix: ReentrantSteps(prefix, "a", owner=TOKEN[:32], apart=False, **SPACE),
    "several": lambda prefix: SeveralSteps(prefix, ("a", "b"), **SPACE),
    "semaphore": lambda prefix: PermitSteps(
        prefix, "semaphore", "a", permits=1, value=2, fair=False, **SPACE
    ),
    "fair": lambda prefix: PermitSteps(prefix, "fairlock", "a", permits=1, value=None, fair=True, **SPACE),
    "leadership": lambda prefix: PermitSteps(
        prefix, KIND, "a", permits=1, value=None, fair=True, family=TERMS, **SPACE
    ),
    "writer": lambda prefix: SpanSteps(
        prefix,
        "rangelock",
        "a",
        Span("w", "2", "3"),
        label="RangeLock",
        longest_sleep_ms=64,
        **SPACE,
    ),
}


async def said(ear: Ear, command: Request[Any]) -> Any:
    for _ in command.watched:
        assert await ear.say("CLIENT", "CACHING", "YES") == b"OK"
        break
    return command.parse(await ear.say(*command.words(as_eval=True)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asking", ["renew", "owned"])
async def test_each_later_change_of_its_key_is_told_once(redis, prefix, kind, asking) -> None:
    steps: NameSteps = KINDS[kind](prefix)
    acquire: Request[Any] = steps.acquire(TOKEN, MINUTE, "{}")  # type: ignore[attr-defined]
    # A connection is told nothing of what it does itself; so another one deletes.
    async with LockScripts(redis, prefix).listening() as ear:
        assert await said(ear, acquire)
        question: Request[Any] = (
            steps.renew(TOKEN, MINUTE) if asking == "renew" else steps.owned(TOKEN)  # type: ignore[attr-defined]
        )
        steps.watch(question)
        assert question.watched
        assert await said(ear, question)
        assert await ear.told() == []

        await redis.delete(*question.watched)
        told = [key for _, keys in await ear.told() for key in keys]
        assert set(question.watched) <= set(told)
        assert len(told) == len(set(told))
        assert not await said(ear, question)
    await redis.delete(*await redis.keys(f"{prefix}:*"))


async def test_an_unwatched_renewal_is_told_of_nothing(redis, prefix) -> None:
    steps = LockSteps(prefix, "a", **SPACE)
    async with LockScripts(redis, prefix).listening() as ear:
        await said(ear, steps.acquire(TOKEN, MINUTE, "{}"))
        watched = steps.renew(TOKEN, MINUTE)
        steps.watch(watched)
        await said(ear, watched)
        await said(ear, steps.renew(TOKEN, MINUTE))  # its write ends what was tracked
        await redis.delete(*watched.watched)
        assert await ear.told() == []

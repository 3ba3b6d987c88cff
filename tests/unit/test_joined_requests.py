"""Which calls go in one request: a release and the acquire that suits it, and no others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aiolocks.kinds.multilock import SeveralSteps
from aiolocks.transport.request import Request, ignore
from aiolocks.transport.steps.lock import LockSteps
from aiolocks.transport.steps.standing import WAITING

OLD, NEW = "a1" * 16, "b2" * 16


def lock(name: str) -> LockSteps:
    return LockSteps("p", name, retention_ms=1, session="s")


def multi(*names: str) -> SeveralSteps:
    return SeveralSteps("p", names, retention_ms=1, session="s")


def call(command: Request[Any]) -> Request[Any]:
    return command.again().ask(ignore, ignore, until=math.inf)


def joined(release: Request[Any], acquire: Request[Any]) -> Any:
    return call(release).with_rider(call(acquire))


@pytest.mark.parametrize("commands", [lock("x"), multi("x", "y")])
@pytest.mark.parametrize("standing", [0, WAITING])
def test_a_quiet_release_goes_with_the_acquire_of_the_same(commands, standing) -> None:
    acquire = commands.acquire(NEW, 1000, "{}", standing)

    words = joined(commands.release(OLD, 1000, ring=False), acquire)

    assert words is not None
    assert words[2] == len(acquire.keys)
    assert words[3:] == (*acquire.keys, *acquire.args, OLD)


@pytest.mark.parametrize(
    ("release", "acquire"),
    [
        (lock("x").release(OLD, 1000, ring=True), lock("x").acquire(NEW, 1000, "{}")),
        (lock("x").release(OLD, 1000, ring=False, leave=True), lock("x").acquire(NEW, 1000, "{}")),
        (lock("x").release_at_least(OLD, 1000, 500, ring=False), lock("x").acquire(NEW, 1000, "{}")),
        (lock("x").release(OLD, 1000, ring=False), lock("y").acquire(NEW, 1000, "{}")),
        (lock("x").release(OLD, 1000, ring=False), lock("x").renew(NEW, 1000)),
        (multi("x", "y").release(OLD, 1000, ring=False), multi("x", "z").acquire(NEW, 1000, "{}")),
        (multi("x", "y").release(OLD, 1000, ring=False), multi("x", "y", "z").acquire(NEW, 1000, "{}")),
        (lock("x").acquire(NEW, 1000, "{}"), lock("x").release(OLD, 1000, ring=False)),
    ],
)
def test_nothing_else_goes_with_another(release, acquire) -> None:
    assert joined(release, acquire) is None


@pytest.mark.parametrize("why", ["alone", "mid_move", "elsewhere"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_that_goes_another_way_goes_alone(why, which) -> None:
    calls = [
        call(lock("x").release(OLD, 1000, ring=False)),
        call(lock("x").acquire(NEW, 1000, "{}")),
    ]
    assert calls[0].with_rider(calls[1]) is not None
    setattr(calls[which], why, True)

    assert calls[0].with_rider(calls[1]) is None


@pytest.mark.parametrize(
    "made",
    [
        lambda: call(Request(None, (b"k",), ("GET", "k"), ignore, bells=(b"k",))),
        lambda: call(Request(None, (b"k",), ("GET", "k"), ignore, bells=(b"k",))).again(),
        lambda: lock("x").owned(OLD).ask(ignore, ignore, until=math.inf, undoes=True),
        lambda: lock("x").owned(OLD).ask(ignore, ignore, until=math.inf, as_eval=True),
        lambda: lock("x").owned(OLD).ask(ignore, ignore, until=math.inf, make=lambda: lock("x").owned(NEW)),
    ],
    ids=["bells", "bells again", "undoes", "as_eval", "make"],
)
def test_what_is_not_written_by_its_digest_is_not_plain(made) -> None:
    assert not made().plain


def test_what_is_spelled_out_is_not_plain() -> None:
    request = call(lock("x").owned(OLD))
    assert request.plain
    assert request.words()[0] == "EVALSHA"
    request.spell_out()
    assert not request.plain
    assert request.words()[0] == "EVAL"

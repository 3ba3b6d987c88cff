"""Each kind does what its model does, over thousands of random steps on a real server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.models.exploring import DisagreementError, explore
from tests.models.waiting import WaitingModesWorld, WaitingPermitsWorld, WaitingRangesWorld, WaitingWorld
from tests.models.worlds import (
    FairLockWorld,
    NamesWorld,
    RangeLockWorld,
    RWLockWorld,
    SemaphoreWorld,
    Stage,
)
from tests.support.models import FairModel, NamesModel, RangesModel, SemaphoreModel, broken

SEED = "1"
WAITING = 110
"""Steps, each of which takes some ten milliseconds. The soak below takes 5 000."""
SECONDS = 20.0
"""After which a slow machine has done enough."""
log = logging.getLogger(__name__)

KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "names": (NamesWorld, WaitingWorld),
    "semaphore": (SemaphoreWorld, WaitingPermitsWorld),
    "fair semaphore": (partial(SemaphoreWorld, fair=True), WaitingPermitsWorld),
    "fair lock": (FairLockWorld, WaitingWorld),
    "rwlock": (RWLockWorld, WaitingModesWorld),
    "rangelock, half open": (RangeLockWorld, WaitingRangesWorld),
    "rangelock, closed": (partial(RangeLockWorld, bounds="[]"), WaitingRangesWorld),
}
"""The world of each kind, and that of its waiters."""


async def walk(make: Callable[[], Any], *, seed: str, steps: int, **more: Any) -> None:
    done = await explore(make, make().VERBS, seed=f"{seed} {SEED}", steps=steps, **more)
    log.info("%s", done)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_server_does_what_the_model_does(kind: str, stage: Stage) -> None:
    steps = 900 if kind.startswith("range") else 400  # the soak below takes 20 000 of each
    world, _ = KINDS[kind]
    await walk(partial(world, stage), seed=kind, steps=steps, seconds=SECONDS)


@pytest.mark.parametrize("kind", KINDS)
async def test_those_who_wait_get_in_as_in_the_model(kind: str, stage: Stage) -> None:
    world, waiting = KINDS[kind]
    await walk(lambda: waiting(world(stage)), seed=f"waiting {kind}", steps=WAITING, seconds=SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_soak_of_the_models(kind: str, stage: Stage) -> None:
    world, waiting = KINDS[kind]
    await walk(partial(world, stage), seed=f"soak {kind}", steps=20_000)
    await walk(lambda: waiting(world(stage)), seed=f"soak, waiting {kind}", steps=5000)


# -- what these tests would notice


def never(*_: object, **__: object) -> None:
    """A step that the model does not take."""


BROKEN: dict[str, Callable[[Stage], Any]] = {
    "leases do not expire": lambda stage: NamesWorld(stage, broken(NamesModel, expire=never)()),
    "owners do not nest": lambda stage: NamesWorld(
        stage, broken(NamesModel, _is_entered_again=staticmethod(lambda *_: False))()
    ),
    "one of several names is enough": lambda stage: NamesWorld(
        stage,
        broken(
            NamesModel,
            fits=lambda self, want: (
                not all(any(name in held.want.names for held in self.held.values()) for name in want.names)
            ),
        )(),
    ),
    "an extension is none": lambda stage: FairLockWorld(
        stage, broken(FairModel, extend=lambda self, lease, ttl: self.holds(lease))()
    ),
    "adopting leaves the time that was left": lambda stage: FairLockWorld(
        stage,
        broken(FairModel, adopt=lambda self, lease, by, ttl: _moved(self, lease, by))(),
    ),
    "leases count instead of permits": lambda stage: SemaphoreWorld(
        stage, broken(SemaphoreModel, out=property(lambda self: len(self.held)))(4)
    ),
    "resizing does nothing": lambda stage: SemaphoreWorld(stage, broken(SemaphoreModel, resize=never)(4)),
    "upgradables share": lambda stage: RWLockWorld(
        stage, broken(RangesModel, share=lambda self, one, other: "writer" not in {one, other})()
    ),
    "readers exclude each other": lambda stage: RWLockWorld(
        stage, broken(RangesModel, share=lambda self, one, other: False)()
    ),
    "an upgrade is kept out by its own upgradable": lambda stage: RWLockWorld(
        stage,
        broken(
            RangesModel,
            _conflict=lambda self, want, lease, held: (
                self.overlap(want, held) and not self.share(want.mode, held.mode)
            ),
        )(),
    ),
    "a downgraded writer stays one": lambda stage: RWLockWorld(
        stage, broken(RangesModel, downgrade=lambda self, lease: self.holds(lease))()
    ),
    "a shrunk lease has all of it": lambda stage: RangeLockWorld(
        stage, broken(RangesModel, shrink=lambda self, lease, low, high: self.holds(lease))()
    ),
    "right ends are included": lambda stage: RangeLockWorld(stage, RangesModel(closed=True)),
    "right ends are not included": lambda stage: RangeLockWorld(stage, RangesModel(), bounds="[]"),
    "waiting: whoever comes last is served first": lambda stage: WaitingWorld(
        FairLockWorld(stage, broken(FairModel, due=lambda self: set(list(self.waiting)[-1:]))())
    ),
    "waiting: nobody reserves": lambda stage: WaitingModesWorld(
        RWLockWorld(stage, broken(RangesModel, reserved=lambda self, want, waiter=None: False)())
    ),
    "waiting: readers never pass": lambda stage: WaitingModesWorld(
        RWLockWorld(
            stage,
            broken(
                RangesModel,
                _has_its_turn=lambda self, waiter, want: not self.reserved(want),
                _may_pass=lambda self, waiter, want: not self.reserved(want),
            )(),
        )
    ),
    "waiting: a writer keeps readers out from when it asks": lambda stage: WaitingModesWorld(
        RWLockWorld(stage, broken(RangesModel, keeps_readers_out=lambda self, writer: True)())
    ),
    "waiting: writers and upgradables enter in any order": lambda stage: WaitingModesWorld(
        RWLockWorld(stage, broken(RangesModel, behind=lambda self, want, waiter=None: False)())
    ),
    "waiting: the last to ask goes first": lambda stage: WaitingRangesWorld(
        RangeLockWorld(
            stage,
            broken(
                RangesModel,
                _before=lambda self, waiter: (
                    self.asked[self.asked.index(waiter) + 1 :] if waiter in self.asked else []
                ),
            )(),
        )
    ),
    "waiting: an upgrade has to wait for a reservation": lambda stage: WaitingModesWorld(
        RWLockWorld(
            stage,
            broken(RangesModel, _has_its_turn=lambda self, waiter, want: not self.reserved(want))(),
        )
    ),
}


def _moved(model: Any, lease: int, by: int) -> bool:
    if not model.holds(lease):
        return False
    model.held[by] = model.held.pop(lease)
    return True


@pytest.mark.parametrize("rule", BROKEN)
async def test_a_broken_rule_is_noticed(rule: str, stage: Stage) -> None:
    with pytest.raises(DisagreementError):
        await walk(partial(BROKEN[rule], stage), seed="broken", steps=2000, shorten=False)

"""What names kinds by hand has each kind of the registry: none is forgotten where all of them go through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import Session, sync
from aiolocks.lock.acquirable import Acquirable
from aiolocks.transport.steps.family import Kind, kinds
from tests.conformance.conftest import CONFORMS
from tests.kinds import declared

ROOT = Path(__file__).parents[2]
KEYS = (ROOT / "docs" / "reference" / "server.md").read_text("utf-8").partition("## Permissions")[0]
WORLD = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "simulation" / "world").glob("*.py"))

EACH = [pytest.param(kind, id=kind.name) for kind in kinds().values()]


@pytest.mark.parametrize("kind", EACH)
def test_its_keys_are_in_the_table_of_keys(kind: Kind) -> None:
    roles = {role.partition(".")[0] for role in (*kind.family.roles, *kind.family.passive)} - {""}
    shared = {"fence", "stolen", "nest", "queue", "value", "leases"}  # told once, for all that have them
    assert f"`{kind.of or kind.name}" in KEYS
    assert all(f".{role}" in KEYS for role in shared | roles)
    assert [role for role in roles - shared if not re.search(rf"`[a-z]+\.{role}\b", KEYS)] == []


@pytest.mark.parametrize("kind", EACH)
def test_the_simulated_world_has_it(kind: Kind) -> None:
    own = {one.name for one in declared("WORLD")}
    assert kind.name in own or re.search(rf"\b({kind.title}|{kind.title.lower()}s?)\b", WORLD)


@pytest.mark.parametrize("kind", EACH)
def test_threads_have_it(kind: Kind) -> None:
    assert hasattr(getattr(sync, kind.made_by or "Session"), kind.title.lower())


async def test_each_whose_acquire_gives_a_lease_conforms() -> None:
    async with Session(Redis(), prefix="p") as session:  # there is no I/O
        engine = aiolocks.Lock(session, "a")._engine()
        resources = [kind.make(session, "a")._resource(engine) for kind in CONFORMS if kind.masters == 1]
        judged = {id(resource.steps.family) for resource in resources}
    left_out = [
        kind.name for kind in kinds().values() if _gives_a_lease(kind) and id(kind.family) not in judged
    ]
    assert left_out == [
        "leadership"
    ]  # as `FairLock`, but always renewed and cancelled: it has no such options


def _gives_a_lease(kind: Kind) -> bool:
    made = getattr(aiolocks, kind.title, None)
    return isinstance(made, type) and (issubclass(made, Acquirable) or hasattr(made, "writer"))

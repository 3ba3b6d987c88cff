"""Envoy, which has no RESP3, says that it is a cluster, and answers some commands itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    Lock,
    RateLimit,
    Session,
    SingleFlight,
    Turnstile,
)
from aiolocks.cli.doctor.command import examine
from aiolocks.cli.server import connected
from tests.adversity.behind_proxies import MUTUAL, hand_over
from tests.conftest import OwnServer
from tests.support.envoy import running_envoy


@pytest.fixture(params=[1, 2])
async def envoy(request: pytest.FixtureRequest, own_server: OwnServer) -> AsyncIterator[int]:
    """The port of a proxy in front of so many servers."""
    servers = [await own_server(port=0) for _ in range(request.param)]
    async with running_envoy(servers) as port:
        yield port


@pytest.fixture
async def sessions(envoy: int) -> AsyncIterator[tuple[Session, Session]]:
    backoff = Backoff(initial=0.02, maximum=0.05)
    async with (
        Redis(port=envoy) as redis,
        Redis(port=envoy) as another,
        Session(redis, backoff=backoff) as one,
        Session(another, backoff=backoff) as other,
    ):
        yield one, other


@pytest.mark.parametrize("kind", MUTUAL)
async def test_a_lock_is_held_waited_for_renewed_and_handed_over(
    sessions: tuple[Session, Session], kind: str
) -> None:
    await hand_over(*sessions, kind)


@pytest.mark.leaves_keys("*singleflight*", "*turnstile*", "*ratelimit*")
async def test_other_kinds(sessions: tuple[Session, Session]) -> None:
    async def value() -> str:
        return "made"

    flights = [SingleFlight(session, keep=5).do("v", value) for session in sessions]
    assert await asyncio.gather(*flights) == ["made", "made"]
    assert [await Turnstile(session, "t", window=60).enter() for session in sessions] == [1, 2]
    assert [(await RateLimit(session, "p", 1, per=60).try_acquire()).allowed for session in sessions] == [
        True,
        False,
    ]


async def test_it_is_no_node_of_a_cluster_for_the_commands(
    sessions: tuple[Session, Session], envoy: int
) -> None:
    async with (
        Lock(sessions[0], "l"),
        connected(f"redis://127.0.0.1:{envoy}", ailing=True) as server,
    ):
        findings = {finding.check: finding for finding in await examine(server, prefix="aiolocks")}
    assert findings["scripts"].says == "the server runs Lua scripts for this user"
    assert findings["trial"].says.startswith("a lock was acquired, renewed, handed over")
    assert "clock" not in findings  # Envoy's TIME is none
    assert {finding.level for finding in findings.values()} == {"ok", "note", "warning"}

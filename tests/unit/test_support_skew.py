"""The wall clock of a real server moves, and nothing else does."""

from __future__ import annotations

import time

import pytest

from tests.support.skew import Clock, SkewUnavailableError, compile_shim


async def server_time(redis) -> float:
    seconds, microseconds = await redis.time()
    return seconds + microseconds / 1e6


@pytest.mark.parametrize("seconds", [3600, -3600, 0.25])
async def test_the_servers_clock_moves_both_ways(skewed_server, connect, seconds) -> None:
    redis = connect(skewed_server.server)
    assert await server_time(redis) == pytest.approx(time.time(), abs=0.1)

    await skewed_server.advance(seconds)
    assert skewed_server.offset == seconds
    assert await server_time(redis) == pytest.approx(time.time() + seconds, abs=0.1)

    await skewed_server.set_offset(0)
    assert await server_time(redis) == pytest.approx(time.time(), abs=0.1)


async def test_a_ttl_ends_when_the_clock_has_passed_it(skewed_server, connect) -> None:
    redis = connect(skewed_server.server)
    await redis.set("key", "value", ex=3600)

    await skewed_server.advance(3590)
    assert 9_000 < await redis.pttl("key") <= 10_000
    await skewed_server.advance(10)
    assert await redis.exists("key") == 0


async def test_it_is_the_server_itself_that_runs(skewed_server, connect) -> None:
    """Not a shell around it: what is killed and paused is the server."""
    info = await connect(skewed_server.server).info("server")

    assert info["process_id"] == skewed_server.server.pid


async def test_a_restarted_server_goes_by_the_same_clock(skewed_server, connect) -> None:
    await skewed_server.advance(3600)

    await skewed_server.server.restart()

    assert await server_time(connect(skewed_server.server)) == pytest.approx(time.time() + 3600, abs=0.5)


def test_clocks_are_told_apart(tmp_path) -> None:
    with Clock(tmp_path / "a") as one, Clock(tmp_path / "b") as other:
        one.offset = 1.5

        assert (one.offset, other.offset) == (1.5, 0.0)


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    with pytest.raises(SkewUnavailableError):
        compile_shim(tmp_path)

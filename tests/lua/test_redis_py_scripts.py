"""The scripts of the lock that is redis-py's on the server: every branch, said twice, by the wrong one.

That they do what redis-py does is shown in `tests/adversity/test_redis_py_alike.py`. A test that asks for
`lock` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.contrib.redis_py.steps import RedisPySteps
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:redis_py:*")

ME, OTHER = b"a1" * 16, b"b2" * 16


class RedisPyScripts(Scripts):
    """The steps of the lock; its key stands for the name that a user has given."""

    kind = "redis_py"

    async def say(self, step: str, *arguments: Any) -> Any:
        return await self.run(self.words(f"redis_py_{step}", [self.key()], *arguments))

    async def acquire(self, token: bytes, timeout: int | str = MINUTE, *, again: int = 0) -> Any:
        return await self.say("acquire", token, timeout, again)

    async def put(self, token: bytes, ms: int | None = MINUTE) -> None:
        await self.redis.set(self.key(), token, px=ms)

    async def left(self) -> int:
        left: int = await self.redis.pttl(self.key())
        return left

    async def value(self) -> bytes | None:
        value: bytes | None = await self.redis.get(self.key())
        return value


@pytest.fixture
def lock(redis, prefix) -> RedisPyScripts:
    return RedisPyScripts(redis, prefix)


async def test_acquire_takes_what_is_free(lock) -> None:
    assert await lock.acquire(ME) == 1
    assert await lock.value() == ME
    assert about(await lock.left(), MINUTE)


async def test_acquire_without_a_timeout_sets_none(lock) -> None:
    assert await lock.acquire(ME, "") == 1
    assert await lock.value() == ME
    assert await lock.left() == -1


async def test_acquire_is_refused_and_changes_nothing(lock) -> None:
    await lock.put(OTHER)
    for timeout in (HOUR, ""):
        for again in (0, 1):
            assert await lock.acquire(ME, timeout, again=again) == 0
    assert await lock.value() == OTHER
    assert about(await lock.left(), MINUTE)


async def test_the_same_token_is_refused_unless_it_may_have_been_taken_before(lock) -> None:
    await lock.put(ME)
    assert await lock.acquire(ME, HOUR) == 0
    assert about(await lock.left(), MINUTE)
    assert await lock.acquire(ME, HOUR, again=1) == 1
    assert about(await lock.left(), HOUR)


async def test_said_again_without_a_timeout_it_sets_none(lock) -> None:
    await lock.put(ME, None)
    assert await lock.acquire(ME, "", again=1) == 1
    assert await lock.left() == -1


@pytest.mark.parametrize("again", [0, 1])
async def test_what_is_no_string_is_held(lock, again: int) -> None:
    await lock.redis.rpush(lock.key(), "mine")
    assert await lock.acquire(ME, again=again) == 0


async def test_release_frees_what_the_token_holds(lock) -> None:
    await lock.put(OTHER)
    assert await lock.say("release", ME) == 0
    assert await lock.value() == OTHER
    assert await lock.say("release", OTHER) == 1
    assert await lock.value() is None
    assert await lock.say("release", OTHER) == 0


async def test_extend_adds_or_replaces(lock) -> None:
    await lock.put(ME)
    assert await lock.say("extend", ME, HOUR, 0) == 1
    assert about(await lock.left(), HOUR + MINUTE)
    assert await lock.left() > HOUR
    assert await lock.say("extend", ME, MINUTE, 1) == 1
    assert about(await lock.left(), MINUTE)


async def test_extend_leaves_alone_what_is_not_its_own_or_has_no_ttl(lock) -> None:
    assert await lock.say("extend", ME, HOUR, 1) == 0
    await lock.put(OTHER)
    assert await lock.say("extend", ME, HOUR, 1) == 0
    assert about(await lock.left(), MINUTE)
    await lock.put(ME, None)
    for replace in (0, 1):
        assert await lock.say("extend", ME, HOUR, replace) == 0
    assert await lock.left() == -1


async def test_reacquire_sets_the_ttl(lock) -> None:
    assert await lock.say("reacquire", ME, HOUR, 0) == 0
    await lock.put(OTHER)
    assert await lock.say("reacquire", ME, HOUR, 0) == 0
    assert about(await lock.left(), MINUTE)
    assert await lock.say("reacquire", OTHER, HOUR, 0) == 1
    assert about(await lock.left(), HOUR)
    assert await lock.say("reacquire", OTHER, MINUTE, 0) == 1
    assert about(await lock.left(), MINUTE)


async def test_a_renewal_shortens_nothing(lock) -> None:
    await lock.put(ME)
    assert await lock.say("reacquire", ME, HOUR, 1) == 1
    assert about(await lock.left(), HOUR)
    assert await lock.say("reacquire", ME, MINUTE, 1) == 1
    assert about(await lock.left(), HOUR)
    await lock.put(ME, None)
    assert await lock.say("reacquire", ME, MINUTE, 1) == 1
    assert await lock.left() == -1


async def test_holder_is_the_value(lock) -> None:
    assert await lock.say("holder") is None
    await lock.put(ME)
    assert await lock.say("holder") == ME


@pytest.mark.parametrize("step", ["release", "extend", "reacquire", "holder"])
async def test_a_key_of_another_type_is_refused(lock, step: str) -> None:
    await lock.redis.rpush(lock.key(), "mine")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await lock.say(step, ME, MINUTE, 0)


async def test_the_commands_say_what_the_tests_do(lock) -> None:
    commands, key = RedisPySteps(lock.key()), [lock.key()]
    said = {
        "acquire": (commands.acquire(ME, None, again=False), (ME, "", 0)),
        "extend": (commands.extend(ME, 5, replace=True), (ME, 5, 1)),
        "reacquire": (commands.reacquire(ME, 5), (ME, 5, 0)),
        "release": (commands.release(ME), (ME,)),
        "holder": (commands.holder(), ()),
    }
    for step, (command, arguments) in said.items():
        assert command.words(as_eval=True) == lock.words(f"redis_py_{step}", key, *arguments)
        assert command.lane == (ME.decode() if step != "holder" else "")
    assert commands.acquire(ME, 5, again=True).args == (ME, 5, 1)
    assert commands.acquire(ME, 5, again=True).bells == ()
    assert commands.acquire(ME, 5, again=True, listen=True).bells == (lock.key(),)
    assert commands.reacquire(ME, 5, shorten=False).args == (ME, 5, 1)
    assert commands.extend(ME, 5, replace=False).args == (ME, 5, 0)


async def test_who_reads_hears_of_the_end(lock) -> None:
    """A try that is refused has read the key: its end is told where that is tracked."""
    await lock.put(OTHER)
    async with lock.listening() as ear:
        await ear.say("CLIENT", "CACHING", "YES")
        assert await ear.say(*lock.words("redis_py_acquire", [lock.key()], ME, MINUTE, 0)) == 0
        assert await ear.told() == []
        await lock.redis.delete(lock.key())
        assert await ear.told() == [[b"invalidate", [lock.key()]]]


NEEDED = ("eval", "del", "get", "pexpire", "pttl", "set")


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password=secrets.token_hex(4))

    async def works(*commands: str) -> bool:
        password = user.connection_pool.connection_kwargs["password"]
        rules = ["reset", "on", f">{password}", "-@all", "~aiolocks:redis_py:*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        lock = RedisPyScripts(user, "aiolocks")
        try:
            await lock.acquire(ME)
            done = [await lock.acquire(ME, again=1), await lock.say("extend", ME, 5000, 0)]
            done += [await lock.say("reacquire", ME, 5000, 0), await lock.say("release", ME)]
            return done == [1, 1, 1, 1]
        except (NoPermissionError, ResponseError):
            return False

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "lock")
ACQUIRE, EXTEND, REACQUIRE = "redis_py_acquire", "redis_py_extend", "redis_py_reacquire"
SAME = "test_the_same_token_is_refused_unless_it_may_have_been_taken_before"
MUTATIONS = [
    Mutation(
        ACQUIRE, "redis.pcall('GET', lock) ~= token or ", "", "test_acquire_is_refused_and_changes_nothing"
    ),
    Mutation(ACQUIRE, " or ARGV[3] ~= '1'", "", SAME),
    Mutation(
        EXTEND,
        "if left < 0 then",
        "if left < -1 then",
        "test_extend_leaves_alone_what_is_not_its_own_or_has_no_ttl",
    ),
    Mutation(EXTEND, "ARGV[3] == '0'", "true", "test_extend_adds_or_replaces"),
    Mutation(REACQUIRE, "if ARGV[3] == '1' then", "if true then", "test_reacquire_sets_the_ttl"),
    Mutation(REACQUIRE, "left < 0 or ", "", "test_a_renewal_shortens_nothing"),
]


async def test_each_guard_is_needed(redis, prefix) -> None:
    assert await surviving(RedisPyScripts, redis, prefix, MUTATIONS, CHECKS) == []


@pytest.mark.parametrize("step", ["acquire", "extend", "holder", "reacquire", "release"])
async def test_each_line_is_needed(redis, prefix, step: str) -> None:
    file = f"redis_py_{step}"
    mutants = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(RedisPyScripts, redis, prefix, file, mutants)
    assert living
    assert await unnoticed(RedisPyScripts, redis, prefix, living, among=CHECKS) == []

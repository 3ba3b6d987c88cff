"""The scripts of a register that refuses late writes: every branch, said twice.

A test that asks for `register` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.kinds.fenced import FencedSteps
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, surviving, unnoticed
from tests.lua.scripts import Scripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:fencedregister:*")

TOKEN = 1_795_201_144_998_987
LARGEST = 2**63 - 1


class FencedScripts(Scripts):
    """The steps of a register."""

    kind = "fencedregister"
    shared = ("forms",)

    async def write(self, token: int, value: str, *, form: str = "json") -> Any:
        return await self.run(self.words("fenced_write", [self.key()], token, form, value))

    async def read(self) -> Any:
        return await self.run(self.words("fenced_read", [self.key()]))


@pytest.fixture
def register(redis, prefix) -> FencedScripts:
    return FencedScripts(redis, prefix)


async def test_what_was_written_is_read_and_does_not_expire(register) -> None:
    assert await register.read() == []
    assert await register.write(TOKEN, "1", form="bytes") == b""
    assert await register.read() == [b"bytes", b"1"]
    assert await register.ttls() == {register.key(): -1}
    assert await register.redis.hget(register.key(), "fence") == str(TOKEN).encode()


async def test_a_newer_token_writes_and_an_older_one_changes_nothing(register) -> None:
    await register.write(TOKEN, "1")
    assert await register.write(TOKEN + 1, "2") == b""
    state = await register.state()

    assert await register.write(TOKEN, "3", form="bytes") == str(TOKEN + 1).encode()
    assert await register.state() == state


async def test_the_same_token_writes_again(register) -> None:
    assert [await register.write(TOKEN, value) for value in ("1", "2", "2")] == [b"", b"", b""]
    assert await register.read() == [b"json", b"2"]


@pytest.mark.parametrize(
    ("older", "newer"),
    [(0, 1), (9, 10), (99, 100), (10**15 - 1, 10**15), (2**53, 2**53 + 1), (LARGEST - 1, LARGEST)],
)
async def test_tokens_are_compared_as_numbers_of_any_length(register, older: int, newer: int) -> None:
    await register.write(newer, "1")
    assert await register.write(older, "2") == str(newer).encode()
    await register.clear()
    await register.write(older, "1")
    assert await register.write(newer, "2") == b""


async def test_tokens_of_different_length_are_compared_as_numbers(register) -> None:
    await register.write(100, "1")
    assert await register.write(99, "2") == b"100"
    assert await register.write(999, "2") == b""
    assert await register.write(1000, "3") == b""
    assert await register.write(222, "4") == b"1000"


@pytest.mark.parametrize("step", ["read", "write"])
async def test_a_key_of_another_type_is_refused(register, step: str) -> None:
    await register.redis.set(register.key(), "mine")
    with pytest.raises(ResponseError, match="FOREIGN 1"):
        await (register.read() if step == "read" else register.write(1, "1"))


async def test_a_hash_that_is_not_ours_is_refused_and_stays(register) -> None:
    strange = {"fence": "x", "form": "json", "value": "1"}
    for content in ({"a": "b"}, strange, {"fence": ""}, {"fence": "1.5"}):
        await register.redis.delete(register.key())
        await register.redis.hset(register.key(), mapping=content)
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await register.write(1, "1")
        if "form" not in content:
            with pytest.raises(ResponseError, match="FOREIGN 1"):
                await register.read()
        assert await register.redis.hgetall(register.key()) == {
            field.encode(): value.encode() for field, value in content.items()
        }


async def test_the_commands_say_what_the_tests_do(register) -> None:
    commands = FencedSteps(register.prefix, register.name)
    write, read = commands.write("json", b"1", TOKEN), commands.read()

    assert write.words(as_eval=True) == register.words(
        "fenced_write", [register.key()], str(TOKEN), "json", b"1"
    )
    assert read.words(as_eval=True) == register.words("fenced_read", [register.key()])
    assert write.lane == read.lane  # in the order in which they were sent
    assert read.parse(await register.read()) is None
    assert write.parse(await register.write(TOKEN, "1")) is None
    assert write.parse(await register.write(TOKEN - 1, "1")) == TOKEN
    assert read.parse(await register.read()) == ("json", b"1")


NEEDED = ("eval", "hget", "hlen", "hset")


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def works(*commands: str) -> bool:
        rules = ["reset", "on", ">secret", "-@all", "~aiolocks:fencedregister:*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        register = FencedScripts(user, "aiolocks")
        try:
            await register.write(1, "1")
            await register.read()
        except (NoPermissionError, ResponseError):
            return False
        return True

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "register")
WRITE, READ = "fenced_write", "fenced_read"
BY_LENGTH = "test_tokens_of_different_length_are_compared_as_numbers"
MUTATIONS = [
    Mutation(WRITE, "#seen > #ARGV[1] or ", "", BY_LENGTH),
    Mutation(WRITE, "(#seen == #ARGV[1] and seen > ARGV[1])", "seen > ARGV[1]", BY_LENGTH),
    Mutation(WRITE, "and seen > ARGV[1]", "and seen >= ARGV[1]", "test_the_same_token_writes_again"),
]


async def test_each_guard_is_needed(redis, prefix) -> None:
    assert await surviving(FencedScripts, redis, prefix, MUTATIONS, CHECKS) == []


@pytest.mark.parametrize("step", [WRITE, READ])
async def test_each_line_is_needed(redis, prefix, step: str) -> None:
    mutants = [(name, step, text) for name, text in lines_left_out(step)]
    living = await compiled(FencedScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(FencedScripts, redis, prefix, living, among=CHECKS) == []

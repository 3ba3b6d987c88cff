"""The minimal ACL: with what is documented everything works, and each word of it is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiolocks import BackendError, Lock, Session

COMMANDS = ["eval", "evalsha", "get", "set", "del", "exists", "pexpire", "pttl", "time"]
KEYS = ["aiolocks:lock:*", "aiolocks:lock.fence:*"]
KNOWS_ITSELF = ["client|info", "client|kill", "info"]
"""Optional: lets a session drop its own old connection after a reconnect, and warn of an eviction policy."""

As = Callable[..., Awaitable[Session]]


@pytest.fixture
async def as_user(own_server, connect) -> Any:
    """A session of a user who may do this and nothing else."""
    sessions = []

    async def as_user(*, commands: list[str] = COMMANDS, keys: list[str] = KEYS) -> Session:
        server = await own_server()
        rules = ["reset", "on", ">secret", "resetchannels", "-@all"]
        rules += [f"+{command}" for command in commands] + [f"~{pattern}" for pattern in keys]
        await connect(server).execute_command("ACL", "SETUSER", "locks", *rules)
        session = Session(connect(server, username="locks", password="secret"))
        sessions.append(session)
        return session

    yield as_user
    for session in sessions:
        await session.aclose()


async def everything(session: Session) -> None:
    """Each thing that a lock and its lease can do, and being refused."""
    lock = Lock(session, "name", ttl=10)
    async with lock as lease:
        assert await lock.locked()
        assert await lease.owned()
        await lease.extend(20)
        assert await Lock(session, "name").try_acquire() is None
        handle = lease.detach()
    adopted = await lock.adopt(handle)
    await adopted.release()
    assert not await lock.locked()


async def test_with_the_minimal_acl_everything_works(as_user) -> None:
    await everything(await as_user())


@pytest.mark.leaves_keys
@pytest.mark.parametrize("missing", COMMANDS)
async def test_each_of_its_commands_is_needed(as_user, missing) -> None:
    session = await as_user(commands=[command for command in COMMANDS if command != missing])

    with pytest.raises(BackendError, match=r"Redis refused"):
        await everything(session)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("missing", KEYS)
async def test_each_of_its_keys_is_needed(as_user, missing) -> None:
    session = await as_user(keys=[pattern for pattern in KEYS if pattern != missing])

    with pytest.raises(BackendError, match=r"Redis refused"):
        await everything(session)


async def test_a_denial_names_the_key_and_the_minimal_acl(as_user) -> None:
    session = await as_user(keys=["other:*"])

    with pytest.raises(BackendError, match=r"for key 'aiolocks:lock:\{name\}': .* see the minimal ACL"):
        await everything(session)


async def test_without_the_optional_commands_a_session_does_not_know_itself(as_user) -> None:
    session = await as_user()
    await everything(session)

    identity = session._engine._transport._identity
    assert (identity.client_id, identity.address, identity.run_id) == (None, None, None)


async def test_with_the_optional_commands_it_does(as_user) -> None:
    session = await as_user(commands=COMMANDS + KNOWS_ITSELF)
    await everything(session)

    identity = session._engine._transport._identity
    assert None not in (identity.client_id, identity.address, identity.run_id)


async def test_a_name_with_a_hash_tag_of_its_own_needs_no_more(as_user) -> None:
    session = await as_user()
    async with Lock(session, "user:{42}") as lease:
        assert await lease.owned()

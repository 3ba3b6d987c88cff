"""The identity of a connection at its server: needed to drop it, and no other one, after a reconnect.

The server is asked on the new connection; a denial just leaves the answer out. A refusal that may pass, as of
a server that runs a long script, is no denial: the connection cannot serve yet, and the refusal is raised.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, final

from .._logs import get_logger
from .._visible import in_line
from . import faults
from .answers import fields
from .driver import AnsweredError
from .hearing import Ask

log = get_logger("aiolocks.transport")


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """How one connection is known to its server; fields are None where the ACL denies the question.

    Attributes:
        client_id: The server's number for the connection. A restarted server counts from 1 again.
        address: Our address as the server sees it.
        run_id: The server process.
    """

    client_id: bytes | None = None
    address: bytes | None = None
    run_id: bytes | None = None

    def same_server(self, other: Identity) -> bool:
        """Whether the other's number means the same connection at this server, beyond doubt."""
        return self.client_id is not None and self.run_id is not None and self.run_id == other.run_id


async def identify(ask: Ask) -> Identity:
    """Asks for the identity of a new connection, as far as the user may know it."""
    client, server = ask("CLIENT", "INFO"), ask("INFO", "server")
    of_client, of_server = await _fields(client, b"=", None), await _fields(server, b":", b"\r\n")
    found = Identity(of_client.get(b"id"), of_client.get(b"addr"), of_server.get(b"run_id"))
    if not found.same_server(found):
        log.info(
            "CLIENT INFO or INFO is denied: after a broken connection, what it still sends may hold a "
            "lock for a ttl"
        )
    return found


async def kill(ask: Ask, old: Identity) -> None:
    """Makes the server drop the old connection, with whatever of it is still on its way."""
    if old.client_id is None or old.address is None:
        return
    try:
        await ask("CLIENT", "KILL", "ID", old.client_id, "ADDR", old.address)
    except AnsweredError as error:
        _raise_if_it_may_pass(error)
        log.info(
            "CLIENT KILL is denied (%s): what the old connection still sends may hold a lock for a ttl",
            in_line(error),
        )


async def warn_of_eviction(ask: Ask) -> None:
    try:
        memory = await _fields(ask("INFO", "memory"), b":", b"\r\n")
    except AnsweredError:
        return
    policy = memory.get(b"maxmemory_policy", b"noeviction").decode()
    if policy != "noeviction" and memory.get(b"maxmemory", b"0") != b"0":
        log.warning("maxmemory-policy is %r: held locks can be evicted; set it to 'noeviction'", policy)


async def _fields(reply: asyncio.Future[Any], assign: bytes, separator: bytes | None) -> dict[bytes, bytes]:
    try:
        text = await reply
    except AnsweredError as error:
        _raise_if_it_may_pass(error)
        return {}
    return fields(text, assign, separator) if isinstance(text, bytes) else {}


def _raise_if_it_may_pass(error: AnsweredError) -> None:
    if faults.refused(error).transient:
        raise error

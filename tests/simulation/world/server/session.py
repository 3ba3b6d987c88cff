"""One connection as the server sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hiredis

from .replies import encode

if TYPE_CHECKING:
    from .server import Server
    from .store import Store


class Client:
    """One connection.

    Args:
        write: Sends bytes to the other end.
        hang_up: Closes the connection, once what was written is on its way.
        address: Where it comes from, as `CLIENT INFO` shows it.
    """

    __slots__ = (
        "address",
        "asking",
        "caching",
        "channels",
        "closed",
        "database",
        "hang_up",
        "id",
        "last",
        "name",
        "noloop",
        "optin",
        "out",
        "patterns",
        "protocol",
        "queue",
        "reader",
        "server",
        "shards",
        "speaks",
        "spoiled",
        "store",
        "tracking",
        "write",
    )

    store: Store

    def __init__(
        self,
        server: Server,
        number: int,
        write: Callable[[bytes], None],
        hang_up: Callable[[], None],
        address: str,
    ) -> None:
        self.server = server
        self.id = number
        self.write = write
        self.hang_up = hang_up
        self.address = address
        self.reader = hiredis.Reader()
        # Whether it has sent a request in the form of the protocol: before that, somebody may be typing.
        self.speaks = False
        self.out: list[bytes] = []
        self.closed = False
        self.protocol = 2
        self.name = b""
        self.last = ""
        self.tracking = self.optin = self.noloop = self.caching = False
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        self.shards: set[bytes] = set()  # channels of slots
        self.queue: list[tuple[bytes, ...]] | None = None  # of a transaction
        self.spoiled = False  # the queued requests contain an error
        self.asking = False
        self.select(0)

    def select(self, number: int) -> None:
        self.database = number
        self.store = self.server.store(number)

    def say(self, reply: Any) -> None:
        """Puts it after the messages that are sent already."""
        if not self.closed:
            if not self.out:
                self.server.talking.append(self)
            encode(reply, self.protocol, self.out)

    def flush(self) -> None:
        if self.out and not self.closed:
            data = b"".join(self.out)
            self.out.clear()
            self.write(data)
        else:
            self.out.clear()

    def described(self) -> str:
        flags = "t" if self.tracking else "N"
        return (
            f"id={self.id} addr={self.address} laddr=simulated:6379 fd=8 name={self.name.decode()} age=0 "
            f"idle=0 flags={flags} db={self.database} sub={len(self.channels)} psub={len(self.patterns)} "
            f"ssub={len(self.shards)} multi=-1 "
            f"cmd={self.last or 'NULL'} user=default redir=-1 resp={self.protocol} lib-name= lib-ver="
        )

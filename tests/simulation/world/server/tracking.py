"""Server-assisted client-side caching: which connection has read what, and is told when it changes.

As the servers do it, exactly:

- a key's readers are one entry; a change drops the whole entry at once, also for a reader that is not told
  because
  of `NOLOOP`;
- a read later in the same script is remembered again, and so is one that was refused;
- a key that has come to its end is changed by the command that finds it so, or else by nobody;
- the connection whose command has made the change is told after its reply, all others at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .replies import Push

if TYPE_CHECKING:
    from .session import Client


class Tracking:
    """The table of readers."""

    def __init__(self) -> None:
        self._readers: dict[bytes, dict[int, Client]] = {}
        self.mute = False  # of locks, nothing is told; of bells it is
        self._later: list[bytes] = []  # the messages for the executing connection after its reply

    def remember(self, client: Client, keys: Iterable[bytes]) -> None:
        """The connection has read these."""
        if client.optin and not client.caching:
            return
        for key in keys:
            self._readers.setdefault(key, {})[client.id] = client

    def changed(self, key: bytes, by: Client | None) -> None:
        """The key was changed, by the command of this connection or by nobody's."""
        readers = self._readers.pop(key, None)
        if readers is None:
            return
        for client in readers.values():
            if self.mute and b".bell" not in key:
                continue
            if client.closed or not client.tracking or (client is by and client.noloop):
                continue
            if client is by:
                self._later.append(key)
            elif client.protocol == 3:
                client.say(Push([b"invalidate", [key]]))

    def executed(self, client: Client) -> None:
        """The reply of this connection's command is written."""
        if self._later:
            if client.protocol == 3:
                for key in self._later:
                    client.say(Push([b"invalidate", [key]]))
            self._later.clear()

    def forget_all(self, clients: Iterable[Client]) -> None:
        """Everything was flushed."""
        self._readers.clear()
        for client in clients:
            if client.tracking and client.protocol == 3:
                client.say(Push([b"invalidate", None]))

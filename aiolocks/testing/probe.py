"""Asking whether a server is there, without ever waiting for the answer."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PORTS: Final = (10_240, 32_000)
_TRIES: Final = 100


def until_ready(path: Path) -> Iterator[None]:
    """Asks the server at a unix socket until it answers, with a value each time that it has not yet.

    In its private directory no other server can answer, as one might at a port. And a server binds its ports
    before its socket: a server that answers at the socket listens at its ports too.
    """
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)
            try:
                probe.connect(str(path))
                probe.sendall(b"PING\r\n")
                while (reply := receive(probe)) is None:
                    yield
            except OSError:  # no socket yet, or the one that a killed server has left behind
                reply = b""
        # Any other answer than this, NOAUTH say, comes from a server that is ready.
        if reply and not reply.startswith(b"-LOADING"):
            return
        yield


def receive(probe: socket.socket) -> bytes | None:
    """The bytes that have come in: nothing at the end of the connection, None while there is nothing yet."""
    try:
        return probe.recv(256)
    except BlockingIOError:
        return None


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago.

    Below the ports that the system gives to outgoing connections: such a connection could take it while a
    server that was killed is not there.
    """
    for _ in range(_TRIES):
        port = random.randint(*_PORTS)  # noqa: S311 - no secret
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port on 127.0.0.1: name one with port=")

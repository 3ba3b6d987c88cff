"""Asking whether a server is there, without ever waiting for the answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path


def until_ready(path: Path) -> Iterator[None]:
    """Asks the server at a unix socket until it answers, with a value each time that it has not yet.

    In its private directory no other server can answer, as one might at a port. And a server binds its ports
    before its socket: one that answers here listens there too.
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
    """What has come in: nothing at the end of the connection, None while there is nothing yet."""
    try:
        return probe.recv(256)
    except BlockingIOError:
        return None


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

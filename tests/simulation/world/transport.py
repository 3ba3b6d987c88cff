"""The process's end of a connection, as `asyncio` has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .loop import SimulatedLoop

if TYPE_CHECKING:
    from .network import Wire


class SocketTransport(asyncio.Transport):
    """The process's end of a wire, as asyncio's own transport of a socket behaves."""

    def __init__(self, wire: Wire, loop: SimulatedLoop, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": wire.address, "sockname": (wire.process, wire.number)})
        self._wire = wire
        self._loop = loop
        self._protocol = protocol
        self._received: list[bytes] = []
        self._end: list[OSError | None] = []  # the end after the bytes, with an error or without
        self._closing = False
        self._paused = False

    # -- the network

    def arrived(self, data: bytes) -> None:
        if not self._closing:
            self._received.append(data)
            if not self._paused:
                self._loop.sockets.add(self)

    def ended(self, error: OSError | None) -> None:
        if not self._closing:
            self._end.append(error)
            self._loop.sockets.add(self)

    def read_ready(self) -> None:
        """The loop: there is something to read."""
        if self._closing:
            return
        if self._received and not (self._end and self._end[0] is not None):
            data = b"".join(self._received)
            self._received.clear()
            if self._end:
                self._loop.sockets.add(self)
            self._protocol.data_received(data)
        elif self._end:
            error = self._end[0]
            if error is None and self._protocol.eof_received():
                return
            self._close(error)

    # -- the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)  # type: ignore[attr-defined]

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True
        self._loop.sockets.discard(self)

    def resume_reading(self) -> None:
        self._paused = False
        if self._received or self._end:
            self._loop.sockets.add(self)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._wire.send(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back."""

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._close(None)

    def abort(self) -> None:
        self._close(None)

    def _close(self, error: OSError | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.sockets.discard(self)
        self._received.clear()
        if not self._end:
            self._wire.finish()
        self._loop.call_soon(self._protocol_lost, error)

    def _protocol_lost(self, error: OSError | None) -> None:
        self._protocol.connection_lost(error)

    def __repr__(self) -> str:
        return f"<SocketTransport {self._wire.name}>"

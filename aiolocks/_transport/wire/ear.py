"""A second connection, for what cannot be heard on the first: with RESP2, keyspace notifications."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, final

from ..client.driver import RawConnection, pack
from ..client.errors import UnreadableReplyError
from .notifiers import DeafError


@final
class Ear(asyncio.Protocol):
    """Hears channels. With RESP2 a connection that has subscribed takes no other requests.

    What is asked here and what is asked on the first connection has no order. A bell may be rung before its
    channel is heard: then its waiter finds that a moment later.

    Args:
        raw: Taken over, and closed with this.
        silence: Seconds without a reply after which the connection counts as dead.
        pushed: Told of each message.
        ended: Told of the end, unless `close` is why.
    """

    def __init__(
        self,
        raw: RawConnection,
        loop: asyncio.AbstractEventLoop,
        *,
        silence: float,
        pushed: Callable[[list[Any]], None],
        ended: Callable[[], None],
    ) -> None:
        self._raw = raw
        self._loop = loop
        self._silence = silence
        self._pushed = pushed
        self._ended = ended
        self._closed = False
        self._awaited: deque[tuple[float, asyncio.Future[Any]]] = deque()  # with the times of asking
        self._timer: asyncio.TimerHandle | None = None
        raw.transport.set_protocol(self)
        if raw.leftover:
            self.data_received(raw.leftover)

    def ask(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """The reply to a request; `DeafError` if there will be none."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._raw.transport.is_closing():
            _fail(answer, DeafError("the connection of the notifications was closed"))
            return answer
        self._awaited.append((self._loop.time(), answer))
        self._raw.transport.write(pack(words))
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence, self._check)
        return answer

    def _check(self) -> None:
        self._timer = None
        if not self._awaited:
            return
        due = self._awaited[0][0] + self._silence
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._check)
        else:
            self._raw.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._raw.replies.read(data):
                if isinstance(reply, list) and reply[:1] == [b"message"]:
                    self._pushed(reply)
                elif self._awaited:
                    _, answer = self._awaited.popleft()
                    if isinstance(reply, Exception):
                        _fail(answer, reply)
                    elif not answer.done():
                        answer.set_result(reply)
        except UnreadableReplyError:
            self._raw.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw.lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        while self._awaited:
            _fail(self._awaited.popleft()[1], DeafError("the connection of the notifications was closed"))
        if not self._closed:
            self._ended()

    def close(self) -> None:
        """Idempotent, and does not wait."""
        self._closed = True
        self._raw.transport.close()

    def abort(self) -> None:
        self._raw.abort()

    async def wait_closed(self) -> None:
        await self._raw.wait_closed()


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # nobody may wait for it

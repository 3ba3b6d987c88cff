"""The channel that an ASGI application is given in place of its client, so that its answer can be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, final

from .._handling import Handling
from . import _problems as problems
from ._policy import Policy
from ._problems import Failed, Problem
from ._record import Record, Unkept

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOO_LONG: Final = "the answer is longer than max_answer"


@final
class HungUpError(Exception):
    """The client has hung up before its request was there."""


@final
class Body:
    """The body of a request, which is read when the first one asks for it.

    Never more than `most` bytes of it, and one message, are in memory.

    Attributes:
        error: It was asked for, and cannot be had.
    """

    __slots__ = ("_headers", "_most", "_read", "_receive", "error")

    def __init__(self, headers: Mapping[bytes, bytes], receive: Receive, most: int) -> None:
        self._headers = headers
        self._receive = receive
        self._most = most
        self._read: bytes | None = None
        self.error: Problem | HungUpError | None = None

    async def read(self) -> bytes:
        """All of it.

        Raises:
            Problem: The body is longer.
            HungUpError: The client has not sent all of it.
        """
        if self._read is None:
            try:
                self._read = await _read(self._headers, self._receive, self._most)
            except (Problem, HungUpError) as error:
                self.error = error
                raise
        return self._read

    def channel(self) -> Receive:
        """A channel for one application: all of it comes at once, and then the end of the connection."""
        given = False

        async def receive() -> Message:
            nonlocal given
            if given and self.error is None:
                return await self._receive()  # nothing but the hang-up is left; who waits for it, waits
            given = True
            return {"type": "http.request", "body": await self.read(), "more_body": False}

        return receive


async def _read(headers: Mapping[bytes, bytes], receive: Receive, most: int) -> bytes:
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise problems.too_long(most)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUpError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise problems.too_long(most)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def answer_with(record: Record, send: Send) -> None:
    """Sends an answer."""
    headers = [[name, value] for name, value in record.sent]
    await send({"type": "http.response.start", "status": record.status, "headers": headers})
    await send({"type": "http.response.body", "body": record.body})


@final
class Exchange:
    """One request and its answer, between an application and a client that may hang up.

    The application runs in a task of its own. Its answer is collected, and is not sent to the client: that is
    for the caller, which keeps it first. An answer that is longer than `max_answer` cannot be kept. Then the
    client gets it as the application sends it, or, with a store, the application is cancelled.

    Args:
        marked: Each handler of the application says that it begins.
        task: Begins a task.

    The client's `receive` is asked only while the application sends to the client.
    """

    __slots__ = (
        "_answer",
        "_app",
        "_body",
        "_client_receive",
        "_client_send",
        "_handling",
        "_marked",
        "_over",
        "_parts",
        "_passing",
        "_policy",
        "_read",
        "_run",
        "_scope",
        "_size",
        "_start",
        "_task",
    )

    def __init__(
        self,
        app: App,
        scope: Scope,
        body: bytes,
        receive: Receive,
        send: Send,
        *,
        policy: Policy,
        marked: bool,
        task: Callable[[Any], asyncio.Task[Any]],
    ) -> None:
        # Ways around `send`, as for the file whose name is sent, would pass the record by.
        extensions: dict[str, Any] = scope.get("extensions") or {}
        kept = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
        # The record is for all that send the request again, and some of them read no compressed answer.
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        self._scope = {**scope, "extensions": kept, "headers": headers}
        self._app = app
        self._body = body
        self._client_receive = receive
        self._client_send = send
        self._policy = policy
        self._marked = marked
        self._handling = Handling()
        self._task = task
        self._run: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Record | Unkept] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._read = False
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._passing = False

    @property
    def ran(self) -> bool:
        """Whether the application has run: otherwise the answer comes from another request."""
        return self._run is not None

    async def answer(self) -> Record | Unkept:
        """Runs the application until its answer is whole, or is known not to be kept.

        Raises:
            Failed: The answer is not the result of the request.
            Exception: The application raised it, or ended without an answer.
        """
        with self._handling.as_current():
            self._run = self._task(self._app(self._scope, self._receive, self._send))
        await asyncio.wait((self._run, self._answer), return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            self._run.result()  # raises what the application has raised
            raise RuntimeError("the application has ended without an answer")
        answer = self._answer.result()
        if not self._is_result():
            if isinstance(answer, Unkept) and self._policy.store is not None:
                await asyncio.wait((self._run,))  # its transaction is rolled back when this raises
            raise Failed(answer=answer)
        if isinstance(answer, Unkept) and self._policy.store is not None:
            self._run.cancel()
            await asyncio.wait((self._run,))
        return answer

    def _is_result(self) -> bool:
        start = self._start
        assert start is not None
        headers = ((bytes(name), bytes(value)) for name, value in start.get("headers", ()))
        return self._policy.is_result(start["status"], headers, self._handling, marked=self._marked)

    async def ended(self) -> None:
        """Returns when the application has done its work after the answer, as background tasks.

        Raises:
            Exception: The application raised it.
        """
        if self._run is not None:
            await asyncio.wait((self._run,))
            if not self._run.cancelled():
                self._run.result()

    async def _receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if not self._passing:
            # The client may have hung up: that does not end the work.
            await self._over.wait()
        return await self._client_receive() if self._passing else {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._passing:
            await self._client_send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None and not self._answer.done():
            await self._collect(message)

    async def _collect(self, message: Message) -> None:
        assert self._start is not None
        part: bytes = message.get("body", b"")
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._policy.max_answer:
            self._answer.set_result(Unkept(_TOO_LONG))
            if self._policy.store is not None and self._is_result():
                await asyncio.Event().wait()  # for the cancellation
            self._passing = True
            self._over.set()
            await self._client_send(self._start)
            collected, self._parts = b"".join(self._parts), []
            await self._client_send({**message, "body": collected})
        elif not message.get("more_body", False):
            headers = tuple((bytes(name), bytes(value)) for name, value in self._start.get("headers", ()))
            self._answer.set_result(Record(self._start["status"], headers, b"".join(self._parts)))
            self._over.set()

"""What can be said to a server: RESP3, or RESP2 where it has no other; no question that ends connections.

With RESP3 a server sends news between its replies, by which waiters learn that it is their turn. So a session
asks for RESP3 first, whatever the client speaks by itself. A server says no in many ways: an error in any
words, a connection that is closed, silence.

A proxy may close each connection on a question that it does not know. So a session stops asking a question
that it can do without if connections end because of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final

from .._logs import get_logger
from .._visible import in_line
from ..errors import ConfigurationError
from .driver import CONNECT_TIMEOUT, HELLO_TIMEOUT, AnsweredError, NoResp3Error, RawConnection
from .faults import ClosedBehindError
from .request import Words

log = get_logger("aiolocks.transport")

Protocol: TypeAlias = Literal[2, 3] | None
"""As a user chooses it; None: the best that the server has."""
OpenRaw: TypeAlias = Callable[[int, float, bool], Coroutine[Any, Any, RawConnection]]
"""Connects with a version of the protocol, and so many seconds for the answer to `HELLO 3`; the last is
whether the library may name itself."""

PROTOCOLS: Final = (2, 3, None)
_AT_LEAST: Final = 0.25
_TRIPS: Final = 4

_NAMING: Final = "CLIENT SETINFO"
_OPTIONAL: Final[Mapping[str, Words]] = {
    "CLIENT INFO": (),
    "INFO": (),
    "CLIENT TRACKING": ("OFF",),
    "CLIENT CACHING": ("YES",),
    "CLIENT KILL": ("ID", 2**63 - 1, "ADDR", "0.0.0.0:0"),
    "CONFIG GET": ("notify-keyspace-events",),
    "SUBSCRIBE": ("__keyspace@0__:aiolocks",),
    "SSUBSCRIBE": ("__keyspace@0__:aiolocks",),
}
"""The questions that a session can do without, and how each is tried so that nothing changes."""


@final
class Dialect:
    """The version for all connections of a session, learned by the first of them.

    A connection that was closed, or silence, may be an outage instead of an answer. So RESP2 is remembered
    only if three things follow each other: a connection with RESP2 answers; `HELLO 3` to the same server
    fails once more, within several times the time that RESP2 needed; the connection with RESP2 still answers.
    A server that was away for a moment, or that hung for more than a second, answers the second `HELLO 3`. A
    server that goes away a second time ends the connection with RESP2 too. Behind Sentinel the second
    `HELLO 3` may go to a new master, of which RESP2 says nothing. An error in words is believed as soon as
    RESP2 answers.

    Args:
        wanted: 2 never asks for RESP3; 3 takes nothing else.

    Attributes:
        wanted: The argument.
        why: Why RESP2 is spoken; empty while it is not.
        unasked: The questions on which the server closes the connection: not asked any more.
        asks: `open_anew` may find one of them: the last time it has, or a connection has served since.
    """

    __slots__ = ("asks", "unasked", "wanted", "why")

    def __init__(self, wanted: Protocol = None) -> None:
        self.wanted = wanted
        self.why = "as protocol=2 says" if wanted == 2 else ""
        self.unasked: list[str] = []
        self.asks = True

    async def open(self, open_raw: OpenRaw, *, label: str) -> RawConnection:
        """Connects; `label` is how people call the server.

        Raises:
            ConfigurationError: The server has no RESP3, and nothing else is wanted.
            ConnectionError: The server has gone away meanwhile, so that its silence says nothing.
        """
        if self.why:
            return await self.connect(open_raw, 2, HELLO_TIMEOUT, label=label)
        try:
            return await self.connect(open_raw, 3, HELLO_TIMEOUT, label=label)
        except NoResp3Error as error:
            no = error
        loop = asyncio.get_running_loop()
        began = loop.time()
        raw = await self.connect(open_raw, 2, HELLO_TIMEOUT, label=label)
        try:
            if not no.said:
                patience = max(_AT_LEAST, _TRIPS * (loop.time() - began))
                try:
                    better = await self.connect(open_raw, 3, min(HELLO_TIMEOUT, patience), label=label)
                except NoResp3Error as error:
                    again = error
                else:
                    raw.abort()
                    return better
                if again.server != raw.server or not await raw.answers(min(CONNECT_TIMEOUT, patience)):
                    raise ConnectionError(
                        f"{no}, and nothing tells that it speaks RESP2 (protocol=2 asks for nothing else)"
                    )
            if self.wanted == 3:
                raise ConfigurationError(
                    f"protocol=3 is not available: {label} does not speak RESP3 ({no}); allow HELLO 3 there "
                    "and in proxies between, or leave out protocol=3"
                )
        except BaseException:
            raw.abort()
            raise
        if not self.why:  # another connection may have learned it meanwhile
            said = in_line(no)
            self.why = f"for {said}"
            log.info("%s does not speak RESP3 (%s): this session speaks RESP2 from now on", label, said)
        return raw

    async def open_anew(self, open_raw: OpenRaw, *, label: str) -> RawConnection:
        """Connects, and finds out which questions end a connection, each twice on a connection of its own.

        Raises:
            ConfigurationError, ConnectionError: As `open`.
        """
        raw, known = await self.open(open_raw, label=label), len(self.unasked)
        try:
            for question, rest in _OPTIONAL.items():
                words = (*question.split(), *rest)
                if (
                    question not in self.unasked
                    and await self._ends(open_raw, words)
                    and await self._ends(open_raw, words)
                ):
                    await self._leave_out(question, raw, label)
        except BaseException:
            raw.abort()
            raise
        self.asks = len(self.unasked) > known
        return raw

    def served(self) -> None:
        """A connection serves."""
        self.asks = True

    async def _ends(self, open_raw: OpenRaw, words: Words) -> bool:
        """Whether a connection of its own, which has served so far, ends right behind this question."""
        try:
            probe = await open_raw(2 if self.why else 3, HELLO_TIMEOUT, _NAMING not in self.unasked)
        except NoResp3Error as error:  # it had agreed a moment ago
            raise ConnectionError(str(error)) from error
        try:
            return await probe.closes_on(words, HELLO_TIMEOUT)
        finally:
            probe.abort()

    async def _leave_out(self, question: str, raw: RawConnection, label: str) -> None:
        """Two connections have ended behind it; `raw`, where it was not asked, must still answer.

        Raises:
            ConnectionError: It does not: the server has gone away.
        """
        if not await raw.answers(CONNECT_TIMEOUT):
            raise ConnectionError(f"{label} has closed the connection")
        if question not in self.unasked:  # another connection may have learned it meanwhile
            self.unasked.append(question)
            log.info("%s closes connections on %s: this session does without", label, question)

    def refusal(self, words: Sequence[bytes | str | int]) -> AnsweredError | None:
        """The answer to what is not asked any more, as an error that does not pass."""
        for question in self.unasked:
            known = tuple(question.split())
            if words[: len(known)] == known:
                return AnsweredError(f"the server closes the connection on {question}")
        return None

    async def connect(
        self, open_raw: OpenRaw, protocol: int, patience: float, *, label: str
    ) -> RawConnection:
        """Connects, without what the library says of itself where that ends the connection."""
        named = _NAMING not in self.unasked
        try:
            return await open_raw(protocol, patience, named)
        except ClosedBehindError:
            if not named:
                raise
        raw = await open_raw(protocol, patience, False)  # noqa: FBT003
        try:
            try:
                better = await open_raw(protocol, patience, True)  # noqa: FBT003
            except ClosedBehindError:
                await self._leave_out(_NAMING, raw, label)
                return raw
        except BaseException:
            raw.abort()
            raise
        raw.abort()
        return better

    def require_any(self, why: str) -> None:
        """This session cannot ask for RESP3, now or later.

        Raises:
            ConfigurationError: It was asked for.
        """
        if self.wanted == 3:
            raise ConfigurationError(f"protocol=3 is not available: {why}; leave out protocol=3")

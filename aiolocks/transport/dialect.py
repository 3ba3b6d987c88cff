"""Which version of the protocol a session speaks: RESP3, or RESP2 where the server has no other.

With RESP3 a server tells of itself, between its replies: by that waiters learn that it is their turn. So
RESP3 is asked for first, whatever the client speaks by itself. There are many ways of saying no: an error in
any words, a connection that is closed, silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias, final

from .._visible import in_line
from ..errors import ConfigurationError
from .driver import CONNECT_TIMEOUT, HELLO_TIMEOUT, NoResp3Error, RawConnection

log = logging.getLogger("aiolocks.transport")

Protocol: TypeAlias = Literal[2, 3] | None
"""As a user chooses it; None: the best that the server has."""
OpenRaw: TypeAlias = Callable[[int, float], Awaitable[RawConnection]]
"""Connects with a version of the protocol, and so many seconds for the answer to `HELLO 3`."""

PROTOCOLS: Final = (2, 3, None)
_AT_LEAST: Final = 0.25
_TRIPS: Final = 4


@final
class Dialect:
    """The version for all connections of a session, learned by the first of them.

    A connection that was closed, or silence, may be an outage instead of an answer. So RESP2 is remembered
    only where a connection with RESP2 answers, right behind it `HELLO 3` to the same server fails once more,
    in the time that RESP2 needed several times over, and the connection with RESP2 still answers then. A
    server that was away for a moment, or that hung for more than a second, answers the second `HELLO 3`. One
    that goes away a second time ends the connection with RESP2 too. Behind Sentinel the second `HELLO 3` may
    go to a new master, of which RESP2 says nothing. An error in words is believed as soon as RESP2 answers.

    Args:
        wanted: 2 never asks for RESP3; 3 takes nothing else.

    Attributes:
        wanted: The argument.
        why: Why RESP2 is spoken; empty while it is not.
    """

    __slots__ = ("wanted", "why")

    def __init__(self, wanted: Protocol = None) -> None:
        self.wanted = wanted
        self.why = "as protocol=2 says" if wanted == 2 else ""

    async def open(self, open_raw: OpenRaw, *, label: str) -> RawConnection:
        """Connects; `label` is how people call the server.

        Raises:
            ConfigurationError: The server has no RESP3, and nothing else is wanted.
            ConnectionError: The server has gone away meanwhile, so that its silence says nothing.
        """
        if self.why:
            return await open_raw(2, HELLO_TIMEOUT)
        try:
            return await open_raw(3, HELLO_TIMEOUT)
        except NoResp3Error as error:
            no = error
        loop = asyncio.get_running_loop()
        began = loop.time()
        raw = await open_raw(2, HELLO_TIMEOUT)
        try:
            if not no.said:
                patience = max(_AT_LEAST, _TRIPS * (loop.time() - began))
                try:
                    better = await open_raw(3, min(HELLO_TIMEOUT, patience))
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

    def require_any(self, why: str) -> None:
        """RESP3 cannot be asked for here, now or later.

        Raises:
            ConfigurationError: It was asked for.
        """
        if self.wanted == 3:
            raise ConfigurationError(f"protocol=3 is not available: {why}; leave out protocol=3")

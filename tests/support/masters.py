"""Three masters that are one server in truth, so that every test of the conformance can be run on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiolocks import Lease, Redlock
from aiolocks.lock.acquirable import Acquirable
from aiolocks.lock.options import Options
from aiolocks.lock.session import open_transport
from aiolocks.transport import OnRung, Request, Transport
from aiolocks.transport.quorum.quorum import Quorum

MASTERS = 3


class OneServerAsThree(Acquirable[Lease]):
    """A `Redlock` whose masters are one server, on which each has keys of its own.

    Open its client's session by `open_three`.
    """

    _label = "Redlock"
    _lease_type = Lease
    _resource = Redlock._resource

    def __init__(self, client: Any, name: str, **common: Any) -> None:
        defaults = {"ttl": 30.0, "blocking_timeout": None, "auto_renew": True, "max_hold": None}
        options = Options.checked(**{**defaults, "on_lost": "cancel", "metadata": None, **common})
        self._node_timeout = options.first_ttl / 2  # the masters of one server answer together
        super().__init__(client, name, options)


def open_three(
    client: Any, loop: asyncio.AbstractEventLoop, *, on_rung: OnRung, **settings: Any
) -> Transport:
    """In the place of `open_transport`: three connections to one server."""
    masters = [
        (
            f"master {number}",
            Apart(number, on_rung, lambda told: open_transport(client, loop, on_rung=told, **settings)),
        )
        for number in range(MASTERS)
    ]
    return Quorum(masters, loop, identify=False)


class Apart:
    """A transport whose keys are its own: they end with its number."""

    def __init__(self, number: int, on_rung: OnRung, open_: Callable[[OnRung], Transport]) -> None:
        self._mark = f"#{number}".encode()

        def told(way: str, bells: Iterable[bytes] | None) -> None:
            on_rung(way, None if bells is None else [self._bare(bell) for bell in bells])

        self._transport = open_(told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        parse = call.parse
        call.head = call.packed = None  # of other keys
        call.keys = tuple(map(self._own, call.keys))
        call.args = tuple(self._own(arg) if isinstance(arg, bytes) else arg for arg in call.args)
        call.parse = lambda raw: parse(list(map(self._bare, raw)) if isinstance(raw, list) else raw)
        call.bells = tuple(map(self._own, call.bells))
        self._transport.send(call, at_once=at_once, corked=corked)

    def arm(self, bell: bytes) -> Any:
        return self._transport.arm(self._own(bell))

    def ignore_bell(self, bell: bytes) -> None:
        self._transport.ignore_bell(self._own(bell))

    def _own(self, key: bytes) -> bytes:
        return key + self._mark

    def _bare(self, item: Any) -> Any:
        return item.removesuffix(self._mark) if isinstance(item, bytes) else item

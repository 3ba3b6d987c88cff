"""Releases that a master has confirmed, for when a replica takes its place that never got them.

A master answers before its replicas have what it has done. So a replica that is promoted may still have a
lease that was released a moment ago, and its name would stay taken for the whole ttl, although its holder
lives and knows better.

A slot that moves takes its keys along, with all that its former master has done to them. So a release comes
again only where its master serves nothing any more: it has failed, or has become a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final, NamedTuple, final
from weakref import ref

from .._tasks import empty_context
from .keys import slot_of
from .request import Request, take_back

_FOR: Final = 10.0
"""Seconds after a release in which another master may lack it. For so long, a planned failover of Sentinel
leaves the old one a master."""
_MOST: Final = 4096
"""The most releases that are remembered; the oldest are forgotten first."""
_AT_ONCE: Final = 64
"""The most that are sent again at once: what the session asks meanwhile goes between."""
_PAUSE: Final = 0.01
"""Seconds before the next ones: all that are remembered are through within 0.7 s."""
_LARGEST: Final = 4096
"""Bytes of an argument up to which a release is remembered: that of a `SingleFlight` brings its value."""


class _Release(NamedTuple):
    at: float  # loop time of the answer
    master: Hashable  # that has confirmed it
    slot: int
    command: Request[Any]


@final
class Releases:
    """The newest releases of a session: each is sent again, once, when its name gets another master.

    Invariants:
    - what is sent again is an undo with the token of a lease that has ended. It frees nothing of another
      token, and no caller is told of its answer: nothing counts twice;
    - nothing was asked in the lane of a release since: a token that is used again is not let go of.

    Args:
        send: Of the transport.
        master: The master that has the keys of a slot now, as far as is known; None if none is known.
        masters: All that serve any slot now, as far as is known.
        on_rung: Told of bells that were rung.
    """

    __slots__ = ("_due", "_known", "_loop", "_master", "_masters", "_on_rung", "_send")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[..., None],
        master: Callable[[int], Hashable],
        masters: Callable[[], Collection[Hashable]],
        on_rung: Callable[[Sequence[bytes]], object],
    ) -> None:
        self._loop = loop
        self._send = send
        self._master = master
        self._masters = masters
        self._on_rung = on_rung
        self._due: list[_Release] = []  # are to be sent again; the newest last, and it goes first
        self._known: dict[Hashable, _Release] = {}  # the oldest first

    def follow(self, call: Request[Any], master: Hashable = None) -> None:
        """A request is on its way: if it is a release, its answer is remembered.

        Args:
            call: Its call.
            master: The master that it goes to; None: there is one master, and former ones answer no more.
        """
        if call.script is None:
            return
        if self._known:
            self._known.pop(_place(call), None)
        if not call.script.frees:
            return
        noted = call.on_reply
        if isinstance(noted, _Noted):
            noted.master = master  # it was turned away before
        elif noted != self._told:
            call.on_reply = _Noted(self, call, master)

    def note(self, call: Request[Any], master: Hashable) -> None:
        """That master has confirmed it; None: the present one."""
        # Without its callbacks: leases must be freed without the garbage collector.
        now, command = self._loop.time(), call.again()
        slot = slot_of(command.keys[0])
        present = self._master(slot)
        release = _Release(now, present if master is None else master, slot, command)
        if release.master != present and release.master not in self._masters():
            self._again(release)  # it was frozen, and answers after another one has taken its place
            return
        self._known[_place(command)] = release
        while len(self._known) > _MOST or next(iter(self._known.values())).at < now - _FOR:
            del self._known[next(iter(self._known))]

    def look(self) -> None:
        """Other masters may have taken the places of some masters."""
        if not self._known:
            return
        now, masters = self._loop.time(), frozenset(self._masters())
        under_way = bool(self._due)
        for place, release in tuple(self._known.items()):
            present = self._master(release.slot)
            if present in (release.master, None):
                continue
            if release.master in masters:  # it has given the slot away, and serves other slots
                self._known[place] = release._replace(master=present)
                continue
            del self._known[place]
            if release.at >= now - _FOR:
                self._due.append(release)
        if not under_way:
            self._some_again()

    def _some_again(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._due))):
            self._again(self._due.pop())
        if self._due:
            self._loop.call_later(_PAUSE, self._some_again, context=empty_context())

    def _again(self, release: _Release) -> None:
        command, send, loop = release.command, self._send, self._loop
        take_back(command, send=send, loop=loop, seconds=_FOR, told=self._told, at_once=False)

    def _told(self, released: Any) -> None:
        if rung := getattr(released, "rung", ()):
            self._on_rung(rung)


@final
class _Noted:
    """Stands for `on_reply` of a release."""

    __slots__ = ("_call", "_on_reply", "_releases", "master")

    def __init__(self, releases: Releases, call: Request[Any], master: Hashable) -> None:
        self._call = ref(call)  # leases must be freed without the garbage collector
        self._on_reply = call.on_reply
        self._releases = releases
        self.master = master

    def __call__(self, released: Any) -> None:
        call = self._call()
        assert call is not None, "it is being answered"
        # What it did not free at this master, no other master has, unless an earlier send of the same request
        # freed it.
        freed = getattr(released, "freed", True) or call.unconfirmed
        if freed and all(isinstance(arg, int) or len(arg) <= _LARGEST for arg in call.args):
            self._releases.note(call, self.master)
        self._on_reply(released)


def _place(command: Request[Any]) -> Hashable:
    """A possession in one slot; the releases of several have no lane."""
    return (command.lane, command.keys[0]) if command.lane else command

"""Keeping a lock for as long as its holder lives."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Final, final

from ...lock.clock import dependable
from ...transport import Call, Fault
from .wire import Wire

log = logging.getLogger("aiolocks.session")

_SHARE: Final = 3
"""The number of renewals within its timeout."""


@final
class Renewal:
    """Renews the ttl of one token each third of its timeout, for as long as somebody has this object.

    Invariant: once stopped, nothing more is sent, and what was sent stands before the release.
    """

    __slots__ = ("__weakref__", "_call", "_deadline", "_timeout", "_timer", "_token", "_wire")

    def __init__(self, wire: Wire, token: bytes, timeout: float) -> None:
        self._wire = wire
        self._token = token
        self._timeout = timeout
        self._deadline = wire.engine.now() + dependable(timeout)
        self._call: Call[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in(timeout / _SHARE)

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self._timer is not None or self._call is not None

    def stop(self) -> None:
        """Nothing more is sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call is not None:
            self._wire.engine.forget(self._call)
            self._call = None

    def _in(self, seconds: float) -> None:
        # The timer keeps nobody alive: a program that has forgotten its lock does not hold it for ever.
        reference: weakref.ref[Renewal] = weakref.ref(self)
        self._timer = self._wire.engine.loop.call_later(seconds, _renew, reference)

    def renew(self) -> None:
        """It is time."""
        self._timer = None
        engine = self._wire.engine
        if not engine.usable:
            return
        command = self._wire.commands.reacquire(self._token, int(self._timeout * 1000), shorten=False)
        until = max(self._deadline, engine.now() + 0.001)
        self._call = Call(command, self._replied, self._failed, until=until)
        engine.send(self._call)

    def _replied(self, held: bool) -> None:  # noqa: FBT001 - a callback
        call, self._call = self._call, None
        assert call is not None
        if not held:
            log.warning("lock %r was lost while it was held: somebody else may have it", self._wire.key)
            return
        self._deadline = call.sent + dependable(self._timeout)
        self._in(self._timeout / _SHARE)

    def _failed(self, fault: Fault) -> None:
        self._call = None
        pause = self._wire.engine.settings.backoff.maximum
        if fault.transient and self._wire.engine.now() + pause < self._deadline:
            self._in(pause)
        else:
            log.warning("lock %r is renewed no more, and may be lost: %s", self._wire.key, fault.error)


def _renew(reference: weakref.ref[Renewal]) -> None:
    renewal = reference()
    if renewal is not None:
        renewal.renew()

"""Keeping a lock for as long as its holder lives."""

from __future__ import annotations

import asyncio
import weakref
from contextvars import Context, copy_context
from typing import Final, final

from ..._logs import get_logger
from ..._tasks import empty_context
from ...lock.clock import dependable
from ...transport import Fault, Request
from .telling import Telling
from .wire import Wire

log = get_logger("aiolocks.session")

_SHARE: Final = 3
"""The number of renewals within its timeout."""


@final
class Renewal:
    """Renews the ttl of one token each third of its timeout, while the program refers to this object.

    Invariant: once stopped, nothing more is sent, and what was sent stands before the release. The context of
    the acquire, in which the log tells of a loss, is kept no longer.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_context",
        "_deadline",
        "_telling",
        "_timeout",
        "_timer",
        "_token",
        "_wire",
    )

    def __init__(self, wire: Wire, token: bytes, timeout: float, telling: Telling | None) -> None:
        self._wire = wire
        self._context: Context | None = copy_context()
        self._telling = telling
        self._token = token
        self._timeout = timeout
        self._deadline = wire.engine.now() + dependable(timeout)
        self._call: Request[bool] | None = None
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
        self._context = None

    def _in(self, seconds: float) -> None:
        # The timer keeps no object alive: a program that has forgotten its lock does not hold it for ever.
        reference: weakref.ref[Renewal] = weakref.ref(self)
        self._timer = self._wire.engine.loop.call_later(seconds, _renew, reference, context=empty_context())

    def renew(self) -> None:
        """It is time."""
        self._timer = None
        engine = self._wire.engine
        if not engine.usable:
            return
        command = self._wire.steps.reacquire(self._token, int(self._timeout * 1000), shorten=False)
        until = max(self._deadline, engine.now() + 0.001)
        self._call = command.again().ask(self._replied, self._failed, until=until)
        engine.send(self._call)

    def _replied(self, held: bool) -> None:  # noqa: FBT001 - a callback
        call, self._call = self._call, None
        assert call is not None
        if not held:
            self._over("lock %r was lost while it was held: somebody else may have it", self._wire.key)
            return
        self._deadline = call.sent + dependable(self._timeout)
        self._in(self._timeout / _SHARE)

    def _failed(self, fault: Fault) -> None:
        self._call = None
        pause = self._wire.engine.settings.backoff.maximum
        if fault.transient and self._wire.engine.now() + pause < self._deadline:
            self._in(pause)
        else:
            self._over(
                "lock %r is renewed no more, and may be lost: %s", self._wire.key, fault.error, lost=False
            )

    def _over(self, text: str, *arguments: object, lost: bool = True) -> None:
        """Says why it has ended, in the context of the acquire."""
        context, self._context = self._context, None
        if context is not None:
            context.run(log.warning, text, *arguments)
            if lost and self._telling is not None:
                context.run(self._telling.ended, self._token, "its key was gone, or another's")


def _renew(reference: weakref.ref[Renewal]) -> None:
    renewal = reference()
    if renewal is not None:
        renewal.renew()

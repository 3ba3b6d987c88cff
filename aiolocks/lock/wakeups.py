"""The bells of a session, by which it hears that its waiters may ask, and shows that they live."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, final

from .._tasks import empty_context
from ..errors import SessionClosedError
from ..transport import BELL_TTL, Fault, Listener, Request, Transport, listening, one_request_each

if TYPE_CHECKING:
    from .queue import Gate

log = logging.getLogger("aiolocks.session")

_LISTENS_EVERY: Final = BELL_TTL * 0.3
"""Seconds: a bell outlives two requests that come late or get lost."""
_ANSWERED_WITHIN: Final = 0.5
"""Seconds after which a request has no answer: before the next one is due, so that each has its own."""


class _Ringing(Protocol):
    """The answer of a step that may have woken a waiter."""

    @property
    def rung(self) -> Sequence[bytes]: ...


@final
class Bells:
    """The bells of a session, and the one timer at which it listens for all of them.

    Invariants:
    - it knows exactly the gates whose place may stand in the queue;
    - a waiter that is silent, because it is told when to ask, has had an answer a moment ago: a request to
      listen that fails, or has no answer before the next one is due, makes its waiters ask.
    """

    __slots__ = ("_ears", "_gates", "_left", "_loop", "_timer", "_transport", "_warned")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._gates: dict[bytes, Gate] = {}
        self._ears: dict[bytes, list[Callable[[], object]]] = {}  # of keys that stand in no queue
        self._left: dict[bytes, None] = {}  # of places given up: heard until the next heartbeat
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def ring_over(self, transport: Transport) -> None:
        """Sets the transport that reports wakeups."""
        self._transport = transport

    def add(self, gate: Gate) -> None:
        for bell in gate.bells:
            self._gates[bell] = gate
            self._left.pop(bell, None)
        if self._timer is None:
            self._wind_up()

    def discard(self, gate: Gate) -> None:
        for bell in gate.bells:
            del self._gates[bell]
            self._left[bell] = None

    def listen(self, key: bytes, told: Callable[[], object]) -> None:
        """Tells of each change of a key that a command has named as its bell, until `unlisten`."""
        self._ears.setdefault(key, []).append(told)

    def unlisten(self, key: bytes, told: Callable[[], object]) -> None:
        ears = self._ears[key]
        ears.remove(told)
        if not ears:
            del self._ears[key]
            self._silence(key)

    def arm(self, key: bytes) -> asyncio.Future[Any] | None:
        """As `Transport.arm`."""
        return None if self._transport is None else self._transport.arm(key)

    def rung(self, way: str, bells: Iterable[bytes] | None) -> None:
        """These bells were rung; None: it is not known which, possibly any."""
        if bells is None:
            for gate in self._each():
                gate.lost(way)
        for bell in bells or ():
            if (owner := self._gates.get(bell)) is not None:
                owner.rung(way)
        if self._ears:
            for key in tuple(self._ears) if bells is None else bells:
                for told in tuple(self._ears.get(key, ())):
                    told()

    def end(self) -> None:
        """The session is closed: a task that sleeps until it hears of a key asks now, and is told so."""
        for ears in tuple(self._ears.values()):
            for told in tuple(ears):
                told()

    def wake_own(self, answer: _Ringing) -> None:
        """A step has woken waiters, perhaps of this very session, to which the server does not tell it."""
        if answer.rung:
            self.rung("local", answer.rung)

    def _silence(self, key: bytes) -> None:
        """No gate wants to hear of that key any more."""
        if self._transport is not None:
            self._transport.ignore_bell(key)

    def _wind_up(self) -> None:
        self._timer = self._loop.call_later(_LISTENS_EVERY, self._listen, context=empty_context())

    def _listen(self) -> None:
        """Shows the server that all waiters still wait, in one request for each slot."""
        for bell in self._left:
            self._silence(bell)
        self._left.clear()
        self._timer = None
        if not self._gates or self._transport is None:
            return
        self._wind_up()
        listeners: dict[Listener, Gate] = {}
        for gate in self._each():
            listener = gate.listener()
            if isinstance(listener, Listener):
                listeners[listener] = gate
            elif listener is not None:
                self.listen_for(gate, listener)
        until = self._loop.time() + _ANSWERED_WITHIN
        for together in one_request_each(tuple(listeners), by_slot=self._transport.by_slot):
            self._ask({listener: listeners[listener] for listener in together}, until)

    def listen_for(self, gate: Gate, listener: Listener | Request[int]) -> None:
        """In a request of its own: at once, for its bell hangs since a moment ago."""
        assert self._transport is not None
        until = self._loop.time() + _ANSWERED_WITHIN
        if isinstance(listener, Listener):
            armed = self.arm(listener.bell)
            if armed is None:
                self._ask({listener: gate}, until, first=True)
            else:
                armed.add_done_callback(lambda _: self._ask_armed(listener, gate), context=empty_context())
        else:
            failed = functools.partial(self._unheard, (gate,))
            self._transport.send(listener.again().ask(gate.listened, failed, until=until))

    def _ask_armed(self, listener: Listener, gate: Gate) -> None:
        """Its bell is heard on the second connection: only now, no ring comes between."""
        if self._gates.get(listener.bell) is gate:
            self._ask({listener: gate}, self._loop.time() + _ANSWERED_WITHIN, first=True)

    def _ask(self, listeners: Mapping[Listener, Gate], until: float, *, first: bool = False) -> None:
        gates = tuple(listeners.values())

        def told(answers: Sequence[int]) -> None:
            for gate, answer in zip(gates, answers, strict=True):
                gate.listened(answer)

        def failed(fault: Fault) -> None:
            if fault.transient or len(listeners) == 1:
                self._unheard(gates, fault)
                return
            for listener, gate in listeners.items():  # one key that is denied, say, refuses the whole request
                self._ask({listener: gate}, until)

        assert self._transport is not None
        command = listening(tuple(listeners), first=first)
        self._transport.send(command.again().ask(told, failed, until=until))

    def _unheard(self, gates: Iterable[Gate], fault: Fault) -> None:
        if not fault.transient and not self._warned and not isinstance(fault.error, SessionClosedError):
            self._warned = True
            log.warning("waiters cannot stand in the queue, and poll: %s", fault.error)
        for gate in gates:
            gate.unheard()

    def _each(self) -> tuple[Gate, ...]:
        return tuple(dict.fromkeys(self._gates.values()))


@final
class KeyListener:
    """Hears of changes of one key, for as long as it is entered.

    Invariant: a change after `before_asking` ends the next sleep, if the server tells of changes since a
    question that names the key as its bell, sent after `before_asking` has returned.
    """

    __slots__ = ("_bells", "_changed", "_key")

    def __init__(self, bells: Bells, key: bytes) -> None:
        self._bells = bells
        self._changed = asyncio.Event()
        self._key = key

    def __enter__(self) -> Self:
        self._bells.listen(self._key, self._changed.set)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bells.unlisten(self._key, self._changed.set)

    async def before_asking(self) -> None:
        """Forgets the changes that were heard until now.

        Returns when the key is heard on the second connection, where there is one, or that is silent.
        """
        self._changed.clear()
        armed = self._bells.arm(self._key)
        if armed is not None:
            await asyncio.wait((armed,), timeout=_ANSWERED_WITHIN)

    def wake(self) -> None:
        """Ends the sleep under way, or else the next one."""
        self._changed.set()

    async def sleep(self, seconds: float) -> None:
        """Sleeps so long, or until it hears something."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

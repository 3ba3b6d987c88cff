"""The bells of a session, by which it hears that its waiters may ask, and shows that they live.

A session shows at intervals that its waiters live: each sign is a request to listen. A waiter *near* the
front of a queue gives a sign each 0.6 s, and its bell lasts for 2 s. A waiter *far* from the front, with
`NEAR` other waiters before it in each of its queues, gives one each 1.5 s, and its bell lasts for 5 s. The
answer to each sign says where the waiter stands. The reasons why a waiter may give fewer signs while it is
far:

1. A sign wakes no waiter: a bell does, wherever its waiter stands. What a sign finds (a push that was lost, a
   bell that was deleted) matters when the waiter's turn comes, and a far waiter's turn has not come.
2. A bell outlives two signs that come late or get lost, near and far. A sign that finds the waiter near makes
   the bell shorter; its answer brings the next sign forward, and without an answer the waiter asks.
3. A dead waiter that comes to the front with a bell of 5 s delays no waiter for longer than 2 s. No step
   waits until a bell that hangs ends. A step that frees, and a waiter that finds the way free and is refused
   for the sake of the first one, *ring* the bell of the first one. Then it is gone, or lasts for 2 s, whoever
   rang it: also a session of a version that knows nothing of far waiters.
4. A living waiter that has come to the front since its last sign may be told late that the waiter before it
   was rung and has died. In a strict queue the bell of that one lasts for 2 s anyway, and the sign comes
   within 1.5 s. In a simple one the lock lies idle for at most 1.5 s, if no other waiter gives a sign before.
5. Of several dead waiters in a row each may cost 2 s, until all their bells are over: 2 s after their death
   if they were near, and 5 s if they were far.
6. The marks of readers and writers keep out other waiters wherever their owner stands. A waiter with marks is
   never far.

A waiter listens from its first refusal on. It does so by a `GET` of its bell under `CLIENT CACHING`, right
behind the refusal: in 1.1 to 1.4 us of the server's time, where the script of the signs takes 16 to 20. Where
a refusal is foretold, the acquire asks and listens in one write: the `GET` goes right behind the script that
asks. It is foretold where the last acquire of the lock was refused, or other waiters stood in the queue when
it was granted. The reasons why no ring goes unheard in that:

1. A server executes the requests of a connection in their order. If the `GET` finds that the bell hangs, the
   server tells of the next change of it. That is so on every server: which keys a *script* makes it remember
   differs (Redis 6.2 and 7.0: all its KEYS; later ones: what it has read), and no script that asks reads the
   bell. So the server tells the waiter of no other key of the lock, either.
2. Only a write of this session itself ends that without a word. Such a write hangs the bell up again, and
   does so only after a change by another client, of which the server has told, or where this session has
   given its place up. The request that asks goes before the `GET`, and requests of other waiters of this
   session find a bell that hangs.
3. If the bell does not hang, it was rung between the two, or could not be hung up. The waiter asks at once,
   `_UNSEATED` times in a row at most. Then it listens with a script, which tells it which of the two it is.
4. If the server lacks the script, the request that asks is sent again, behind the `GET`. Then the answer to
   the `GET` comes before the refusal. It counts for nothing, and the refusal makes the waiter listen.
5. If the connection ends between the two, every waiter asks again, on the next one.
6. The `GET` says no more than that the bell hangs. The refusal has said all else a moment ago, but for one
   thing: if the lock was free, and it was the turn of a waiter of another process, that one may have died. So
   the waiter listens with the script when that one has had its chance.

Where nothing foretells a refusal, the `GET` is a third request. Whatever makes the first request listen costs
each acquire of a free lock, as counted on Redis 7.0 and Valkey 9.1 (time of the server for an acquire and its
release):

- the `GET` behind each acquire: 7 and 9 % more, and 113 bytes in 385;
- `CLIENT CACHING` before the script: 17 and 12 %. And the bell is not heard, since the script writes it: it
  would have to be read last. Each waiter is told of each change of the lock, not only the one that is rung,
  and up to Redis 7.0 of each change of the fence, too;
- a connection that tracks all that it reads (`OPTOUT`): 26 and 15 %, and as much is told;
- a script cannot switch tracking on: no script may call `CLIENT`.

It takes tracking, for there the pushes come on the connection of the request, in order with the replies. With
keyspace notifications, a waiter subscribes first, with RESP2 on another connection. And it takes one server:
in a cluster the slot may move between the two requests, each of which would then go on by itself. Else the
waiter listens with the script when it was refused.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, final

from .._logs import get_logger
from .._tasks import empty_context
from ..errors import SessionClosedError
from ..transport import (
    BELL_TTL,
    FAR_BELL_TTL,
    NEAR,
    Fault,
    Listener,
    Request,
    Transport,
    hanging,
    ignore,
    listening,
    one_request_each,
)

if TYPE_CHECKING:
    from .engine import Engine
    from .queue import Gate
    from .waiter import Waiter

log = get_logger("aiolocks.session")
T = TypeVar("T")

_LISTENS_EVERY: Final = BELL_TTL * 0.3
"""Seconds: a bell outlives two requests that come late or get lost."""
_FAR_LISTENS_EVERY: Final = FAR_BELL_TTL * 0.3
"""The same of gates far from the front."""
_TOGETHER: Final = 0.35
"""Seconds by which the sign of a far gate may come early, to go in one request with other signs."""
_LISTEN_TIMEOUT: Final = 0.5
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
      listen that fails, or has no answer before the next one is due, makes its waiters ask;
    - a gate is in `_far` only while the last news of it is an answer that it stands far from the front.
    """

    __slots__ = ("_ears", "_far", "_gates", "_left", "_loop", "_timer", "_transport", "_warned")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._gates: dict[bytes, Gate] = {}
        self._far: dict[Gate, float] = {}  # with the loop time at which its next sign is due
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
        if self._timer is None or self._far:
            self._wind_up()

    def discard(self, gate: Gate) -> None:
        for bell in gate.bells:
            del self._gates[bell]
            self._left[bell] = None
        self._far.pop(gate, None)

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
                self._draw_near(gate)
                gate.lost(way)
        elif self._gates:
            for bell in bells:
                if (owner := self._gates.get(bell)) is not None:
                    if self._far:
                        self._draw_near(owner)
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

    def _draw_near(self, gate: Gate) -> None:
        """Something is known of it that is newer than where it stands."""
        if self._far.pop(gate, None) is not None:
            self._wind_up()

    def _wind_up(self) -> None:
        """Sets the timer for the next sign that is due, unless it is set for then or sooner."""
        now = self._loop.time()
        far = self._far and len(self._far) == len(self._each())
        at = min(self._far.values()) if far else now + _LISTENS_EVERY
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._listen, context=empty_context())

    def _listen(self) -> None:
        """Shows the server that all waiters still wait whose sign is due, in one request for each slot."""
        for bell in self._left:
            self._silence(bell)
        self._left.clear()
        self._timer = None
        if not self._gates or self._transport is None:
            return
        now = self._loop.time()
        listeners: dict[Listener, Gate] = {}
        for gate in self._each():
            if self._far and gate in self._far:
                if self._far[gate] > now + _TOGETHER:
                    continue
                self._far[gate] = now + _FAR_LISTENS_EVERY
            listener = gate.listener()
            if isinstance(listener, Listener):
                listeners[listener] = gate
            elif listener is not None:
                self.listen_for(gate, listener)
        self._wind_up()
        until = now + _LISTEN_TIMEOUT
        for together in one_request_each(tuple(listeners), by_slot=self._transport.by_slot):
            self._ask({listener: listeners[listener] for listener in together}, until)

    def ask_and_listen(self, asking: Request[Any], gate: Gate) -> None:
        """In one write, where the asker will hear of its bell on the connection on which it asks."""
        transport = self._transport
        assert transport is not None
        if transport.way != "tracking" or transport.by_slot:
            transport.send(asking)
            return
        transport.send(asking, corked=True)
        gate.listens_along()
        self._look(gate)

    def listen_first(self, gate: Gate, listener: Listener | Request[int] | None, waiter: Waiter) -> None:
        """Right after a refusal of the waiter has hung up its bell; None: the listener is to be made."""
        transport = self._transport
        assert transport is not None
        if gate.contended_bell and transport.way == "tracking" and not transport.by_slot:
            self._look(gate)
        else:
            self.listen_for(gate, waiter.lease.listener() if listener is None else listener)

    def _look(self, gate: Gate) -> None:
        """Reads its bell, on the connection on which the session asks and hears."""
        looks = hanging(gate.contended_bell)
        # As `Request.ask`.
        looks.on_reply, looks.on_fault = gate.saw, gate.saw_nothing
        looks.until = self._loop.time() + _LISTEN_TIMEOUT
        assert self._transport is not None
        self._transport.send(looks)

    def listen_for(self, gate: Gate, listener: Listener | Request[int]) -> None:
        """In a request of its own: at once, for its bell hangs since a moment ago."""
        assert self._transport is not None
        until = self._loop.time() + _LISTEN_TIMEOUT
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
            self._ask({listener: gate}, self._loop.time() + _LISTEN_TIMEOUT, first=True)

    def _ask(self, listeners: Mapping[Listener, Gate], until: float, *, first: bool = False) -> None:
        gates = tuple(listeners.values())

        def told(answers: Sequence[int]) -> None:
            far = {gates[number - 1] for number in answers[len(gates) :]} if len(answers) > len(gates) else ()
            for gate, answer in zip(gates, answers[: len(gates)], strict=True):
                if gate not in far:
                    self._draw_near(gate)
                elif gate.armed:
                    self._far[gate] = until - _LISTEN_TIMEOUT + _FAR_LISTENS_EVERY
                gate.listened(answer)

        def failed(fault: Fault) -> None:
            if fault.transient or len(listeners) == 1:
                self._unheard(gates, fault)
                return
            for listener, gate in listeners.items():  # one key that is denied, say, refuses the whole request
                self._ask({listener: gate}, until)

        assert self._transport is not None
        command = listening(tuple(listeners), first=first, near=NEAR)
        self._transport.send(command.again().ask(told, failed, until=until))

    def _unheard(self, gates: Iterable[Gate], fault: Fault) -> None:
        if not fault.transient and not self._warned and not isinstance(fault.error, SessionClosedError):
            self._warned = True
            log.warning("waiters cannot stand in the queue, and poll: %s", fault.error)
        for gate in gates:
            self._draw_near(gate)
            gate.unheard()

    def _each(self) -> tuple[Gate, ...]:
        return tuple(dict.fromkeys(self._gates.values()))


def telling(key: bytes) -> Request[Any]:
    """As `hanging`, of a key that is there for a moment only; the look for it goes behind, in this lane."""
    return hanging(key, key.decode())


@final
class KeyListener:
    """Hears of changes of one key, for as long as it is entered.

    Invariant: a change that a look (`listened`) has not seen ends the next sleep. For that, the server is
    asked to tell of the next change before it is asked what there is: a change in between is told of.

    Args:
        by_itself: The look names the key as its bell, and so makes the server tell; else a request of its own
            does, in one write with the look.
    """

    __slots__ = ("_by_itself", "_changed", "_engine", "_key")

    def __init__(self, engine: Engine, key: bytes, *, by_itself: bool = False) -> None:
        self._engine = engine
        self._by_itself = by_itself
        self._changed = asyncio.Event()
        self._key = key

    def __enter__(self) -> Self:
        self._engine.bells.listen(self._key, self._changed.set)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._engine.bells.unlisten(self._key, self._changed.set)

    async def listened(self, look: Callable[[], Awaitable[T]], *, until: float | None = None) -> T:
        """What a look finds, which sends its request at once when it is awaited. Raises what that raises.

        `until`: Loop time at which its caller gives up; None: after `command_timeout`.
        """
        engine = self._engine
        if not self._by_itself:
            engine.check_usable()
        # 1. What was heard until now, the look will see.
        self._changed.clear()
        # 2. The second connection, if there is one, hears the key; or that is silent, and sleeps have an end.
        armed = engine.bells.arm(self._key)
        if armed is not None:
            await asyncio.wait((armed,), timeout=_LISTEN_TIMEOUT)
        # 3. From now on the server tells.
        if not self._by_itself:
            if until is None:
                until = engine.now() + engine.settings.command_timeout
            engine.send(telling(self._key).ask(ignore, ignore, until=until), corked=True)
        # 4. And what there is now.
        return await look()

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

"""The watch over one lease: what is asked of the server for it, and what the server tells of it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._transport import clocks
from .clock import milliseconds
from .renewal import Renewal
from .term import NEVER

if TYPE_CHECKING:
    from .._transport import Call, Command, Fault, Kept
    from .claim import Claim
    from .convoys import Convoy
    from .engine import Engine
    from .possession import Possession
    from .term import Term
    from .waiting.queue import Gate
    from .watchdog import Watchdog


class Watch(weakref.ref["Possession"]):
    """The watchdog's weak hold on a possession, from the grant until it ends or is let go of.

    A possession that nobody has any more is collected, and its renewals end: so the caller of a method here
    gives it. The parts that are needed after that stand here once more.

    Invariants:
    - at most one request is under way, alone or in a convoy, and none once the watch has ended;
    - the watch is armed for `watched`, or was since its last request was answered.

    Attributes:
        turn: The entry of the watchdog's heap that counts.
        guarded: Its term, if the guard looks after it.
        renewal: The request that is under way; also a question whether it is held.
        watched: Its keys, once the server was asked to tell of them.
    """

    __slots__ = (
        "_changed",
        "claim",
        "gate",
        "guarded",
        "label",
        "name",
        "renewal",
        "turn",
        "watchdog",
        "watched",
    )

    claim: Claim
    gate: Gate
    label: str
    name: str
    guarded: Term | None
    renewal: Renewal | Convoy | None
    turn: int
    watchdog: Watchdog
    watched: tuple[bytes, ...]
    _changed: bool  # it must be asked for, as the server has told of a change

    def begin(self, watchdog: Watchdog, possession: Possession) -> None:
        """Once, right after it was made: a constructor of Python's own would take longer."""
        self.watchdog = watchdog
        self.claim = possession.claim
        self.gate = possession.gate
        self.guarded = None
        self.label = possession.label
        self.name = possession.name
        self.renewal = None
        self.watched = ()
        self._changed = False

    def end(self, engine: Engine) -> None:
        """Nothing more is sent for the lease, nor heard of it."""
        if self.watched:
            engine.tracked.disarm(self, self.watched)
        self.watchdog.forget(self)
        if self.renewal is not None:
            self.drop_renewal()

    # -- the watchdog

    def tend(self, possession: Possession, now: float, steady: float) -> float:
        """Does what is due, and says when to look again.

        Infinity: never, or when the convoy that it is renewed with is looked at.

        Args:
            possession: Its own.
            now: The time of the loop's clock.
            steady: The time of the clock that goes on while the machine is suspended.
        """
        term = possession.term
        moment = term.moment(now, steady)
        if moment >= term.deadline:
            possession.lose(possession.why_over())
            return NEVER
        if moment >= term.next_end:
            possession.begin_grace(term.deadline - moment)
        if self.renewal is not None:
            if term.renews:
                possession.doubt("its renewal was not answered yet")
            return term.next_end
        if now < term.renewal_due:
            return term.due
        convoys = possession.engine.convoys
        if not term.renews:  # it ends by itself, and may be lost before that
            term.ask_at(NEVER)
            owned = self.claim.owned(watch=self._listens(hears=convoys.hears))
            self._send(Renewal(possession, self, owned, renews=False))
        elif not (self._changed or term.limited) and convoys.take(possession):
            return NEVER
        else:
            self.renew_alone(possession, self.renewal_now(possession, hears=convoys.hears))
        return term.next_look(now)

    def count_suspension(self, possession: Possession) -> None:
        """The machine was suspended, so the lease is lost, or has that much less time."""
        now, term = possession.engine.now(), possession.term
        moment = term.moment(now, clocks.steady())
        if moment >= term.deadline:
            possession.lose(possession.why_over())
        else:
            term.move(moment - now)
            self.watchdog.watch(possession)

    # -- asking

    def renewal_now(self, possession: Possession, *, hears: bool) -> Command[Kept]:
        """A renewal; `hears`: whether the server tells of changes, which costs something to ask for each."""
        ttl = possession.term.asks(possession.engine.now())
        return self.claim.renew(milliseconds(ttl), watch=self._listens(hears=hears), changed=self._changed)

    def remade(self, possession: Possession) -> Callable[[], Command[Kept]] | None:
        """Makes it when it is written: its ttl must not reach past `max_hold`, however long it has waited."""
        return functools.partial(self._renewal_then, possession) if possession.term.limited else None

    def _renewal_then(self, possession: Possession) -> Command[Kept]:
        return self.renewal_now(possession, hears=possession.engine.hears)

    def _listens(self, *, hears: bool) -> bool:
        """Whether the server, where it tells of changes, is to do so after the next request.

        Not after one that a change has caused: where the server remembers few keys, one would cause the next.
        """
        return not self._changed and (hears or bool(self.watched))

    def renew_alone(self, possession: Possession, renewal: Command[Kept]) -> Renewal:
        """Sends this renewal by itself."""
        return self._send(Renewal(possession, self, renewal, renews=True))

    def _send(self, renewal: Renewal) -> Renewal:
        self.renewal = renewal
        renewal.send()
        return renewal

    def ask(self, possession: Possession, *, changed: bool) -> None:
        """Asks whether it is still held: its key may have been `changed`, or the connection has ended."""
        if possession.watch is not self:
            return  # it has ended
        self.drop_renewal()  # it may have been answered before the change
        self._changed = changed
        possession.term.ask_at(possession.engine.now())
        self.watchdog.watch(possession)

    def drop_renewal(self) -> None:
        """The answer to the request under way does not count any more."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.left()

    # -- answers

    def confirmed(self, possession: Possession, call: Call[Any]) -> None:
        """The server has it, by the renewal that was made last."""
        engine = possession.engine
        sent = engine.moment(call.sent, call.sent_steady)
        possession.term.confirmed(sent, ahead=clocks.steady() - engine.now())
        self.owned(possession, call)

    def owned(self, possession: Possession, call: Call[Any]) -> None:
        """The server has it, as it has answered."""
        engine = possession.engine
        self.arm(engine, call.command.watched if engine.hears else ())
        self.watchdog.watch(possession)

    def arm(self, engine: Engine, keys: tuple[bytes, ...]) -> None:
        """The server tells of changes of these from now on."""
        self._changed = False
        if keys:
            self.watched = keys
            engine.tracked.arm(self, keys)

    def not_renewed(self, possession: Possession, fault: Fault) -> None:
        """An error is not a loss: until the deadline it tries again, soon at first."""
        if not fault.foreign:
            possession.doubt(str(fault.error))
            possession.term.retry(possession.engine.now())
        self.not_told(possession, fault)

    def not_told(self, possession: Possession, fault: Fault) -> None:
        """An error was the answer; only a key that others have overwritten is a loss."""
        self.renewal = None
        if fault.foreign:
            possession.lose(str(fault.error))
        else:
            self.watchdog.watch(possession)

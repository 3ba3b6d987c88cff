"""A request that renews one lease alone, or asks whether it is still held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from .._transport import Call, Command, Fault

if TYPE_CHECKING:
    from .possession import Possession
    from .watch import Watch


@final
class Renewal:
    """One such request on its way. `Convoy` is the same for several leases.

    Invariant: once it was answered, or its lease has left, it does not refer to its call: leases must be
    freed without the garbage collector.

    Args:
        renews: Whether an answer moves the end of the lease; if not, it only says that it is held.
    """

    __slots__ = ("_call", "_possession", "_renews", "_watch")

    def __init__(self, possession: Possession, watch: Watch, command: Command[Any], *, renews: bool) -> None:
        self._possession = possession
        self._watch = watch
        self._renews = renews
        make = watch.remade(possession) if renews else None
        until = possession.term.deadline
        self._call: Call[Any] | None = Call(command, self._answered, self._failed, until=until, make=make)

    def send(self) -> None:
        """Its watch knows of it: the answer may be here at once."""
        assert self._call is not None, "a renewal is sent once"
        self._possession.engine.send(self._call)

    def left(self) -> None:
        """Its lease does not wait for the answer any more."""
        self._possession.engine.forget(self._end())

    def unanswered(self) -> list[Possession]:
        """The lease, if it still waits for the answer."""
        return [] if self._call is None else [self._possession]

    def _end(self) -> Call[Any]:
        call, self._call = self._call, None
        assert call is not None, "a renewal ends once"
        return call

    def _answered(self, held: Any) -> None:
        call, possession, watch = self._end(), self._possession, self._watch
        watch.renewal = None
        if not held:
            possession.taken_away(held)
        elif self._renews:
            watch.confirmed(possession, call)
            possession.engine.events.renewed((possession,))
        else:
            watch.owned(possession, call)

    def _failed(self, fault: Fault) -> None:
        self._end()
        if self._renews:
            self._watch.not_renewed(self._possession, fault)
        else:
            self._watch.not_told(self._possession, fault)

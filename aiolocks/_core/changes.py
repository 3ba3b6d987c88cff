"""A holder changes what it holds: another ttl, other metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from ..errors import LockError
from .states import LeaseState

if TYPE_CHECKING:
    from .._transport import Call, Command
    from .possession import Possession


@final
class Changes:
    """The requests by which a holder changes one lease, which it holds all the while.

    Invariants:
    - a lease is extended by one task at a time: the answer to an older request does not count after that to
      a newer one;
    - no answer counts for a lease that was let go meanwhile.
    """

    __slots__ = ("_extending", "_possession")

    def __init__(self, possession: Possession) -> None:
        self._possession = possession
        self._extending = asyncio.Lock()

    async def extend(self, ttl: float) -> None:
        """Sets another ttl from now on. See `Lease.extend`."""
        self._possession.ensure_here()
        async with self._extending:
            self._possession.ensure_held()
            await self._extend(ttl)

    async def _extend(self, ttl: float) -> None:
        possession = self._possession
        engine, term, watch = possession.engine, possession.term, possession.watch
        assert watch is not None, "what is held is watched"
        now, until = engine.now(), term.deadline
        term.change(now, ttl)
        # A renewal under way asked for the ttl of before: its answer must not count any more.
        watch.drop_renewal()
        engine.watchdog.watch(possession)
        if engine.ward is not None:
            engine.ward.again(watch)
        renewal = watch.renewal_now(possession, hears=engine.hears)
        call = await self._ask(renewal, until=until, make=watch.remade(possession))
        if call is not None and possession.watch is not None:
            watch.confirmed(possession, call)
        possession.ensure_held()

    async def annotate(self, fields: Mapping[str, Any]) -> None:
        """Changes these fields of what stands beside it. See `Lease.annotate`."""
        possession = self._possession
        possession.ensure_here()
        possession.ensure_held()
        await self._ask(possession.claim.annotate(fields), until=possession.term.deadline)
        possession.ensure_held()

    async def _ask(
        self, command: Command[Any], *, until: float, make: Callable[[], Command[Any]] | None = None
    ) -> Call[Any] | None:
        """The call, if the server has it as the holder; if not, None, and it is lost."""
        possession, engine = self._possession, self._possession.engine
        until = min(until, engine.now() + engine.settings.command_timeout)
        call, answered = engine.start(command, until=until, make=make, patient=True)
        try:
            held = await answered
        except LockError:
            if call.ended_by is not None and call.ended_by.foreign:
                possession.lose(str(call.ended_by.error))
            if possession.state is LeaseState.LOST:
                possession.ensure_held()
            raise
        finally:
            engine.forget(call)
        if held:
            return call
        if possession.watch is not None:
            possession.taken_away(held)
        return None

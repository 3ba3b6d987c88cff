"""A term: what its leader has."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from types import TracebackType
from typing import Any, final

from ..lock.binding import Binding
from ..lock.lease import Lease, LeaseState, Possession
from ..lock.options import Seconds, seconds
from ..transport import Granted
from ..transport.commands.leadership import Observing

log = logging.getLogger("aiolocks.session")


@final
class Candidacy:
    """The state that one `Leadership` object knows of itself in this process, without asking anybody.

    Attributes:
        rests_until: Loop time before which it does not campaign; it has stepped down.
    """

    __slots__ = ("_term", "rests_until")

    def __init__(self) -> None:
        self._term: weakref.ref[Possession] | None = None
        self.rests_until = float("-inf")

    def elected(self, possession: Possession) -> None:
        self._term = weakref.ref(possession)

    @property
    def leads(self) -> bool:
        """Whether its term may be relied on now, by the clock."""
        possession = None if self._term is None else self._term()
        return possession is not None and possession.remaining() > 0.0


@final
class Term(Lease):
    """One term of a leader: a lease, made by being elected, never by hand.

    It may be relied on as every lease: `ensure_held()` and `remaining()` go by the clock, without I/O.
    """

    __slots__ = ("_candidacy", "_value")

    def __init__(
        self,
        binding: Binding[Term],
        possession: Possession,
        grant: Granted,
        *,
        candidacy: Candidacy,
        value: Any,
    ) -> None:
        super().__init__(binding, possession, grant)
        self._candidacy = candidacy
        self._value = value
        candidacy.elected(possession)

    @property
    def value(self) -> Any:
        """The last value that this term has published."""
        return self._value

    @property
    def grace(self) -> float:
        """Seconds before the end of the lease at which the body is cancelled."""
        return self._possession.term.grace

    @property
    def ending(self) -> bool:
        """Whether its body was to stop: `grace` began, it stepped down, or it was lost."""
        return self._possession.term.stopping or self.state is LeaseState.LOST

    async def proclaim(self, value: Any) -> None:
        """Publishes a value beside the term: `leader()` gives it, and every `observe()` is told at once.

        It takes the place of the one before. Of values that follow each other fast, an observer may see the
        last one only.

        Args:
            value: Anything that JSON can hold, such as the address at which the leader is reached. Readable
                by each user that can read the key.

        Raises:
            TypeError: It is not what JSON can hold.
            ConfigurationError: It has more bytes than the session's `largest_metadata`.
            LockLostError: The term is over.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error the server may have it or not; asked again, it does what is left.
        """
        copied = json_value(value)
        settings = self._engine.settings
        settings.user_json({"value": copied})
        await self._changes.annotate({"value": copied})
        self._value = copied
        # The server tells all sessions but the one that has changed it.
        news = Observing(settings.prefix, self.name).news
        self._engine.bells.rung("local", (news,))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(exc_type, exc, traceback)
        finally:
            scope = self._possession.scope
            if exc is None and scope is not None and scope.cancelled_since:
                # Of two cancellations at the same time asyncio makes one, and the body has taken it for the
                # end of its term. `run` would campaign again.
                raise asyncio.CancelledError

    async def step_down(self, *, cool_down: Seconds = 0.0) -> None:
        """Ends the term: the body is cancelled, and the next candidate leads once the body has unwound.

        Called in the body itself, it ends with that cancellation. Elsewhere it returns when the term is over.
        A term that was never entered is released. The body may take longer than `grace` to unwind: its lease
        is renewed until it has ended.

        Args:
            cool_down: Seconds for which this `Leadership` object does not campaign again, so that another
                candidate has its turn, or the reason for stepping down has time to pass.

        Raises:
            TypeError, ValueError: `cool_down` is not as it should be.
            BackendError: It was never entered, and its release was not confirmed.

        Cancelled, the term ends all the same.
        """
        rest = seconds("cool_down", cool_down)
        possession = self._possession
        possession.ensure_here()
        self._candidacy.rests_until = self._engine.now() + rest
        if not possession.live:
            return
        was_stopping = possession.term.stopping
        log.info("%s %r: the leader steps down", self.kind, self.name)
        possession.stop("step_down() was called")
        scope = possession.scope
        if scope is None:
            await self.release()
        elif not scope.entered_here:
            await possession.wait_over()
        elif not was_stopping:
            await asyncio.get_running_loop().create_future()  # until the cancellation comes


def json_value(value: object) -> Any:
    """A value that is published, copied.

    Raises:
        TypeError: It is not what JSON can hold.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"value must be what JSON can hold: {error}") from None

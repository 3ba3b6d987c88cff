"""The methods of a session for operators: its health, what is held, deadlocks, forced releases."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .._transport import a_question
from ..errors import LockError
from .arguments import Seconds, seconds

if TYPE_CHECKING:
    from .._deadlocks import Deadlock
    from .._inspection.infos import LockInfo
    from .engine import Engine


class Operations(ABC):
    """Questions about all locks of a session, and the release of a lock that another process holds."""

    @abstractmethod
    def _usable_engine(self) -> Engine:
        """The engine that does the work, for use here and now.

        Raises as `Engine.check_usable` does.
        """

    async def healthy(self, *, within: Seconds = 5.0) -> bool:
        """Whether this event loop and the server get an answer through in time: for a health probe.

        It asks the server for next to nothing, over the session's own connection, as each renewal does. True
        says that the loop runs, that it is not busy for longer than `within`, and that the server serves this
        session. It never raises because of the server, and never takes longer than `within`, unless the loop
        does not run: then no probe is answered at all, which is what a time-out of the prober is for.

        A process whose server is away is not mended by a restart: see the page on Kubernetes for which probe
        this is.

        Args:
            within: Seconds that the answer may take.

        Returns:
            False if there was no answer in time, or the server refused, or the session is closed.

        Raises:
            TypeError, ValueError: `within` is not as it should be.
            RuntimeError: The session belongs to another event loop or process.

        Cancelled, it changes nothing.
        """
        within = seconds("within", within, least=0.001)
        try:
            async with asyncio.timeout(within):
                engine = self._usable_engine()
                await engine.ask(a_question(engine.settings.prefix, engine.session_id))
        except (LockError, TimeoutError):
            return False
        return True

    async def inspect(self, pattern: str = "*") -> list[LockInfo]:
        """The holders and the number of waiters of each name, as the server has them now.

        Goes through all keys of the server with SCAN, and looks at each name by itself: what changes
        meanwhile is shown as it was or as it is. A pattern without wildcards looks at that name alone.

        Args:
            pattern: Of names: `*`, `?` and `[…]` as in a shell; `glob.escape(name)` for one that has these.

        Returns:
            What is held, waited for, or not as it should be (`problem`), by name. A name of which nothing but
            a fence is left is not among it; nor are runs of a `UniqueJob` whose tickets may run beside each
            other (unique until executing, or until expired).

        Raises:
            TypeError, ValueError: The pattern is not as it should be.
            BackendError: Refused (it needs more permissions than a lock does), or no answer within
                `command_timeout`, which counts for each of its requests.
        """
        from .._inspection.looking import inspect  # noqa: PLC0415 - for operators, and an import takes its time

        return await inspect(self._usable_engine(), pattern)

    async def deadlocks(self) -> list[Deadlock]:
        """Tasks of any processes that wait for each other, and will for ever if nobody does anything.

        Found among the waits of at least 0.4 s, of tasks that have entered a lease which does not end by
        itself (renewed, without `max_hold`), for all kinds of locks of this prefix and server but `Redlock`;
        also if the waits have a time-out. Each was found twice, with each session confirming in between that
        its task still waits: where there is a suspicion, this takes 0.6 to 1.6 s. Waits of versions of
        aiolocks that do not publish them are not known. Where more than 1000 sessions have such waits, 1000
        of them are read.

        Returns:
            Each deadlock once; empty if there is none.

        Raises:
            BackendError: Refused (it needs the permissions that `inspect` needs, but for SCAN), or no answer
                within `command_timeout`, which counts for each of its requests.

        Cancelled, it changes nothing.
        """
        from .._inspection.deadlocks import deadlocks  # noqa: PLC0415 - for operators, and an import takes its time

        return await deadlocks(self._usable_engine())

    async def force_release(
        self, name: str, *, kind: str | None = None, by: str | None = None
    ) -> list[LockInfo]:
        """Frees a name from its holders, and wakes its waiters.

        The holder's lease becomes `LOST`: at once if it is of this session, otherwise after a push and a
        question where its session hears of changes (`wakeup` `"tracking"` or `"keyspace"`), or at its next
        renewal, after a third of its ttl at the latest. Until then its body runs on, beside the next
        holder's: the fence stays, and what compares fencing tokens is safe. The error and the log of the
        holder say that it was released by force, and by whom; to more than 16 holders of one name, and of a
        `Redlock`, a `Schedule`, a `SingleFlight` or a `UniqueJob`, only that the server no longer has it as
        the holder.

        A key that is not as aiolocks writes it (`problem`) is removed. Of a `MultiLock` only this name is
        freed at once, the others when its holder has noticed. Cancelled, it may have been done or not; to do
        it again does no harm.

        Args:
            name: Name of the lock.
            kind: Such as `"lock"`, `"fairlock"`, `"semaphore"`, `"rwlock"`; None for every kind of that name.
            by: The operator, as the holder is told; of a long name, the first 200 characters. None: host,
                process and task of the caller.

        Returns:
            What was freed, one for each kind, as it stood before; empty if nobody held it.

        Raises:
            TypeError, ValueError: An argument is not as it should be.
            BackendError: Refused, or no answer within `command_timeout`.
        """
        from .._inspection.freeing import force_release  # noqa: PLC0415 - as above

        return await force_release(self._usable_engine(), name, kind, by=by)

"""The run of one tick: from its claim to its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, final

from ..._core.binding import Binding
from ..._core.claim import Manner, Resource
from ..._core.clock import milliseconds
from ..._core.engine import Engine
from ..._core.lease import Lease
from ..._core.options import Options
from ..._transport.commands.schedule import Ask, Claimed, NotClaimed, TickCommands
from ...errors import LockError, LockLostError
from .clock import ServerClock
from .ticks import Outcome, Tick

log: Final = logging.getLogger("aiolocks.schedule")

T = TypeVar("T")
Job = Callable[[Tick], Awaitable[Any]]

_SEVERAL: Final = Manner()
_MOST_DETAIL: Final = 200
"""Characters of an exception that the history keeps."""


@final
class Run:
    """A tick that is claimed, and held: the job must be called now.

    Invariant: from when the job is called, its outcome is "lost" until it is known: so a claim is taken back
    only if nothing was run.
    """

    __slots__ = ("_commands", "_engine", "lease", "reply")

    def __init__(self, engine: Engine, lease: Lease, commands: TickCommands, reply: Claimed) -> None:
        self._engine = engine
        self._commands = commands
        self.lease = lease
        self.reply = reply

    def began(self) -> None:
        """Something is run: unless `ended` says more, it is lost."""
        self._commands.outcome = "lost"

    def ended(self, outcome: Outcome, detail: str = "") -> None:
        """The run has ended, as the release of the lease must record."""
        self._commands.outcome, self._commands.detail = outcome, detail[:_MOST_DETAIL]

    async def call(self, job: Callable[[Tick], Awaitable[T]], tick: Tick, *, at_most: float | None) -> T:
        """Calls the job, and ends the run with its outcome; what the job returned.

        Raises:
            Exception: Any error of the job; `TimeoutError` after `at_most`.
            LockLostError: The lease was lost.
            BackendError: Redis did not confirm the end.
        """
        limit = asyncio.timeout(at_most)
        self.began()
        async with self.lease:
            try:
                async with limit:
                    result = await job(tick)
            except asyncio.CancelledError as error:
                outcome = self._why_cancelled()
                self.ended(outcome, _described(error) if outcome == "failed" else "")
                raise
            except BaseException as error:
                if limit.expired():
                    self.ended("timeout")
                else:
                    self.ended("failed", _described(error))
                raise
            self.ended("done")
        return result

    def _why_cancelled(self) -> Outcome:
        if self._engine.closing:
            return "stopped"
        if self.lease.remaining() <= 0.0:
            return "lost"
        task = asyncio.current_task()
        return "stopped" if task is not None and task.cancelling() else "failed"

    async def call_logged(self, job: Job, tick: Tick, *, at_most: float | None) -> None:
        """The same where nobody waits for it: what goes wrong is logged."""
        told = f"schedule {tick.name!r}: the run of {tick.due}"
        try:
            await self.call(job, tick, at_most=at_most)
        except LockLostError as error:
            log.warning("%s was cancelled: %s", told, error)
        except LockError as error:
            log.warning("%s has ended, and Redis did not confirm it: %s", told, error)
        except Exception:
            if self._commands.outcome == "timeout":
                log.warning("%s was cancelled after at_most=%g s", told, at_most)
            else:
                log.exception("%s failed", told)

    def take_back(self) -> None:
        """Synchronous: the job was never called, and another process may run the tick."""
        if not self._commands.outcome:
            possession = self.lease._possession  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no await fits here
            possession.lose("its schedule was stopped before the run began")
            self._engine.take_back(possession.claim.end(), self.lease.ttl)


def _described(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


async def claim(
    engine: Engine, name: str, ask: Ask, options: Options, clock: ServerClock
) -> Run | Claimed | NotClaimed:
    """Asks the register for a tick: its run, or why there is none (`Claimed`: the answer came too late).

    Raises:
        BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        SessionClosedError: The session is closed.

    Cancelled or failed at any point, a claim that the server may have granted is taken back.
    """
    commands = TickCommands(
        engine.settings.prefix,
        name,
        ask,
        retention_ms=milliseconds(engine.settings.fence_retention),
        session=engine.session_id,
    )
    # Each has a gate of its own: nobody waits here, and runs stand side by side.
    resource = Resource(commands, ("schedule", name, engine.token()), _SEVERAL)
    binding: Binding[Lease] = Binding(engine, resource, Lease, label="Schedule", name=name, options=options)
    asked_at = engine.now()
    lease = await binding.try_acquire()
    reply = commands.reply
    assert reply is not None
    early = isinstance(reply, NotClaimed) and reply.why == "early"
    clock.heard(reply.now_us, 0.0 if early else engine.now() - asked_at)
    if lease is None:
        return reply
    assert isinstance(reply, Claimed)
    return Run(engine, lease, commands, reply)

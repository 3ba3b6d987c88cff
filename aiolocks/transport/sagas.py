"""Calls that take several commands, where one script cannot reach all their keys.

Only a cluster needs them, and only the transports to it run them. A generator decides when each command is
sent: it yields the commands that go out together, and is sent their results, in the same order.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from . import clocks
from .faults import Fault
from .request import Request, take_back

if TYPE_CHECKING:
    from .answers import Released

T = TypeVar("T")

TAKING_BACK: Final = 5.0
"""Seconds for which what was taken is given back, at least; it ends with its ttl anyway."""


@final
class Compensate:
    """Yielded: commands that undo. No caller waits for them, or can take them back.

    Attributes:
        commands: Each answers as a release does.
        seconds: How long they are of use.
    """

    __slots__ = ("commands", "seconds")

    def __init__(self, commands: Sequence[Request[Released]], seconds: float) -> None:
        self.commands = commands
        self.seconds = seconds


SagaStep = Sequence[Request[Any]] | Compensate
SagaSteps = Generator[SagaStep, list[Any], T]


class FaultError(Exception):
    """Thrown into the generator: one of the commands ended without an answer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault.error))
        self.fault = fault


@final
class SagaCommand(Request[T]):
    """A call that looks like one command and takes several.

    Attributes:
        saga: Begins it.
    """

    __slots__ = ("saga",)

    def __init__(self, saga: Callable[[], SagaSteps[T]], keys: tuple[bytes, ...], *, lane: str) -> None:
        super().__init__(None, keys, (), lambda result: result, lane=lane)
        self.saga = saga


@final
class Saga:
    """One such call under way.

    Invariant: once the call has ended, by any way, nothing more of it is sent but what takes back.
    """

    __slots__ = ("_at_once", "_call", "_first", "_parts", "_results", "_sagas", "_steps")

    def __init__(self, sagas: Sagas, call: Request[Any], *, at_once: bool) -> None:
        command = call.as_of_now()
        assert isinstance(command, SagaCommand)
        self._sagas = sagas
        self._call = call
        self._at_once = at_once
        self._steps: SagaSteps[Any] = command.saga()
        self._parts: list[Request[Any]] = []
        self._results: list[Any] = []
        self._first = True  # the commands under way are the ones that it begins with

    def begin(self) -> None:
        self._call.sent_steady, self._call.sent = clocks.steady(), self._sagas.loop.time()
        self._call.written = True
        self._go_on(lambda: next(self._steps))

    def abandon(self) -> None:
        """The caller has left, and will undo by itself the steps that were done."""
        self._leave_parts()
        self._steps.close()

    def _leave_parts(self) -> None:
        """Gives up the commands under way. Tells of bells that answered ones have rung: no caller does."""
        for part in self._parts:
            part.done = True
        for result in self._results:
            self._tell(result)

    def _tell(self, result: Any) -> None:
        if rung := getattr(result, "rung", ()):
            self._sagas.on_rung(rung)

    def _go_on(self, step: Callable[[], SagaStep]) -> None:
        try:
            wanted = step()
            while isinstance(wanted, Compensate):
                self._take_back(wanted)
                wanted = self._steps.send([])
        except StopIteration as end:
            self._sagas.ended(self._call)
            self._call.reply(end.value)
        except FaultError as error:
            self._sagas.ended(self._call)
            self._call.fault(error.fault)
        else:
            self._send_together(wanted)

    def _send_together(self, commands: Sequence[Request[Any]]) -> None:
        self._results = [None] * len(commands)
        left = len(commands)

        def made(at: int) -> Callable[[], Request[Any]] | None:
            if not self._first or self._call.make is None:
                return None
            return lambda: next(self._call.as_of_now().saga())[at]  # type: ignore[attr-defined]

        def replied(at: int) -> Callable[[Any], None]:
            def keep(result: Any) -> None:
                nonlocal left
                left -= 1
                self._results[at] = result
                self._call.unconfirmed |= parts[at].unconfirmed
                if not left:
                    if self._first:
                        self._begun_with(parts)
                    self._go_on(lambda: self._steps.send(self._results))

            return keep

        def failed(fault: Fault) -> None:
            self._first = False
            self._leave_parts()
            self._call.unconfirmed = True  # it is not known whether the other commands were executed
            self._go_on(lambda: self._steps.throw(FaultError(fault)))

        parts = self._parts = [
            command.again().ask(
                replied(at),
                failed,
                until=self._call.until,
                undoes=self._call.undoes,
                patient=self._call.patient,
                as_eval=self._call.as_eval,
                make=made(at),
                on_late=self._tell,
            )
            for at, command in enumerate(commands)
        ]
        for part in parts:
            if not part.done:
                self._sagas.send(part, at_once=self._at_once)

    def _begun_with(self, parts: Sequence[Request[Any]]) -> None:
        """These went first. Each may have waited for other requests of its lane, or for a connection."""
        self._first = False
        self._call.sent = min(part.sent for part in parts)
        self._call.sent_steady = min(part.sent_steady for part in parts)

    def _take_back(self, wanted: Compensate) -> None:
        seconds, sagas = max(wanted.seconds, TAKING_BACK), self._sagas
        for command in wanted.commands:
            take_back(command, send=sagas.send, loop=sagas.loop, seconds=seconds, told=self._tell)


@final
class Sagas:
    """The sagas under way over one transport.

    Args:
        send: Of the transport.
        on_rung: Told of bells that were rung, where no caller is: while taking back, or after the end.
    """

    __slots__ = ("_begun", "loop", "on_rung", "send")

    def __init__(
        self, send: Callable[..., None], on_rung: Callable[[Sequence[bytes]], None], loop: AbstractEventLoop
    ) -> None:
        self.send = send
        self.on_rung = on_rung
        self.loop = loop
        self._begun: dict[Request[Any], Saga] = {}

    def begin(self, call: Request[Any], *, at_once: bool) -> None:
        saga = self._begun[call] = Saga(self, call, at_once=at_once)
        saga.begin()

    def ended(self, call: Request[Any]) -> None:
        """Nothing more of it is to come."""
        self._begun.pop(call, None)

    def forget(self, call: Request[Any]) -> None:
        """Its caller has left."""
        if (saga := self._begun.pop(call, None)) is not None and not call.done:
            saga.abandon()

"""The times of a wait: its sleeps, and the end of its patience."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from ...errors import BackendError
from .acquiring import Acquiring
from .naps import Naps
from .stages import Stage

if TYPE_CHECKING:
    from ..._transport import Fault
    from ..claim import Claim
    from ..target import Target

_SILENCE: Final = 0.1
"""Seconds without an answer that are no silence yet."""
_LONG: Final = 10.0
"""Seconds after which a wait is logged."""


class Patient(Acquiring):
    """An acquire that can wait: it has a deadline or none, sleeps, and gives up on a server that is silent.

    Invariants:
    - a timer ends each sleep, and each wait behind others that may have to be told of or given up;
    - with a deadline, only the deadline ends the wait; without one, a silence of a ttl does, counted from the
      first question of its gate that was not answered.
    """

    __slots__ = ("_behind", "_deadline", "_deadline_timer", "_fault", "_logged", "_naps", "_sleep_timer")

    def __init__(self, target: Target, claim: Claim, blocking_timeout: float | None) -> None:
        super().__init__(target, claim, blocking_timeout)
        self._behind = False  # it began to wait while somebody here held it
        self._deadline = None if blocking_timeout is None else self.started + blocking_timeout
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._fault: Fault | None = None  # of its last question, if that was not answered
        self._logged = False
        self._naps = Naps()
        self._sleep_timer: asyncio.TimerHandle | None = None

    @property
    def asleep(self) -> bool:
        """Whether no request is under way."""
        return self.stage is Stage.SLEEPING

    @property
    def over(self) -> bool:
        """Whether it has ended, by any way."""
        return self.stage is Stage.ENDED

    @property
    def unanswered(self) -> bool:
        """Whether its last question has had no answer yet, or only a failure."""
        return self._call is not None or self._fault is not None

    @abstractmethod
    def _ask(self, *, in_turn: bool = False, passing: bool = False) -> None:
        """Sends a request; behind other processes if `in_turn`, and as one that was woken if `passing`."""

    @abstractmethod
    def _tell_waiting(self) -> None:
        """Tells listeners that it waits, once."""

    # -- the end of its patience

    def _ask_until(self) -> float:
        return self._silence_ends() if self._deadline is None else self._deadline

    def _silence_ends(self) -> float:
        """When the server will have said neither yes nor no for a ttl, to us or to a waiter before us."""
        since = self._gate.silent_since
        if since is None:
            since = self._engine.now()
        return max(self.started, since) + self.target.options.ttl

    def _wait_ends(self) -> float | None:
        """When to give up, as things stand; None while there is no reason to."""
        if self._deadline is None and self._fault is not None:
            return self._silence_ends()
        return self._deadline

    def _out_of_time(self) -> None:
        if self.stage is Stage.ENDED or self._call is not None or self._acknowledgement is not None:
            return  # a call under way ends at the same time, and knows why it was not answered
        refused = self.answered_at > float("-inf")
        # Where no question has been open for long, what was known last still stands.
        since, now = self._gate.silent_since, self._engine.now()
        silent = since is not None and now - since >= _SILENCE
        held_until = self._gate.refused_until  # as the head was told, which has not asked since
        held = held_until is not None and now < held_until
        known = self._gate.answered_at > float("-inf") if self._fault is None else self._behind or held
        said = self._fault is not None and not self._fault.unknown
        refused_before_us = (
            self._gate.here.held
            or self._gate.answered_at >= self.started
            or (known and not silent and not said)
        )
        if self._timeout is not None and (refused or refused_before_us):
            self._give_up(self.timed_out(self._timeout))
        elif self._fault is not None:
            self._give_up(self._fault.error)
        else:  # queued behind somebody who has had no answer either
            self._give_up(BackendError(f"Redis did not answer within {self._timeout:g} s"))

    # -- behind others

    def _listen_on(self) -> None:
        """Until there may be something to say: of a long wait, or of a silence that ends it."""
        long = self.started + _LONG
        looks = [] if self._logged or (self._deadline is not None and self._deadline <= long) else [long]
        if self._deadline is None:
            looks.append(self._silence_ends())
        if looks:
            self._sleep_timer = self._engine.loop.call_at(min(looks), self._listen)

    def _listen(self) -> None:
        """Queued: those in front may be willing to wait for longer than we are."""
        now = self._engine.now()
        self._log_long_wait(now)
        if self._deadline is None and self._gate.silent_since is not None and now >= self._silence_ends():
            self._give_up(BackendError(f"Redis did not answer for {self.target.options.ttl:g} s"))
        else:
            self._listen_on()

    def _log_long_wait(self, now: float) -> None:
        if not self._logged and now >= self.started + _LONG:
            self._logged = True
            self._engine.events.waits_long(
                self.target.kind, self.target.name, now - self.started, self._holders(now), self._endless()
            )

    # -- sleeping

    def _sleep(self) -> None:
        """Backs off, never past the end of the holder's lease, and not quite to the end of the wait."""
        assert self.stage is Stage.ASKING, "only a waiter that has asked goes to sleep"
        assert self._call is None, "a request is under way"
        self._tell_waiting()
        self.stage = Stage.SLEEPING
        now, end = self._engine.now(), self._wait_ends()
        if end is not None and now >= end:
            self._out_of_time()
            return
        told = self._gate.heard or self._gate.is_behind(self)
        silence = self._gate.manner.silence if told else None
        self._naps.begin(now, self._engine.settings.backoff, silence)
        self._set_alarm()

    def need_not_ask(self, until: float | None) -> None:
        """The gate: before that time, nothing that the server knows of comes to its end."""
        self._naps.refused_until = until
        self._log_long_wait(self._engine.now())
        if self.asleep:
            self._set_alarm()

    def sleep_unheard(self) -> None:
        """The gate: nobody will tell it when to ask."""
        if self.asleep:
            self._naps.unheard(self._engine.now(), self._engine.settings.backoff)
            self._set_alarm()

    def _set_alarm(self) -> None:
        """For the end of this nap, as far as it is known now."""
        end = self._wait_ends()
        wake = self._naps.wake_at(self._engine.now(), yielding_until=self._gate.yielding_until, end=end)
        self._cancel_sleep()
        if wake is None:
            assert end is not None
            self._sleep_timer = self._engine.loop.call_at(end, self._out_of_time)
        else:
            self._sleep_timer = self._engine.loop.call_at(wake, self._slept)

    def _slept(self) -> None:
        assert self.stage is Stage.SLEEPING, "a nap ends only a sleep"
        self._sleep_timer = None
        self._engine.events.counters.wakeups["poll"] += 1
        self._ask(in_turn=self._gate.yielding)

    def _cancel_sleep(self) -> None:
        if self._sleep_timer is not None:
            self._sleep_timer.cancel()
            self._sleep_timer = None

"""How long a waiter sleeps between two tries."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Final, final

SILENT: Final = 10.0
"""Seconds after which a waiter asks although it is told that it need not: for unforeseen cases."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter. It is immutable, and has no state.

    The ceiling of the n-th delay is `min(initial * multiplier**n, maximum)`. The delay is a random number
    between `(1 - jitter)` times the ceiling and the ceiling, each with the same probability. With full
    jitter, the default, processes that were refused at the same moment come back at different moments; see
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        initial: Ceiling of the first delay, in seconds. The default, 4 ms, is a few round trips on a local
            network.
        maximum: Ceiling of every later delay, in seconds. The default, 64 ms, bounds the cost of a lost
            wakeup.
        multiplier: Growth of the ceiling from one try to the next. Default 2.
        jitter: Share of the delay that is random, 0 (none) to 1 (all of it, the default).

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.
    """

    initial: float = 0.004
    maximum: float = 0.064
    multiplier: float = 2.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        for name in ("initial", "maximum", "multiplier", "jitter"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"Backoff {name} must be a number, not {type(value).__name__}")
            if not abs(value) <= sys.float_info.max:  # also refuses NaN
                raise ValueError(f"Backoff {name} must be finite, not {value!r}")
        if self.initial <= 0:
            raise ValueError(f"Backoff initial must be more than 0 s, not {self.initial!r}")
        if self.maximum < self.initial:
            raise ValueError(
                f"Backoff maximum ({self.maximum!r} s) must not be less than initial ({self.initial!r} s)"
            )
        if self.multiplier < 1:
            raise ValueError(f"Backoff multiplier must be at least 1, not {self.multiplier!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff jitter must be between 0 and 1, not {self.jitter!r}")

    def delay(self, attempt: int) -> float:
        """Seconds to sleep after the given failed attempt; the first is 0."""
        if attempt < 0:
            raise ValueError(f"attempt must not be negative, not {attempt!r}")
        try:
            ceiling = min(self.initial * float(self.multiplier) ** attempt, self.maximum)
        except OverflowError:
            ceiling = self.maximum
        return ceiling - ceiling * self.jitter * random.random()  # noqa: S311 - not a secret

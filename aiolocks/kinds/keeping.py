"""The times of a kept value: for how long it is kept, and when it is replaced."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Final, final

from ..lock.acquirable import AS_CONFIGURED
from ..lock.clock import milliseconds
from ..lock.options import number, seconds

_MOST_EARLY: Final = 1000.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long a value is kept, and when it is replaced; see `SingleFlight`. Immutable.

    Invariant: without `keep` all of them are 0.

    Attributes:
        keep: Seconds for which a value is fresh.
        stale: Seconds after that for which it is given while it is being replaced.
        early: A factor of the run's duration: how far ahead of its end a value is replaced, at random.
        jitter: The share of `keep` that is random.
    """

    keep: float = 0.0
    stale: float = 0.0
    early: float = 0.0
    jitter: float = 0.0

    def but(self, *, keep: Any, stale: Any, early: Any, jitter: Any) -> Keeping:
        """The same with other times, where they are given.

        Raises:
            TypeError, ValueError: One is not as it should be.
        """
        changes: dict[str, float] = {}
        if keep is not AS_CONFIGURED:
            changes["keep"] = seconds("keep", keep)
        if stale is not AS_CONFIGURED:
            changes["stale"] = seconds("stale", stale)
        if early is not AS_CONFIGURED:
            changes["early"] = number("early", early, most=_MOST_EARLY)
        if jitter is not AS_CONFIGURED:
            changes["jitter"] = number("jitter", jitter, most=1.0)
        if not changes:
            return self
        if changes.get("keep", self.keep):
            return replace(self, **changes)
        for name in ("stale", "early", "jitter"):
            if changes.get(name):
                raise ValueError(f"{name}={changes[name]:g} is of no use without keep=: no value is kept")
        return Keeping()

    @property
    def kept(self) -> bool:
        """Whether a value is kept at all."""
        return self.keep > 0

    def fresh_ms(self) -> int:
        """The milliseconds for which one value is fresh: drawn again for each value."""
        return milliseconds(self.keep - self.keep * self.jitter * random.random())  # noqa: S311 - not a secret

    @property
    def stale_ms(self) -> int:
        return milliseconds(self.stale)

    def ahead(self) -> float:
        """How early a value counts as due, as a multiple of its cost: drawn again for each question.

        An exponential law, as of XFetch: Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache
        Stampede Prevention", Proceedings of the VLDB Endowment 8 (8), 2015.
        """
        return -self.early * math.log(1.0 - random.random()) if self.early else 0.0  # noqa: S311 - as above

    def __str__(self) -> str:
        others = ((name, getattr(self, name)) for name in ("stale", "early", "jitter"))
        return " ".join((f"keep={self.keep:g}", *(f"{name}={value:g}" for name, value in others if value)))

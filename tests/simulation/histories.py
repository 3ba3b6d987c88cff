"""What came of a schedule, and what must not come of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass
class Holding:
    """One lease, as its client saw it; times of the world."""

    invoked: float
    granted: float
    fencing_token: int
    end: float


def two_holders(holdings: list[Holding]) -> bool:
    """Whether two relied on it at a time."""
    held = sorted((holding.granted, holding.end) for holding in holdings)
    latest = float("-inf")
    for granted, end in held:
        if granted < latest:
            return True
        latest = max(latest, end)
    return False


def falling_token(holdings: list[Holding]) -> bool:
    """Whether a lease that was asked for after another one was had does not have the larger fencing token."""
    ordered = sorted(holdings, key=lambda holding: holding.granted)
    for index, earlier in enumerate(ordered):
        for later in ordered[index + 1 :]:
            if later.fencing_token == earlier.fencing_token:
                return True
            if earlier.granted < later.invoked and later.fencing_token < earlier.fencing_token:
                return True
    return False


def tokens_out_of_order(holdings: list[Holding]) -> bool:
    """Whether the tokens of leases do not rise in the order in which they were had."""
    ordered = sorted(holdings, key=lambda holding: holding.granted)
    return any(a.fencing_token >= b.fencing_token for a, b in pairwise(ordered))

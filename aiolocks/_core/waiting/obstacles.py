"""The obstacle that keeps a wait from ending: its holders, and whether the waiting task itself is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..entered import held

if TYPE_CHECKING:
    from ..._holders import HolderInfo
    from ..._transport import Refused
    from ..claim import Claim
    from ..entered import Inside
    from ..possession import Possession
    from .queue import Gate


def own_in_the_way(
    claim: Claim, gate: Gate, inside: Inside, refusal: Refused | None, *, lasting: bool
) -> Possession | None:
    """The possessions of the waiting task itself that exclude the claim.

    Of the leases that the task has entered (`inside`), only those that do not end by themselves, if
    `lasting`. `refusal` is the last one of the claim itself; that of its gate is as good, and may be newer.
    """
    own = [one for one in held(inside, lasting=lasting) if one.claim.owner != claim.owner]
    for possession in own:
        if gate.here.closed and possession.claim in gate.here:
            return possession
    newest = gate.refusal or refusal
    if newest is None or not claim.excluded_by([possession.claim for possession in own], newest):
        return None
    return own[-1]


def holders(
    kind: str, claim: Claim, gate: Gate, refusal: Refused | None, now: float
) -> tuple[HolderInfo, ...]:
    """The holders that the claim waits for: a task of this session, or those that the last refusal named."""
    from ..holders import held_here, told_by  # noqa: PLC0415 - only where a wait is long or fails

    here, newest = gate.here, gate.refusal or refusal
    if here.closed and here.first is not None:
        return (held_here(here.first, here.possession, now),)
    return () if newest is None else told_by(kind, claim, newest)

"""A lock that is taken by force: the holder that had it, and the one that has it now, or who has freed it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .._holders import HolderInfo, in_words
from .._visible import visible
from ..transport.steps.lock import told_lock
from ..transport.steps.snapshots import of_nobody
from .holders import described_in, holder_info, who_in

if TYPE_CHECKING:
    from ..transport import Granted
    from .lease import Claim


_OPERATOR: Final = 200
"""Characters of an operator's name that holders are told."""


def holder_told(lease: bytes, now_us: int = -1) -> HolderInfo | None:
    """The holder of a lease 'token:fencing token:metadata'; None of one that had no holder or is not ours.

    `now_us` is the server's time, if it is known for how long the lease has been held.
    """
    holder = told_lock(-1, lease)
    if holder is None or of_nobody(holder):
        return None
    return holder_info("", holder, now_us, described_in(holder.metadata) or {})


def loser_and_thief(claim: Claim, grant: Granted) -> tuple[HolderInfo, HolderInfo] | None:
    """The holder from which that grant was taken, and the one that has it now; None if it had no holder."""
    loser = holder_told(grant.lost)
    thief = holder_told(f"{claim.owner}:{grant.fencing_token}:{claim.metadata}".encode())
    return None if loser is None or thief is None else (loser, thief)


def operator_json(by: str | None) -> str:
    """The operator in the metadata of a mark, as `Description` takes further fields.

    Raises:
        TypeError, ValueError: It is no name.
    """
    if by is None:
        return ""
    if not isinstance(by, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"by must be None or a str, not {by!r}")
    if not by:
        raise ValueError("by must not be empty: None for nobody in particular")
    return f',"by":{json.dumps(by[:_OPERATOR])}'


def forced(described: dict[str, Any]) -> str:
    """The reason of a loss: the lease was released by force, by the operator whom these metadata tell of."""
    by = described.get("by")
    if isinstance(by, str) and by:
        return f"it was released by force, by {visible(by[:_OPERATOR])}"
    who = HolderInfo(lease_id="", **who_in(described))
    return f"it was released by force, {in_words((who,))}" if who.host else "it was released by force"


def why_stolen(lease: bytes, fencing_token: int) -> tuple[str, HolderInfo | None] | None:
    """Why the lease with that token is lost to the holder of another one, which has taken its place by force.

    With that holder, if there is one; None if it was not lost so.
    """
    holder = told_lock(-1, lease)
    if holder is not None and of_nobody(holder) and (holder.fencing_token or 0) >= fencing_token:
        return forced(described_in(holder.metadata) or {}), None
    thief = holder_told(lease)
    # An owner that took it again may find the mark of an earlier loss.
    if thief is None or (thief.fencing_token or 0) <= fencing_token:
        return None
    return stolen_by(thief), thief


def stolen_by(thief: HolderInfo) -> str:
    """The reason of a loss to that holder."""
    return f"it was stolen {in_words((thief,))}"

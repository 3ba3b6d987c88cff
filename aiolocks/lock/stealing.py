"""A lock that is taken by force: the holder that had it, and the one that has it now, or who has freed it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .._holders import HolderInfo, in_words
from .._visible import visible
from ..transport.commands.families.locks import told_lock
from ..transport.commands.families.snapshots import of_nobody
from .holders import described_in, holder_info, who_in

if TYPE_CHECKING:
    from ..transport import Granted
    from .claim import Claim
    from .engine import Engine
    from .lease import Possession


_OPERATOR: Final = 200
"""Characters of an operator's name that holders are told."""


def holder_in(lease: bytes, now_us: int = -1) -> HolderInfo | None:
    """The holder of a lease 'token:fencing token:metadata'; None of one that nobody held, or is not ours.

    `now_us` is the server's time, if it is known for how long the lease has been held.
    """
    holder = told_lock(-1, lease)
    if holder is None or of_nobody(holder):
        return None
    return holder_info("", holder, now_us, described_in(holder.metadata) or {})


def tell_loser(engine: Engine, claim: Claim, grant: Granted) -> None:
    """The server tells no session of what that session has done: a holder of this one learns it here."""
    loser = holder_in(grant.lost)
    thief = holder_in(f"{claim.owner}:{grant.fencing_token}:{claim.metadata}".encode())
    if loser is None or thief is None:
        return
    owner = grant.lost.partition(b":")[0].decode()
    for possession in engine.watchdog.possessions():
        if possession.claim.owner == owner and possession.fencing_token == loser.fencing_token:
            _lose(possession, thief)


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


def lost_to(possession: Possession, lease: bytes) -> bool:
    """Whether it is lost to the holder of that lease, which has taken its place by force, or was freed."""
    holder = told_lock(-1, lease)
    if holder is not None and of_nobody(holder) and (holder.fencing_token or 0) >= possession.fencing_token:
        possession.lose(forced(described_in(holder.metadata) or {}))
        return True
    thief = holder_in(lease)
    # An owner that took it again may find the mark of an earlier loss.
    if thief is None or (thief.fencing_token or 0) <= possession.fencing_token:
        return False
    _lose(possession, thief)
    return True


def _lose(possession: Possession, thief: HolderInfo) -> None:
    possession.lose(f"it was stolen {in_words((thief,))}", thief)

"""A lock that is taken by force: the holder that had it, and the one that has it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._holders import in_words
from .._transport.commands.families.locks import told_lock
from .._transport.commands.families.snapshots import of_nobody
from .holders import described_in, holder_info

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .._transport import Granted
    from .claim import Claim
    from .engine import Engine
    from .possession import Possession


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


def lost_to(possession: Possession, lease: bytes) -> bool:
    """Whether it is lost to the holder of that lease, which has taken its place by force."""
    thief = holder_in(lease)
    # An owner that took it again may find the mark of an earlier loss.
    if thief is None or (thief.fencing_token or 0) <= possession.fencing_token:
        return False
    _lose(possession, thief)
    return True


def _lose(possession: Possession, thief: HolderInfo) -> None:
    possession.lose(f"it was stolen {in_words((thief,))}", thief)

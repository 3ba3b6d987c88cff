"""A lock that is taken by force: the holder that had it, and the one that has it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._transport.commands.families.locks import told_lock
from .._transport.commands.families.snapshots import of_nobody
from .holders import described_in, holder_info

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .._transport import Granted
    from .claim import Claim
    from .engine import Engine


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
            possession.lose_to(thief)

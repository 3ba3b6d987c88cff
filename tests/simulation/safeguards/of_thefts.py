"""Safeguards of locks that are taken by force, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python, together

_KINDS = ("steals",)

OF_THEFTS: dict[str, Safeguard] = {
    "steal: a larger token": Safeguard(
        "A lease that was taken by force has a larger fencing token than the one before.",
        together(
            lua(
                "lock_steal",
                without="mint(fence, MICROSECONDS, ARGV[3])",
                instead="(held or ':7:'):match(':(%d+):')",
            ),
            lua(
                "reentrant_steal",
                without="minted = mint(fence, MICROSECONDS, ARGV[3])",
                instead="minted = minted or 7",
            ),
        ),
        _KINDS,
    ),
    "steal: from its holder": Safeguard(
        "The holder before has no permit any more.",
        lua("permits_steal", without="drop(held)"),
        _KINDS,
    ),
    "steal: its own lease alone": Safeguard(
        "The release of the holder before does not free the lease that has taken its place.",
        together(
            lua(
                "lock_release",
                without="if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then",
                instead="if held then",
            ),
            lua(
                "reentrant_release",
                without="if deadline_of(ARGV[1]) then",
                instead="if redis.call('EXISTS', lock) == 1 then",
            ),
        ),
        _KINDS,
    ),
    "steal: renews its own lease alone": Safeguard(
        "The renewal of the holder before does not prolong the lease that has taken its place.",
        lua(
            "lock_renew",
            without="if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':'",
            instead="if not held",
        ),
        _KINDS,
    ),
    "steal: waiters stay": Safeguard(
        "Those that wait keep their places behind the thief.",
        lua(
            "lock_steal",
            "reentrant_steal",
            without="redis.call('DEL', lock, nest)",
            instead="redis.call('DEL', lock, nest, queue)",
        ),
        _KINDS,
    ),
    "steal: of all leases of an owner": Safeguard(
        "A lock that is taken from an owner ends with the lease of the thief.",
        lua("reentrant_steal", without="redis.call('DEL', lock, nest)", instead="redis.call('DEL', lock)"),
        _KINDS,
    ),
    "steal: deleted first": Safeguard(
        "The key is deleted before it is written, so that events tell its holder of the loss.",
        lua("lock_steal", without="redis.call('DEL', lock, nest)"),
        _KINDS,
    ),
    "steal: the mark": Safeguard(
        "The server remembers for the holder before which lease has taken its place.",
        lua(
            "lock_steal",
            "reentrant_steal",
            "permits_steal",
            without="redis.call('HSET', mark, token, thief)",
        ),
        _KINDS,
    ),
    "steal: told by a release": Safeguard(
        "A release that comes too late tells which lease has taken its place.",
        python("lock.lease:Possession._finish", without="self.thief and", instead="False and"),
        _KINDS,
    ),
    "steal: told by a renewal": Safeguard(
        "A renewal that comes too late tells which lease has taken its place.",
        python(
            "lock.lease:Possession.taken_away",
            without="isinstance(answer, Stolen) and",
            instead="False and",
        ),
        _KINDS,
    ),
    "steal: told in the session": Safeguard(
        "A session tells its own task what another of its tasks has taken from it.",
        python(
            "lock.lease:Binding.tell_loser",
            without="possession.lose(stolen_by(thief), thief)",
            instead="pass",
        ),
        _KINDS,
    ),
    "steal: told in the same turn": Safeguard(
        "The session also tells a task whose grant came with the answer to the thief.",
        python("lock.lease:Binding.acquire", without="self.tell_loser(lease, grant)", instead="pass"),
        _KINDS,
    ),
    "steal: sent again": Safeguard(
        "A thief whose first answer was lost takes nothing from itself.",
        together(
            lua("lock_steal", without="if held_by(token, held) then", instead="if false then"),
            lua("permits_steal", without="if not permits then", instead="if true then"),
        ),
        _KINDS,
        faulty=True,
        sorts=("lost answer", "cut"),
        unseen="it takes it from itself, with a larger token; only listeners hear of a theft that was none",
    ),
}

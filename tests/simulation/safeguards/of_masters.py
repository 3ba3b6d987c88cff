"""Safeguards of Redlock, which a majority of several masters keeps, each as code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python, together

_ACQUIRING = "transport.quorum.acquiring:Acquiring"
_REDLOCK = ("redlock",)

OF_MASTERS: dict[str, Safeguard] = {
    "masters: a majority": Safeguard(
        "More than half of the masters agree; half of them is not enough.",
        python(
            "transport.quorum.operations:QuorumOperation.__init__",
            without="len(labels) // 2 + 1",
            instead="len(labels) // 2",
        ),
        _REDLOCK,
    ),
    "masters: of all": Safeguard(
        "The majority is one of all masters, not of those that answer.",
        python(
            "transport.quorum.operations:QuorumOperation.failed",
            without="self._faults[master] = fault",
            instead="self._faults[master] = fault; "
            "self.majority = (len(self._labels) - len(self._faults)) // 2 + 1; "
            "self.enough_against = len(self._labels) - self.majority + 1",
        ),
        _REDLOCK,
        faulty=True,
    ),
    "masters: written back": Safeguard(
        "The fencing token of a lease is written back to a majority before the lease is given.",
        together(
            python(
                f"{_ACQUIRING}._propose",
                without="self._proposal += 1",
                instead="self.outcome = Granted(self._fencing_token, 0)\n    return self._leave_queues()",
            ),
            python(
                f"{_ACQUIRING}._confirmed_or_asked",
                without="return [] if sealed else self._tell((master,))",
                instead="return []",
            ),
        ),
        _REDLOCK,
    ),
    "masters: taken by a majority": Safeguard(
        "Only a master that has taken the fencing token which its vote proposes confirms it by that.",
        python(f"{_ACQUIRING}._confirmed_or_asked", without="if sealed:", instead="if True:"),
        _REDLOCK,
    ),
    "masters: taken if it is larger": Safeguard(
        "A master takes a fencing token with its vote only if that is larger than its fence.",
        lua("lock_acquire", without="tonumber(proposed) >= least", instead="tonumber(proposed) > 0"),
        _REDLOCK,
    ),
    "masters: taken beside a lost fence": Safeguard(
        "A master without a fence takes no fencing token with its vote that is less than its clock.",
        lua("lock_acquire", without="last and last + 1 or now", instead="(last or 0) + 1"),
        _REDLOCK,
        faulty=True,
    ),
    "masters: none ahead of the clocks": Safeguard(
        "No fencing token is proposed that lies ahead of the masters' clocks: they may lose their fences.",
        python(
            "transport.quorum.quorum:Quorum.time",
            without="int(times[-1 - most])",
            instead="int(times[-1 - most]) + 1_000_000",
        ),
        _REDLOCK,
        faulty=True,
    ),
    "masters: written back where it is carried": Safeguard(
        "Only a master that carries the lease confirms its fencing token.",
        together(
            python(
                f"{_ACQUIRING}._propose",
                without="for master in sorted(carrying)",
                instead="for master in range(len(self._labels))",
            ),
            lua(
                "redlock_seal",
                without="if holder ~= token then return 0 end\nif ARGV[4]",
                instead="if holder ~= token then\n"
                "  if (tonumber(redis.call('GET', fence) or 0) or 0) < tonumber(sealed) then\n"
                "    redis.call('SET', fence, sealed, 'PX', ARGV[3])\n"
                "  end\n"
                "  return 1\n"
                "end\nif ARGV[4]",
            ),
        ),
        _REDLOCK,
        faulty=True,
    ),
    "masters: no less than minted": Safeguard(
        "A master that has minted a larger fencing token for the lease does not confirm a smaller one.",
        lua("redlock_seal", without="tonumber(minted) > tonumber(sealed)", instead="false"),
        _REDLOCK,
        faulty=True,
        unseen="the client proposes no less than it knows; no vote comes between an answer and its proposal",
    ),
    "masters: the fence": Safeguard(
        "A fencing token that is written back raises the fence.",
        lua(
            "redlock_seal",
            without="(tonumber(redis.call('GET', fence) or 0) or 0) < tonumber(sealed)",
            instead="false",
        ),
        _REDLOCK,
    ),
    "masters: proposed again": Safeguard(
        "A confirmation of an earlier proposal does not count for a larger one.",
        python(f"{_ACQUIRING}._propose", without="self._confirmed.clear()", instead="pass"),
        _REDLOCK,
        faulty=True,
    ),
    "masters: taken back": Safeguard(
        "Votes for a lease that gets no majority are taken back.",
        python(f"{_ACQUIRING}._take_back", without="if master not in self._refused", instead="if False"),
        _REDLOCK,
    ),
    "masters: leaves all queues": Safeguard(
        "A waiter that gets in leaves its place also on masters that have not granted.",
        python(f"{_ACQUIRING}._leave_queues", without="self._leave is None", instead="True"),
        _REDLOCK,
    ),
    "masters: leaves queues that come late": Safeguard(
        "A waiter that got in leaves the queue of a master that refuses it after that.",
        together(
            python(f"{_ACQUIRING}.seats", without="self._leaves", instead="False"),
            python(f"{_ACQUIRING}.replied", without="if self._leaves:", instead="if False:"),
        ),
        _REDLOCK,
        faulty=True,
        unseen="such a seat stays on a minority of the masters, and for 2 s: the other ones wake who waits",
    ),
    "masters: leaves queues late": Safeguard(
        "A waiter that lets go leaves its place also on a master whose confirmation is still under way.",
        python(f"{_ACQUIRING}.still_due", without="self._queued and", instead="False and"),
        _REDLOCK,
        faulty=True,
    ),
    "masters: one that was passed on": Safeguard(
        "A request sends nothing more by itself once another one of its lease came after it.",
        python(
            "transport.quorum.quorum:Round._go_on",
            without="if self._passed_on or not",
            instead="if not",
        ),
        _REDLOCK,
        covered_by="masters: put back as a majority has it",
    ),
    "masters: put back as a majority has it": Safeguard(
        "A renewal puts a lease back only with what it has read on a majority of the masters.",
        python(
            "transport.quorum.keeping:Renewing._heal",
            without="self._read < self.majority or ",
            instead="",
        ),
        _REDLOCK,
        faulty=True,
        covered_by="masters: one that was passed on",
    ),
    "masters: settled": Safeguard(
        "A vote that a lease gets after its adoption is taken back.",
        python("transport.quorum.quorum:Quorum._settle", without="round_.settle(settling)", instead="pass"),
        _REDLOCK,
        unseen="such a vote stands on one master, and keeps nobody out unless another one is away too; "
        "the docs let a master that is away explain a wait for longer",
    ),
}

"""Safeguards of leases that stay with their session between uses, each as code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python, together

_KINDS = ("cached",)
_TOLD = "lock.tenure:Tenure.told"

OF_TENURES: dict[str, Safeguard] = {
    "cache: a recall is heard": Safeguard(
        "A session lets go of a lease that nobody uses when another one asks for it.",
        python(_TOLD, without="if self.state is TenureState.OVER or not self.keeps:", instead="if True:"),
        _KINDS,
    ),
    "cache: none after a recall": Safeguard(
        "A lease that was asked for while a task was inside is released after that.",
        together(
            python("lock.tenure:KeptPossession.begin_release", without="and tenure.keeps ", instead=""),
            python("lock.tenure:Tenure.serves", without="not self.keeps or", instead=""),
            python("lock.queue:Gate.alone", without="or self._in_turn", instead=""),
        ),
        _KINDS,
    ),
    "cache: the deadline counts": Safeguard(
        "A lease that is kept serves nobody when little is left of its ttl.",
        together(
            python(
                "lock.tenure:Tenure.lasts",
                without="until = term.deadline - self._margin",
                instead="until = math.inf",
            ),
            python("lock.tenure:Tenure.taken", without="term.deadline - self._margin", instead="math.inf"),
        ),
        _KINDS,
        faulty=True,
        sorts=("freeze",),
        unseen="a timer ends it first, but in a task that blocks its loop and then takes it, without an "
        "await between: here, a step takes no time; a test on a real server does that",
    ),
    "cache: a number is given once": Safeguard(
        "Each lease has a fencing token of its own.",
        python(
            "lock.tenure:Tenure.taken", without="number = self.number + 1", instead="number = self.number"
        ),
        _KINDS,
    ),
    "cache: the block is reserved": Safeguard(
        "The fence is at least each number that the session may give.",
        lua("lock_acquire", without="minted + numbers - 1", instead="minted"),
        _KINDS,
        faulty=True,
        sorts=("kill", "clock back"),
    ),
    "cache: none beyond the block": Safeguard(
        "A session gives no number that it has not reserved.",
        together(
            python("lock.tenure:Tenure.serves", without="or self.number >= self._last", instead=""),
            python("lock.tenure:Tenure.taken", without="number > self._last", instead="False"),
        ),
        _KINDS,
        faulty=True,
        sorts=("kill", "clock back"),
    ),
    "cache: what was given is not given back": Safeguard(
        "A release gives back the numbers of its block that were not used, and no other.",
        together(
            lua(
                "lock_release",
                without="tonumber(given) > tonumber(first) and given or first",
                instead="first",
            ),
            lua(
                "locks_release",
                without="tonumber(ARGV[i + 2]) > tonumber(first) and ARGV[i + 2] or first",
                instead="first",
            ),
        ),
        _KINDS,
        faulty=True,
        sorts=("clock back",),
    ),
    "cache: who has a seat has asked": Safeguard(
        "The request that seats a waiter asks the session that keeps the lock, in the same script.",
        lua("lock_acquire", without="if mark == '1' then", instead="if mark == '1' and not has('w') then"),
        _KINDS,
    ),
    "cache: not where others wait": Safeguard(
        "A lease may be kept only if nobody stands in the queue when it is granted.",
        lua("lock_acquire", without="elseif not held and not awaited and", instead="elseif not held and"),
        _KINDS,
    ),
    "cache: the grant ends in a read": Safeguard(
        "The server tells of each change of the key from the grant on.",
        lua(
            "lock_acquire",
            without="      redis.call('GET', lock)\n      return {1, first",
            instead="      return {1, first",
        ),
        _KINDS,
    ),
    "cache: so does the renewal": Safeguard(
        "The server tells of each change of the key after a renewal.",
        lua("lock_renew_kept", without="if not redis.call('GET', lock) then return 0 end"),
        _KINDS,
    ),
    "cache: a push before its task runs": Safeguard(
        "A recall that comes between the grant and its task counts.",
        python(
            _TOLD,
            without="self.keeps = False\n    if self.state",
            instead="self.keeps = self.state is TenureState.ASKING\n    if self.state",
        ),
        _KINDS,
    ),
    "cache: no connection, no cache": Safeguard(
        "What a session keeps ends with the connection on which it would be recalled.",
        python(_TOLD, without="or not self.keeps:", instead="or not self.keeps or not changed:"),
        _KINDS,
        faulty=True,
        sorts=("cut",),
    ),
    "cache: a renewal tells": Safeguard(
        "An asker is heard without a push: the renewal says so.",
        python("lock.tenure:Tenure.renewed", without="if asked and self.keeps:", instead="if False:"),
        _KINDS,
        faulty=True,
        sorts=("lost pushes",),
    ),
    "cache: a session's own requests": Safeguard(
        "Another request of the same session for the name ends the caching.",
        python(
            "lock.tenure:Tenure.pass_by",
            without="if not self.keeps or",
            instead="if True or",
        ),
        _KINDS,
    ),
    "cache: one holder": Safeguard(
        "A lease that a task has from its session is not there for another one.",
        together(
            python(
                "lock.tenure:Tenure.taken",
                without="    del kept.idle[self]\n    gate.asking = None\n",
                instead="",
            ),
        ),
        _KINDS,
    ),
    "cache: nothing after the release": Safeguard(
        "A lease serves nobody once its release was sent.",
        python("lock.tenure:Tenure.end", without="self.over()", instead="self.idle_until += 1000"),
        _KINDS,
    ),
    "cache: the release wakes": Safeguard(
        "The release of a lease that nobody uses wakes the waiter that has asked for it.",
        python("lock.tenure:Tenure.release", without="ring=ring", instead="ring=False"),
        _KINDS,
    ),
    "cache: an end": Safeguard(
        "A lease that nobody uses ends after `cache` seconds.",
        python(
            "lock.tenure:Keep.now_idle",
            without="if self._timer is None or tenure.idle_until < self._timer.when():",
            instead="if False:",
        ),
        _KINDS,
    ),
    "cache: an end with the session": Safeguard(
        "A session that closes keeps nothing.",
        python("lock.tenure:Keep.close", without="self.end_all()", instead="pass"),
        _KINDS,
    ),
    "cache: a try has an answer": Safeguard(
        "A single try is not refused for a lease that nobody uses.",
        python("lock.waiter:Attempt._refused", without="refusal.asked and", instead="False and"),
        _KINDS,
    ),
}

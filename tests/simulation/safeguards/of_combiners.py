"""Safeguards of combiners, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python

COMBINERS = ("combiner",)

OF_COMBINERS: dict[str, Safeguard] = {
    "combiners: the run of the token": Safeguard(
        "Only the run that holds the name acknowledges its batch.",
        lua("combiner_ack", without="if not is_last then", instead="if false then"),
        COMBINERS,
        faulty=True,
    ),
    "combiners: the last run": Safeguard(
        "A run whose lease has ended counts only if no other run has begun since.",
        lua("combiner_", without="and redis.call('GET', fence) == minted", instead="and true"),
        COMBINERS,
        faulty=True,
        sorts=("freeze", "black hole"),
        unseen="it takes two lost leases of one batch in a row; the tests of the scripts look at it",
    ),
    "combiners: acknowledged first": Safeguard(
        "A caller has its answer only when its batch is acknowledged.",
        python(
            "kinds.combiner:Combining._have_ended",
            without="item.ours = outcome",
            instead="item.settle(outcome)",
        ),
        COMBINERS,
        faulty=True,
        sorts=("freeze", "black hole", "half open"),
    ),
    "combiners: once": Safeguard(
        "Items that are sent again are left once.",
        lua("combiner_", without="if known_first then", instead="if false then"),
        COMBINERS,
        faulty=True,
        sorts=("lost answer", "cut"),
    ),
    "combiners: the same batch": Safeguard(
        "A batch that was begun, and is not acknowledged, is the next one again.",
        lua(
            "combiner_",
            without="above(done), whole(upto)) > 0 then return end",
            instead="above(done), whole(upto)) < 0 then return end",
        ),
        COMBINERS,
    ),
    "combiners: attempts": Safeguard(
        "An attempt that has failed counts once, and the death of a runner is none.",
        lua("combiner_ack", without="'attempt', attempt + 1,", instead="'attempt', attempt + 2,"),
        COMBINERS,
    ),
    "combiners: news": Safeguard(
        "Who waits for an answer is told of it.",
        lua("combiner_ack", without="local rung = wake_upto(queue, whole(done))", instead="local rung = {}"),
        COMBINERS,
    ),
    "combiners: the place": Safeguard(
        "A waiter stands in the queue by its first item: so the end of its batch wakes it.",
        lua(
            "combiner_acquire",
            without="redis.call, 'ZADD', queue, 'NX', lowest",
            instead="redis.call, 'ZSCORE', queue",
        ),
        COMBINERS,
    ),
    "combiners: the next": Safeguard(
        "The end of a batch wakes one of the waiters for the next one.",
        lua("combiner_ack", without="if waiting > 0 then rung[#rung + 1] = wake(queue) end", instead=""),
        COMBINERS,
    ),
    "combiners: what was asked for": Safeguard(
        "An answer says nothing of items that were left since it was asked for.",
        lua("combiner_acquire", without="math.min(settled, newest)", instead="settled"),
        COMBINERS,
    ),
    "combiners: room": Safeguard(
        "No more items wait than may.",
        lua(
            "combiner_",
            without="math.min((#ARGV - at - 3) / 2, tonumber(ARGV[at]) - waiting)",
            instead="(#ARGV - at - 3) / 2",
        ),
        COMBINERS,
    ),
    "combiners: numbers": Safeguard(
        "An item has a larger number than all before it, also when the server's clock was set back.",
        lua(
            "combiner_",
            without="math.max(MICROSECONDS, last + 1, done + 1, newest + 1)",
            instead="MICROSECONDS",
        ),
        COMBINERS,
        faulty=True,
        sorts=("clock back",),
    ),
    "combiners: what is lost": Safeguard(
        "Who waits for an item that the server has lost is told so.",
        lua("combiner_acquire", without="whole(ends)) == 0 then", instead="whole(ends)) < 0 then"),
        COMBINERS,
        faulty=True,
        sorts=("flush", "empty restart"),
    ),
    "combiners: what is not known": Safeguard(
        "Who waits for an item that is not known to be done is not told that it was.",
        python(
            "kinds.combiner:Combining._hear",
            without="LockLostError(LABEL, self._name, _NO_ANSWER)",
            instead="ResultNotKeptError(self._name, _NO_ANSWER, what=LABEL)",
        ),
        COMBINERS,
        faulty=True,
        sorts=("flush", "empty restart"),
    ),
    "combiners: who was dropped": Safeguard(
        "Who waits for an item that was dropped is told so.",
        lua("combiner_", without="flag == 'w' and 'd'", instead="nil"),
        COMBINERS,
        faulty=True,
        sorts=("freeze", "black hole"),
    ),
    "combiners: a bound": Safeguard(
        "A batch has no more items than one may have.",
        lua("combiner_", without="garbage + most - 1, garbage + most - 1", instead="-1, -1"),
        COMBINERS,
    ),
}

"""Small schedules that go well, but fail without a safeguard that a drawn schedule seldom needs."""

from __future__ import annotations

from tests.simulation.found import FOUND
from tests.simulation.found_in_listening import IN_LISTENING
from tests.simulation.found_in_redlock import BROKEN
from tests.simulation.small import NOISY, QUIET, READER, UPGRADABLE, crew, fault, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import FAR, NEAR, STEADY_FAR
from tests.simulation.world.schedule import Schedule

CUT_WHILE_IT_IS_RUNG = schedule(
    "lock",
    1,
    60.0,
    crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.3003)),
    crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.1), poll=60.0),
    faults=(fault("cut", "p1", 0.3),),
)
"""The bell of p1 is rung while it has no connection, and it polls each minute."""

LONG_WAIT_OF_TWO = schedule(
    "fairlock",
    7,
    5.0,
    crew("tracking", NEAR, one("p0.w0.r0", 0.0, 14.0)),
    crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.05)),
    crew("tracking", NEAR, one("p2.w0.r0", 0.45, 0.05)),
)
"""If the queue is gone after 10 s, both are seated again, in the order in which they notice."""

CACHED, KEPT_FOR_LONG = Want(cache=0.3), Want(cache=5.0)
QUICK, THREE_QUICK = Want(names=("quick",)), Want(names=("quick",), permits=3)
SLOW, THREE_SLOW = Want(names=("slow",)), Want(names=("slow",), permits=3)
QUICK_AND_SLOW = Want(names=("quick", "slow"))
SPREAD_OUT = Want(names=("x",))
"""In the cluster, the node `c0` has it."""
X_AND_Z, ONLY_Z = Want(names=("x", "z")), Want(names=("z",))
"""The node `b0` has z, and is asked first."""

PLANTED: dict[str, tuple[Schedule, str]] = {
    # The slot of z has granted when that of x refuses; nobody but p1 wants anything after that.
    "several slots: in doubt": (
        schedule(
            "cluster-multilock",
            1,
            60.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=X_AND_Z),
                one("p0.w0.r1", 0.8, 0.1, want=X_AND_Z),
            ),
            crew("tracking", NEAR, one("p1.w1.r0", 1.7, 0.05, want=ONLY_Z)),
            faults=(fault("out of memory", "c0", 0.7, 1.0),),
        ),
        "while p1.w1.r0 waits",
    ),
    # The node of x mints a number from before the last lease of z.
    "several slots: the largest token": (
        schedule(
            "cluster-multilock",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=X_AND_Z),
                one("p0.w0.r1", 0.5, 0.1, want=ONLY_Z),
                one("p0.w0.r2", 0.0, 0.1, want=X_AND_Z),
            ),
            faults=(fault("clock back", "c0", 0.4, amount=5.0),),
        ),
        "the later lease has no larger fencing token",
    ),
    # p2 stands behind p1, the only one near the front; p3 comes when the bell of p2 would be over.
    "far from the front: signs": (
        schedule(
            "far-fairlock",
            1,
            60.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 8.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.05)),
            crew("tracking", NEAR, one("p2.w0.r0", 0.2, 0.05)),
            crew("tracking", NEAR, one("p3.w0.r0", 5.22, 0.05)),
        ),
        "overtaken in the queue: p2.w0.r0 and p3.w0.r0",
    ),
    # The server does not hear that p0 has ended its run, and p1 has its turn when the lease of p0 is over.
    "combiners: acknowledged first": (
        schedule(
            "combiner",
            2,
            1.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.4)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.3, 0.05), poll=0.5),
            faults=(fault("half open", "p0", 0.05, 6.0),),
        ),
        "runs p0.w0.r0#0 again",
    ),
    # p1 connects while the server, out of memory, refuses to subscribe.
    "a subscription that is made later": (
        schedule(
            "lock",
            1,
            5.0,
            crew("keyspace", NEAR, one("p0.w0.r0", 0.0, 11.6)),
            crew("keyspace", NEAR, one("p1.w0.r0", 0.3, 0.05), poll=60.0, first_poll=60.0),
            faults=(fault("out of memory", "redis", 0.2, 1.0),),
        ),
        "while p1.w0.r0 waits",
    ),
    # A deployment is taken back after two seconds.
    "schedule: comes back": (
        schedule(
            "schedule",
            2,
            1.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.4), one("p0.w0.r1", 3.2, 0.5)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.9, 2.2)),
        ),
        "from before its definition",
    ),
    # The node that p1 listens to publishes nothing of what has gone with its slot.
    "a slot that leaves": (
        schedule(
            "cluster-lock",
            1,
            5.0,
            crew("keyspace", NEAR, one("p0.w0.r0", 0.0, 3.5, want=SPREAD_OUT)),
            crew("keyspace", NEAR, one("p1.w0.r0", 0.1, 0.05, want=SPREAD_OUT), poll=60.0, first_poll=60.0),
            faults=(fault("move at once", "c0", 0.3, 0.05),),
        ),
        "while p1.w0.r0 waits",
    ),
    # A task of p0 works on for nearly 3 s after its session was closed, and its lease lasts for 2 s.
    "session: a task that still works keeps its lock": (
        schedule(
            "session",
            1,
            2.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.34)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.05)),
        ),
        "enters while p0.w0.r0 still works",
    ),
    # A task of p0 is done when its session is closed.
    "session: what no code works under is given back": (
        schedule("session", 1, 2.0, crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.22))),
        "was not given back",
    ),
    # The answer to the try of p0 and the end of its task come in one turn, for p0 was stopped meanwhile.
    "undo of a grant": (
        schedule(
            "lock",
            1,
            5.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.02, 1.0, cancel=0.01)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.0)),
            faults=(fault("freeze", "p0", 0.02315, 0.05),),
        ),
        "free for",
    ),
    # One reader of p0 gets in by the place that it shares with the other one, which is cancelled meanwhile.
    "place given up": (
        schedule(
            "rwlock",
            1,
            5.0,
            crew(
                "tracking",
                STEADY_FAR,
                one("p0.w0.r0", 0.1, 0.0, want=READER),
                one("p0.w1.r0", 0.1, 0.0, want=READER, cancel=0.597),
            ),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.0, 0.4)),
        ),
        "left behind",
    ),
    # p0 has asked and is cancelled when its connection breaks; the server executes that half a second later.
    "the old connection": (
        schedule(
            "lock",
            1,
            5.0,
            crew("tracking", STEADY_FAR, one("p0.w0.r0", 0.1, 0.0), one("p0.w0.r1", 0.3, 0.5, cancel=0.03)),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 1.0, 0.0)),
            faults=(fault("half cut", "p0", 0.303, amount=0.5),),
        ),
        "free for",
    ),
    "after a new connection": (CUT_WHILE_IT_IS_RUNG, "free for"),
    "a bell that is found rung": (CUT_WHILE_IT_IS_RUNG, "free for"),
    # p0 is stopped for longer than its lease lasts, right when the server has granted it.
    "late grant": (
        schedule(
            "lock",
            1,
            1.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.02, 0.5)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 1.0)),
            faults=(fault("freeze", "p0", 0.0232, 1.2),),
        ),
        "two holders",
    ),
    # The slot moves so slowly that a lease cannot wait for the end of that.
    "ASKING": (
        schedule(
            "cluster-lock",
            1,
            1.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 3.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.5)),
            faults=(fault("move", "c0", 0.3, 2.5),),
        ),
        "LockLostError",
    ),
    "mid-move": (
        schedule(
            "cluster-lock",
            1,
            1.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 5.0)),
            faults=(fault("move", "c0", 0.3, 4.0),),
        ),
        "LockLostError",
    ),
    # A failover loses the lease of p0, which is renewed several times before it would end.
    "a lease that is not known": (
        schedule(
            "sentinel-lock",
            1,
            20.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 22.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 1.0, 0.1), one("p1.w0.r1", 17.2, 0.1)),
            faults=(fault("lag", "m0", 0.0, 1.0), fault("planned failover", "m0", 0.1)),
        ),
        "two holders",
    ),
    # p1 stays with the old master, which has the lease of p0, and it does not.
    "two masters: left at once": (
        schedule(
            "sentinel-lock",
            3,
            60.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 9.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.8, 0.1)),
            faults=(fault("two masters", "m0", 0.02),),
        ),
        "two holders",
    ),
    # The lease of p0 does not reach the new master, and is not renewed for 20 s.
    "two masters: all are asked for": (
        schedule(
            "sentinel-lock",
            3,
            60.0,
            crew("poll", NEAR, one("p0.w0.r0", 0.0, 9.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.8, 0.1)),
            faults=(fault("two masters", "m0", 0.02),),
        ),
        "two holders",
    ),
    # The release of p0 does not reach the new master, and its lease would last for a minute.
    "a release comes again, behind Sentinel": (
        schedule(
            "sentinel-lock",
            1,
            60.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.5), one("p0.w0.r1", 9.0, 0.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 1.2, 0.0)),
            faults=(fault("two masters", "m0", 0.505),),
        ),
        "free for",
    ),
    "a release comes again": (
        schedule(
            "cluster-lock",
            4,
            60.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.5),
                one("p0.w0.r1", 0.8, 0.0, timeout=0.3),
                one("p0.w0.r2", 9.0, 0.0),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.6, 0.0)),
            faults=(fault("takeover", "c0", 0.52),),
        ),
        "free for",
    ),
    "rung before it listened": (
        FOUND["a waiter whose bell was rung four times before it listened polls"],
        "free for",
    ),
    "listening along: rung before": (
        FOUND["a waiter whose bell was rung four times before it listened polls"],
        "free for",
    ),
    "a seat that is given up while it is taken": (
        FOUND["a waiter that sits down hides that the bell was rung for one that was refused just before"],
        "free for",
    ),
    # A permit of p0 comes back while the request of p1.w1.r0 is on its way, which is refused.
    "asks again": (
        schedule(
            "semaphore",
            2,
            5.0,
            crew(
                "tracking",
                FAR,
                one("p0.w0.r0", 0.048, 0.027, want=Want(permits=2), timeout=0.0),
                one("p0.w0.r1", 0.0, 0.0, timeout=0.305),
            ),
            crew(
                "tracking",
                FAR,
                one("p1.w0.r0", 0.0, 0.0, want=Want(permits=3)),
                one("p1.w1.r0", 0.076, 0.027, want=Want(permits=3)),
            ),
        ),
        "free for",
    ),
    "listen: queue's ttl": (LONG_WAIT_OF_TWO, "overtaken"),
    "the safety poll": (LONG_WAIT_OF_TWO, "overtaken"),
    "requests behind a trial": (
        schedule(
            "cluster-lock",
            1,
            1.0,
            crew("keyspace", STEADY_FAR, one("p0.w0.r0", 0.02, 3.0)),
            faults=tuple(fault("move at once", "c0", at) for at in (0.772, 0.872, 1.282)),
        ),
        "LockLostError",
    ),
    "nest: looked at before": (
        FOUND["a release of a reentrant lock while its slot moves stops between its token and its lock"],
        "free for",
    ),
    "half a step": (
        FOUND["a release of a reentrant lock while its slot moves stops between its token and its lock"],
        "free for",
    ),
    "masters: one that was passed on": (
        FOUND["of two renewals under way, one puts the lease back where it was released"],
        "left behind",
    ),
    "masters: put back as a majority has it": (
        FOUND["of two renewals under way, one puts the lease back where it was released"],
        "left behind",
    ),
    "masters: leaves queues late": (
        FOUND["a waiter that releases at once keeps its place on a master that has not confirmed the lease"],
        "left behind",
    ),
    "deadlocks: a writer between lives": (
        FOUND["a writer whose process was killed counts as a part of a deadlock"],
        "told of a deadlock that there was not",
    ),
    # Tasks of p0 wait in line, and then the one of p1 asks, which is of another tenant.
    "limits: turns": (
        schedule(
            "limits",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                *(one(f"p0.w{task}.r0", 0.001 * task, 0.02, want=NOISY) for task in range(9)),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.02, 0.0, want=QUIET)),
        ),
        "turns in a row",
    ),
    # When p0 leaves, the planner of p2 and the reader of p1 are called. The planner asks first, and upgrades.
    "spans: calls": (
        schedule(
            "rwlock",
            1,
            5.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.4)),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.1, 0.1, want=READER)),
            crew("tracking", NEAR, one("p2.w0.r0", 0.2, 0.0, want=UPGRADABLE, doing="upgrade")),
        ),
        "passed a reader that was called",
    ),
    # p0 has renewed it, and nobody uses it when p1 asks.
    "cache: so does the renewal": (
        schedule(
            "cached",
            1,
            1.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=CACHED),
                one("p0.w0.r1", 0.01, 0.0, want=CACHED),
                one("p0.w0.r2", 0.01, 0.5, want=CACHED),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.62, 0.0, want=CACHED)),
        ),
        "free for",
    ),
    # The session that keeps x wants x and y at once.
    "cache: a session's own requests": (
        schedule(
            "cached",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=CACHED),
                one("p0.w0.r1", 0.01, 0.0, want=CACHED),
                one("p0.w0.r2", 0.15, 0.0, want=Want(names=("x", "y"), by="multilock"), timeout=0.0),
            ),
        ),
        "was refused, and nobody used it",
    ),
    # The loop of p0 needs 10 ms for a turn: the grant, and the news that p1 asks, come in one. That is the
    # first request of p1 with Python 3.12, and the second one with 3.11, whose connections take more turns.
    "cache: a push before its task runs": (
        schedule(
            "cached",
            2,
            20.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=KEPT_FOR_LONG),
                one("p0.w0.r1", 0.03, 0.0, want=KEPT_FOR_LONG),
                one("p0.w0.r2", 3.0, 0.0, want=Want(names=("y",))),
                busy=0.01,
            ),
            crew(
                "tracking",
                NEAR,
                one("p1.w0.r0", 0.0, 0.0, want=Want(names=("y",))),
                one("p1.w0.r1", 0.0944, 0.0, want=KEPT_FOR_LONG),
                one("p1.w1.r0", 0.1187, 0.0, want=KEPT_FOR_LONG),
            ),
        ),
        "free for",
    ),
    # Nobody uses it when the connection of p0 ends, on which it would be told that p1 asks.
    "cache: no connection, no cache": (
        schedule(
            "cached",
            2,
            20.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=KEPT_FOR_LONG),
                one("p0.w0.r1", 0.01, 0.0, want=KEPT_FOR_LONG),
                one("p0.w0.r2", 5.0, 0.0, want=Want(names=("y",))),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.52, 0.0)),
            faults=(fault("cut", "p0", 0.5), fault("no scripts", "redis", 8.0)),
        ),
        "free for",
    ),
    # p0 dies, and its lease ends; then the clock of the server is set back. p0 had taken it some times.
    "cache: the block is reserved": (
        schedule(
            "cached",
            2,
            1.0,
            crew("tracking", NEAR, *(one(f"p0.w0.r{use}", 0.01, 0.0, want=CACHED) for use in range(30))),
            crew("tracking", NEAR, one("p1.w0.r0", 2.0, 0.0)),
            faults=(fault("kill", "p0", 0.2), fault("clock back", "redis", 1.5, amount=5.0)),
        ),
        "fencing token",
    ),
    # Nobody has used it for its time, so it was released, and p1 has it when p0 asks.
    "cache: nothing after the release": (
        schedule(
            "cached",
            2,
            20.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=CACHED),
                one("p0.w0.r1", 0.03, 0.0, want=CACHED),
                one("p0.w0.r2", 0.6, 0.0, want=CACHED),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.5, 0.5)),
        ),
        "two holders",
    ),
    # p0 takes it again and again, and is not told that p1 asks.
    "cache: a renewal tells": (
        schedule(
            "cached",
            2,
            2.0,
            crew("tracking", NEAR, *(one(f"p0.w0.r{use}", 0.1, 0.01, want=CACHED) for use in range(50))),
            crew("tracking", NEAR, one("p1.w0.r0", 1.05, 0.0)),
            faults=(fault("lost pushes", "redis", 0.2, 0.86),),
        ),
        "was given what p0 keeps while p1.w0.r0 waits",
    ),
    "cache: a try has an answer": (
        schedule(
            "cached",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.01, 0.0, want=CACHED),
                one("p0.w0.r1", 0.01, 0.0, want=CACHED),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.2, 0.0, want=CACHED, timeout=0.0)),
        ),
        "was refused, and nobody used it",
    ),
    "armed on the second connection": (
        IN_LISTENING["a waiter with RESP2 listens for its bell before its second connection hears it"],
        "free for",
    ),
    # p0 dies as a reader. p1 reads on for a minute, and its renewals keep the marks of all readers alive.
    # p1 lets go later than the death of p0 can explain, and a writer must find nobody in its way.
    "spans: purge": (
        schedule(
            "rwlock",
            1,
            5.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 3.0, want=READER)),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.0, 63.0, want=READER)),
            crew("tracking", STEADY_FAR, one("p2.w0.r0", 62.0, 0.0)),
            faults=(fault("kill", "p0", 0.3),),
        ),
        "free for",
    ),
    # The fourth of p0 must wait for a minute because of one limit. p1 wants only the other one.
    "rate limits: each of several": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking", NEAR, *(one(f"p0.w{task}.r0", 0.0, 0.0, want=QUICK_AND_SLOW) for task in range(4))
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.2, 0.0, want=QUICK)),
        ),
        "had its permits",
    ),
    # Nobody has waited before: the server admits the fourth for a moment that comes in 20 ms.
    "rate limits: the moment": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew("tracking", NEAR, *(one(f"p0.w{task}.r0", 0.0, 0.0, want=QUICK) for task in range(4))),
        ),
        "4 were admitted",
    ),
    # p1 has just said that it lives when the waiter before it leaves: there are permits for it.
    "rate limits: the bell": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=SLOW),
                one("p0.w0.r1", 0.0, 0.0, want=THREE_SLOW, cancel=0.75),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.0, want=SLOW)),
        ),
        "had its permits",
    ),
    "rate limits: signs of life": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=THREE_SLOW),
                one("p0.w0.r1", 0.0, 0.0, want=THREE_SLOW),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 3.0, 0.0, want=SLOW)),
        ),
        "p1.w0.r0 passed p0.w0.r1",
    ),
    "rate limits: places that come back": (
        FOUND["a waiter that was admitted before a failover stays first in the queue of a rate limit"],
        "no end",
    ),
    # As p1.w1.r0 waits for several limits, the step that admits p0.w1.r0 looks at the whole queue, and tells
    # of p0.w2.r0.
    "rate limits: places of tasks that wait": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                *(one(f"p0.w{task}.r0", task / 200, 0.0, want=THREE_QUICK) for task in range(3)),
            ),
            crew(
                "tracking",
                NEAR,
                one("p1.w0.r0", 0.042, 0.0, want=QUICK),
                one("p1.w1.r0", 0.044, 0.0, want=QUICK_AND_SLOW),
            ),
        ),
        "p1.w0.r0 passed p0.w2.r0",
    ),
    # p0 is asking when its connection breaks, and its task leaves. The server executes that when the bucket
    # is full.
    "rate limits: only who waits": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=SLOW),
                one("p0.w0.r1", 0.0, 0.0, want=THREE_SLOW, cancel=0.85),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 130.0, 0.0, want=THREE_SLOW)),
            faults=(fault("half cut", "p0", 0.60395, amount=100.0),),
        ),
        "had its permits",
    ),
    # The clock of p0 is slow, and so it asks after its moment. Tasks of p1 want what comes 20 ms after that.
    "rate limits: permits of those before": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=THREE_QUICK),
                one("p0.w0.r1", 0.0, 0.0, want=THREE_QUICK),
                rate=0.5,
            ),
            crew(
                "tracking",
                NEAR,
                *(one(f"p1.w0.r{task}", 0.01, 0.0, want=QUICK, timeout=0.025) for task in range(10)),
            ),
        ),
        "passed p0.w0.r1",
    ),
    "rate limits: sent again": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w0.r0", 0.0, 0.0, want=SLOW),
                one("p0.w0.r1", 0.1, 0.0, want=SLOW),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 20.0, 0.0, want=SLOW)),
            faults=(fault("lost answer", "p0", 0.05, 0.1),),
        ),
        "had its permits",
    ),
    # The bucket is full again long before p0 says that it has used nothing, and p1 has just emptied it.
    "rate limits: settled once": (
        schedule(
            "ratelimit",
            1,
            5.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.5, want=THREE_QUICK, doing="settle")),
            crew(
                "tracking", NEAR, *(one(f"p1.w{task}.r0", 0.499, 0.0, want=THREE_QUICK) for task in range(2))
            ),
        ),
        "6 were admitted",
    ),
}
"""By the safeguard without which it fails, and how; those of Redlock stand in `found_in_redlock`."""

RARE: dict[str, tuple[Schedule, str]] = {
    **PLANTED,
    **{
        name: BROKEN[name]
        for name in (
            "masters: written back where it is carried",
            "masters: taken beside a lost fence",
            "masters: proposed again",
        )
    },
}
"""All that the table of ablations takes instead of drawn ones."""

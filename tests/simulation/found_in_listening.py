"""Schedules that found a defect of waiters that listen; see `found.py`."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.small import crew, fault, one, schedule
from tests.simulation.world.kinds import KINDS, Want
from tests.simulation.world.network import FAR, NEAR, SPIKY, STEADY_FAR, Delays
from tests.simulation.world.schedule import Schedule

_B = Want(names=("b",), keys=("all", "a"))

_TENTH = Delays(0.0001, 0.0001)
_QUICK = Delays(0.0002, 0.0002)
_TEN_MS = Delays(0.01, 0.01)

IN_LISTENING: dict[str, Schedule] = {
    # Each time that p1 is refused, p0 lets go before the request of p1 that listens. When p0 has let go for
    # the last time, p1 would poll after 5 s, and its heartbeat comes half a second later.
    "a waiter whose bell was rung four times before it listened polls": schedule(
        "lock",
        1,
        5.0,
        crew(
            "tracking",
            _QUICK,
            one("p0.w0.r0", 0.0, 0.117),
            one("p0.w0.r1", 0.0145, 0.0245),
            one("p0.w0.r2", 0.0145, 0.0245),
            one("p0.w0.r3", 0.0145, 0.0245),
        ),
        crew("tracking", _TEN_MS, one("p1.w0.r0", 0.0, 0.0), first_poll=5.0),
    ),
    # p2 hears over a second connection. p0 lets go after p2 listened, before the SUBSCRIBE of p2 is executed.
    "a waiter with RESP2 listens for its bell before its second connection hears it": schedule(
        "lock",
        36,
        5.0,
        crew("tracking", _TENTH, one("p0.w0.r0", 0.0, 0.02), one("p0.w0.r1", 0.01, 0.0788)),
        crew("keyspace", _TENTH, one("p1.w0.r0", 0.001, 0.0)),
        crew("resp2", Delays(0.0001, 0.004), one("p2.w0.r0", 0.06, 0.0), poll=0.064),
    ),
    # While the request of p0.w0.r0 is granted, p0.w1.r0 sits down over another connection, and hears of that
    # first. The later answer made the session forget their bell, and 2 s later p0.w1.r0 counted as dead.
    "a waiter that gets in takes along the bell of one that sat down before the answer came": schedule(
        "fairlock",
        1,
        1.0,
        crew("plain", SPIKY, one("p0.w0.r0", 0.05, 3.0), one("p0.w1.r0", 0.156, 0.01), poll=0.064),
        crew("tracking", NEAR, one("p1.w0.r0", 0.0, 0.15), one("p1.w1.r0", 0.6, 0.01)),
    ),
    # p2.w2.r0 came first, but its request is executed after that of p2.w1.r1, whose seat then is the first.
    # So p2.w1.r1 asks beside it. p2.w2.r0 gets in, and p2.w0.r2, which came later, became the next head.
    "a waiter that asks as its seat is the first is passed by the next one of its session": schedule(
        "fair-semaphore",
        158984,
        1.0,
        crew(
            "plain",
            SPIKY,
            one("p0.w0.r0", 0.084665, 0.007872),
            one("p0.w0.r1", 0.002005, 0.151976, want=Want(permits=3), cancel=0.033033),
            one("p0.w2.r0", 0.001064, 0.001174, want=Want(permits=3), timeout=0.0),
            poll=0.5,
            rate=1.00225,
        ),
        crew(
            "plain",
            SPIKY,
            one("p1.w0.r0", 0.061596, 1.395204, want=Want(permits=2), timeout=0.619951),
            poll=0.064,
            rate=1.00137,
        ),
        crew(
            "plain",
            SPIKY,
            one("p2.w0.r0", 0.0, 0.006101, want=Want(permits=2), timeout=0.006903),
            one("p2.w0.r1", 0.014392, 0.003831),
            one("p2.w0.r2", 0.001608, 0.0),
            one("p2.w1.r0", 0.012121, 0.062817, timeout=0.024918),
            one("p2.w1.r1", 0.009622, 0.001611),
            one("p2.w2.r0", 0.014288, 0.093836),
            poll=0.064,
            rate=1.00207,
        ),
        jitter=0.1,
    ),
    # p2.w2.r0 takes a seat and is cancelled. The request for it hangs up the bell that was rung for p2.w1.r0.
    "a waiter that takes a seat and is cancelled hides that the bell was rung": schedule(
        "limits",
        101002074,
        5.0,
        crew("tracking", SPIKY, one("p1.w0.r0", 0.136793, 6.569943, want=Want(keys=("all", "a")))),
        crew(
            "tracking",
            FAR,
            one("p2.w0.r0", 0.0, 0.0, want=Want(keys=("all", "b"))),
            one("p2.w0.r1", 0.104468, 6.753504, want=Want(keys=("all", "a")), timeout=0.0),
            one("p2.w1.r0", 0.0, 0.085084, want=Want(keys=("all", "a"))),
            one("p2.w2.r0", 0.148584, 1.139193, want=Want(keys=("all", "a")), cancel=0.0164135),
        ),
        crew(
            "tracking",
            SPIKY,
            one("p3.w0.r0", 0.00852, 0.000625, want=Want(keys=("all", "a"))),
            one("p3.w0.r1", 0.002109, 0.008696, want=Want(keys=("all",))),
            one("p3.w1.r0", 0.0, 0.005333, want=Want(keys=("all", "b")), timeout=0.502766, doing="extend"),
            one("p3.w1.r1", 0.004173, 0.0, want=Want(keys=("all", "c")), timeout=0.445681),
        ),
        jitter=0.1,
    ),
    # p1.w1.r1 was refused, and its bell is rung at once. p1.w0.r1 sits down, which hangs up the bell again,
    # before their session knows either.
    "a waiter that sits down hides that the bell was rung for one that was refused just before": schedule(
        "cluster-limits",
        107000507,
        5.0,
        crew(
            "tracking",
            STEADY_FAR,
            one("p0.w0.r2", 0.0, 0.0, want=Want(keys=("all", "b")), cancel=0.14972171276779117),
            one("p0.w1.r0", 0.07558383016482415, 0.02025042415871192, want=_B),
            one("p0.w2.r0", 0.2362788204026945, 5.365658571079485, want=_B, timeout=0.0),
            busy=0.0005,
        ),
        crew(
            "tracking",
            STEADY_FAR,
            one("p1.w0.r0", 0.05501166117876222, 0.029890844147855367, want=_B, timeout=0.0),
            one("p1.w0.r1", 0.025458056435097447, 5.984397893022827, want=_B),
            one("p1.w1.r1", 0.014940198693134498, 0.03978315707520679, want=_B),
            busy=0.0005,
        ),
    ),
    # The server does not know the script. p1.w1.r1 asks once more when the bell is found to be gone.
    "a waiter that asks for its seat twice and gives up is seated again by the first request": replace(
        schedule(
            "steals",
            97001714,
            2.0,
            crew(
                "keyspace",
                FAR,
                one("p1.w0.r0", 0.0, 0.17, cancel=0.148, steal=True),
                one("p1.w0.r1", 0.0, 2.256, cancel=0.049, steal=True),
                one("p1.w0.r2", 0.041, 0.013),
                one("p1.w1.r0", 0.281, 0.033, steal=True),
                one("p1.w1.r1", 0.0, 0.014, cancel=0.019),
                busy=0.01,
            ),
        ),
        kind=replace(KINDS["steals"], lock=KINDS["fairlock"].lock, strict=True),
    ),
    "a session that connects to a server out of memory is told nothing while that connection lasts": schedule(
        "lock",
        93000984,
        1.0,
        crew("keyspace", NEAR, one("p0.w0.r0", 0.0, 11.6)),
        crew("keyspace", NEAR, one("p1.w0.r0", 0.1, 0.0)),
        faults=(fault("out of memory", "redis", 0.2, 1.0), fault("cut", "p1", 0.3)),
    ),
    "a connection on which the server hears nothing is kept while the server goes on telling": schedule(
        "rings",
        90000120,
        5.0,
        crew(
            "keyspace",
            FAR,
            one("p0.w1.r0", 0.03422563323893387, 0.01440843902707483),
            one("p0.w1.r1", 0.004310442743904508, 3.692657596406159),
            one("p0.w1.r2", 0.18642010057192038, 0.03366572078498684),
            one("p0.w1.r3", 0.030054320312307158, 0.0),
            one("p0.w3.r0", 0.0, 3.0838961453726506),
        ),
        crew(
            "keyspace",
            FAR,
            one("p1.w0.r0", 0.007528896988530995, 5.947493541910715),
        ),
        jitter=0.1,
        faults=(
            fault("half open", "p1", 2.0193703047394673),
            fault("half open", "p0", 2.9111748729649007),
        ),
    ),
    "a waiter whose bell is gone again and again puts off its poll with each heartbeat": schedule(
        "multilock",
        90000182,
        5.0,
        crew(
            "tracking",
            SPIKY,
            one(
                "p0.w0.r0",
                0.14773804051887346,
                0.004113914167267645,
                want=Want(names=("x", "y", "z")),
                timeout=0.0,
                cancel=0.5963485281880985,
            ),
            one(
                "p0.w0.r1",
                0.10826429507785625,
                0.0740833958404755,
                want=Want(names=("x", "y")),
                timeout=0.0,
                cancel=0.025897566354798746,
            ),
            busy=0.01,
        ),
        crew(
            "tracking",
            SPIKY,
            one("p1.w0.r0", 0.2915280958063355, 0.17666777872167722, want=Want(names=("x", "z"))),
            one("p1.w1.r0", 0.047820830782357535, 0.0, timeout=0.0),
            one("p1.w1.r1", 0.0, 0.08949448958195028, want=Want(names=("x", "z")), cancel=0.3521183089538479),
            one("p1.w1.r2", 0.0036159787603868843, 0.0, want=Want(names=("x", "y", "z")), timeout=0.0),
            busy=0.01,
        ),
        crew(
            "tracking",
            SPIKY,
            one("p2.w0.r0", 0.0, 0.057131943475393326, cancel=0.41220621715519185),
            one(
                "p2.w2.r0",
                0.021652928750226584,
                0.003962030439928557,
                want=Want(names=("y", "z")),
                timeout=0.0,
            ),
            one("p2.w3.r0", 0.0, 1.0333954717243186, want=Want(names=("x", "y", "z"))),
            busy=0.01,
        ),
        crew(
            "tracking",
            SPIKY,
            one(
                "p3.w0.r0",
                0.0,
                0.0843910913087137,
                want=Want(names=("x", "y", "z")),
                cancel=0.0028454357482996287,
            ),
            one(
                "p3.w1.r0",
                0.09962123966788596,
                0.08043704715536706,
                want=Want(names=("x", "y", "z")),
                timeout=0.0,
            ),
            one("p3.w1.r1", 0.1828235684421874, 0.0, timeout=0.0),
            one("p3.w1.r2", 0.2483268659045373, 0.18730499512736803, want=Want(names=("y",)), doing="adopt"),
            one("p3.w2.r0", 0.010980848163046947, 0.0, want=Want(names=("y", "z"))),
            busy=0.01,
        ),
        crew(
            "tracking",
            SPIKY,
            one("p4.w0.r0", 0.0, 2.5604316302286785, want=Want(names=("z",)), timeout=0.0),
            one("p4.w1.r0", 0.000462022356285722, 0.005800820559504419, timeout=0.0),
            busy=0.01,
        ),
        crew(
            "tracking",
            SPIKY,
            one(
                "p5.w1.r0",
                0.10809851090751736,
                0.0,
                want=Want(names=("x", "y", "z")),
                timeout=0.0,
                doing="adopt",
            ),
            one("p5.w2.r1", 0.0032940195140292302, 0.15484394207019123, want=Want(names=("y", "z"))),
            busy=0.01,
        ),
        faults=(fault("read only", "redis", 0.1330250280372215, 0.7855441881743884, 0.0),),
    ),
    "a server that is started again twice in a row is taken for one without RESP3": schedule(
        "rings",
        2000227,
        2.0,
        crew("tracking", FAR, one("p2.w0.r0", 0.0, 0.129, timeout=0.094), rate=1.00187, first_poll=5.0),
        faults=(fault("restart", "redis", 0.025, 0.004), fault("empty restart", "redis", 0.152, 0.188)),
    ),
}

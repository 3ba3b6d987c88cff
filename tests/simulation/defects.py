"""The defects of the library that the simulated world has found, and what fixed each.

python -m tests.simulation.defects --write    puts the table into docs/reference/test-results.md
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from tests.simulation.world.table import put


class Defect(NamedTuple):
    """One of them.

    Attributes:
        seed: Of the schedule that found it. The draws from most of these seeds have changed since: the small
            schedules in `found.py` and its neighbours are run again. Empty: that schedule was planted.
        commit: The one that fixed it.
    """

    what: str
    sort: str
    seed: str
    commit: str


HEAD = ("| defect | sort | seed | fixed by |", "|---|---|---|---|")

DEFECTS = (
    Defect(
        "A `FairLock` that is free stays idle: a request for a place comes after its waiter got in, and "
        "takes the bell of another one away.",
        "fairlock",
        "214",
        "3e9bc95",
    ),
    Defect(
        'A single try that is cancelled makes other waits end with "Redis did not answer".',
        "fairlock",
        "464",
        "3e9bc95",
    ),
    Defect(
        "The last waiter leaves its bell behind where the server does not know the scripts.",
        "fairlock",
        "170",
        "1ea74e4",
    ),
    Defect(
        "A waiter that gives up while it sits down stops the heartbeat of the others.",
        "fairlock",
        "595",
        "3e9bc95",
    ),
    Defect(
        "Without order, a waiter that gives up takes the bell of the others away.", "fairlock", "8", "3e9bc95"
    ),
    Defect(
        "A waiter that gets a `Redlock` leaves its place on the master that refused it.",
        "redlock",
        "3000014",
        "7fb5bc0",
    ),
    Defect(
        "A waiter that gives up while its slot moves leaves its reservation behind.",
        "cluster-rwlock",
        "",
        "f4ad49c",
    ),
    Defect(
        "A writer that waits after one that gives up has no reservation, and a reader passes it.",
        "rwlock",
        "3000136",
        "2239ae4",
    ),
    Defect("A reader that was refused has no turn until it has sat down.", "rwlock", "3000131", "2239ae4"),
    Defect(
        "Readers of one process that come one after the other keep a turn, and no writer enters.",
        "rwlock",
        "",
        "dda0949",
    ),
    Defect(
        "The seat of a job's waiter that was turned away is put back, and its queue is kept for ten minutes.",
        "uniquejob",
        "3000398",
        "357f503",
    ),
    Defect(
        "A waiter that gets in takes along the bell of one that has sat down since.",
        "fairlock",
        "3000383",
        "1ea74e4",
    ),
    Defect(
        "A waiter gets in before others, on the seat of one of its process that has left.",
        "fair-semaphore",
        "4000512",
        "1ea74e4",
    ),
    Defect(
        "A wait that is refused beside another one at the end of its time goes on.",
        "rwlock",
        "4000061",
        "137ba8e",
    ),
    Defect(
        "A release of a `Redlock` whose first answers were lost is told that the lease was lost.",
        "redlock",
        "4000050",
        "3cc79b9",
    ),
    Defect(
        "Writers that have reserved wait for each other, after a reader that came later.",
        "rangelock",
        "4000341",
        "e8a9894",
    ),
    Defect(
        "A reader that gives up while the server refuses writes keeps others out after that.",
        "rangelock",
        "4000053",
        "58c4a9e",
    ),
    Defect(
        "Over connections of the user's own class, redis-py sends a request to a cluster again by itself.",
        "cluster-rwlock",
        "4000141, 4000172",
        "a4f0a29",
    ),
    Defect(
        "A cancelled task that leaves several locks is held up for a second at each.",
        "reentrant",
        "6000259",
        "5ccacf4",
    ),
    Defect("A newcomer passes a writer that waits after one that has died.", "rwlock", "2000763", "24c5726"),
    Defect(
        "A waiter of a `MultiLock` that was woken in vain does not wake the next.",
        "multilock",
        "2000327",
        "0111111",
    ),
    Defect(
        "A waiter of a `MultiLock` asks 18 times in a millisecond while one of its nodes is away.",
        "cluster-multilock",
        "6000327",
        "7d24d45",
    ),
    Defect(
        "An owner waits for ever beside another one whose lock the server has lost.",
        "reentrant",
        "20001223",
        "68a32f9",
    ),
    Defect(
        "A `MultiLock` that is given back while one of its slots moves hangs after an error in a callback.",
        "cluster-multilock",
        "20000139",
        "55e5408",
    ),
    Defect(
        "A renewal of a bell that the server did not know hangs it up again after its waiter got in.",
        "multilock",
        "20000423",
        "84f68a9",
    ),
    Defect(
        "Without order, a reader that gives up takes the turn of the others of its process away.",
        "sentinel-rwlock",
        "20000889",
        "84f68a9",
    ),
    Defect(
        "The time that a `MultiLock` waits before its first request is written is taken off its ttl.",
        "cluster-multilock",
        "20000350",
        "43dd8de",
    ),
    Defect(
        "Where a connection was silent, the one that counts replicas is believed until it was silent, too.",
        "sentinel-replicas",
        "20000157, 30000262",
        "b77500f",
    ),
    Defect(
        "A connection on which the server hears nothing is not made again while the server tells of changes.",
        "rings",
        "90000120",
        "3d61ddf",
    ),
    Defect(
        "A waiter whose bell is gone again and again puts off its poll with each heartbeat, and waits "
        "for ever.",
        "multilock",
        "90000182",
        "3d61ddf",
    ),
    Defect(
        "Without an ordered connection to a cluster, a release that stopped half-way, as its slot moved, "
        "ends with `LockLostError`.",
        "cluster-limits",
        "93001393",
        "12ec98a",
    ),
    Defect(
        "Limits that are free stay idle for 2 s: a waiter whose call another one of its session has used "
        "leaves a later call unused.",
        "limits",
        "93002430",
        "4214a0c",
    ),
    Defect(
        "After a loss of data, a process that has not heard of the last ticks of a schedule runs them again.",
        "schedule",
        "93001432",
        "15e1e5e",
    ),
    Defect(
        "A session that connects to a server out of memory is not told of its bells while that connection "
        "lasts.",
        "multilock",
        "93000984",
        "03600ba",
    ),
    Defect(
        "Waiters of `MultiLock` that lack the same name wake each other round the queue for as long as it is "
        "held.",
        "multilock",
        "94000164",
        "506bf4b",
    ),
    Defect(
        "A long wait that is over stands among those that sessions publish for 2 s more: its record is not "
        "taken back where the next one was never sent.",
        "rings",
        "97001956",
        "75be94b",
    ),
    Defect(
        "A job's call is a duplicate of one of its process that is turned away itself, and an update "
        "is lost.",
        "uniquejob",
        "97001018",
        "d2a252e",
    ),
    Defect(
        "A waiter that has asked for its seat twice and gives up is seated again by the first request.",
        "steals",
        "97001714",
        "1838f92",
    ),
    Defect(
        "A job's call is a duplicate of a ticket that waits and is done by another delivery, and an update "
        "is lost.",
        "uniquejob",
        "98500542",
        "7111962",
    ),
    Defect(
        "A reader is told of a deadlock through a writer whose process was killed; a waiter that comes after "
        "all others have died is kept out by what they had reserved.",
        "rings",
        "99000366",
        "b5f681d",
    ),
    Defect(
        "Of two renewals of a `Redlock` under way as it is released, one puts the lease back on a master.",
        "redlock",
        "101000661",
        "c6671c5",
    ),
    Defect(
        "A release of a `ReentrantLock` whose slot moves takes the token and leaves the lock.",
        "cluster-reentrant",
        "101001701",
        "bb880dd",
    ),
    Defect(
        "A waiter that is cancelled while it takes its seat hides that the bell of its session was rung.",
        "limits",
        "101002074",
        "23eaf7b",
    ),
    Defect(
        "A waiter that releases a `Redlock` at once keeps its place on a master that does not know the "
        "scripts.",
        "redlock",
        "101002180",
        "e9ee6aa",
    ),
    Defect(
        "Without order, a waiter that gets in takes along the bell of one that sat down before its answer.",
        "fairlock",
        "",
        "247efdc",
    ),
    Defect(
        "Without order, an undo that waits for a connection takes along the place of a reader that came "
        "meanwhile.",
        "sentinel-rwlock",
        "110001009",
        "1c0766b",
    ),
    Defect(
        "A session that connects to a node which has just lost a slot tries its keyspace notifications out "
        "with a key of that slot again and again.",
        "cluster-lock",
        "125002235",
        "75d8203",
    ),
    Defect(
        "With keyspace notifications, nobody can connect again to a node while a slot is being moved away "
        "from it.",
        "cluster-lock",
        "",
        "75d8203",
    ),
    Defect(
        "Where the connections to all nodes of a cluster break without a word, one that nobody uses is found "
        "to be broken only when somebody needs it, who then waits for 2 s.",
        "cluster-lock",
        "130000248",
        "debc532",
    ),
    Defect(
        "Where a lock is taken by force more than 16 times within a ttl, holders that lost it a moment ago "
        "are not told to whom.",
        "steals",
        "130002040",
        "debc532",
    ),
    Defect(
        "A waiter whose bell is rung again and again before it listens takes its server for one that lets no "
        "bell hang, and polls.",
        "lock",
        "2843",
        "3441765",
    ),
    Defect(
        "With RESP2, a waiter listens before its second connection hears its bell, and misses a release.",
        "steals",
        "70060",
        "6f7e2af",
    ),
    Defect(
        "A `Latch` is opened before the second connection hears of it, and its waiter goes on waiting.",
        "cluster-latch",
        "81001005",
        "6f7e2af",
    ),
    Defect(
        "A waiter that comes after the clock was set back overtakes those that wait, for as long as the "
        "step: a check had excused that.",
        "fairlock",
        "4",
        "fb703c0",
    ),
    Defect(
        "A waiter of a rate limit that was admitted just before a failover stays first in the queue for as "
        "long as its session has others.",
        "cluster-ratelimit",
        "10116",
        "e584034",
    ),
    Defect(
        "The last waiter of a session, which has never asked, waits for ever when its time is over.",
        "unconfirmed",
        "640000378",
        "0fb87c22",
    ),
)


def lines() -> list[str]:
    """The table."""
    rows = [f"| {one.what} | {one.sort} | {one.seed or 'planted'} | `{one.commit}` |" for one in DEFECTS]
    return [*HEAD, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.defects")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    print(*lines(), sep="\n")
    if parser.parse_args().write:
        put("defects", lines())


if __name__ == "__main__":
    main()

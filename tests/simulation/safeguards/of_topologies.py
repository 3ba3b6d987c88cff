"""Safeguards of the client where servers belong together, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python, together

CLUSTERED = ("cluster-lock", "cluster-fairlock", "cluster-rwlock")
WATCHED = ("sentinel-lock", "sentinel-fairlock")

OF_TOPOLOGIES: dict[str, Safeguard] = {
    # -- several slots of a cluster
    "several slots: given back": Safeguard(
        "Where one slot refuses, the slots that had granted are given back.",
        python(
            "transport.cluster.sagas:Taking._taken",
            without="self._take_back_reached(with_last=bool(self._standing & PASSING))",
            instead="pass",
        ),
        ("cluster-multilock",),
    ),
    "several slots: after the last": Safeguard(
        "A caller that has left asks no other slot.",
        python(
            "transport.cluster.sagas:Saga._leave_parts",
            without="part.done = True",
            instead="pass",
        ),
        ("cluster-multilock",),
    ),
    "several slots: in doubt": Safeguard(
        "Where one slot refuses with an error, or is silent, the slots that were reached are given back.",
        python("transport.cluster.sagas:Taking._failed", without="self._take_back_reached()", instead="pass"),
        ("cluster-multilock",),
        faulty=True,
        covered_by="undo of a try",
    ),
    "several slots: the largest token": Safeguard(
        "The fencing token of a lease is the largest that any slot has minted for it.",
        python(
            "transport.cluster.sagas:Taking._taken",
            without="max(self._minted, answer.fencing_token)",
            instead="answer.fencing_token",
        ),
        ("cluster-multilock",),
        faulty=True,
        sorts=("clock back",),
    ),
    "several slots: confirmed by all": Safeguard(
        "A lease is given only if each slot has it still when the last one has granted it.",
        python("transport.cluster.sagas:Taking._answered", without="if min(results) < 0", instead="if False"),
        ("cluster-multilock",),
        faulty=True,
        unseen="only a server that loses what it has takes a lease away so soon, and a holder has until its "
        "first renewal to find that out; a unit test looks at it",
    ),
    # -- a cluster
    "ASKING": Safeguard(
        "A node to which a slot is only being moved is told that it is asked for once.",
        python(
            "transport.cluster.redirects:Redirects._ask",
            without="node.send(_asking(call.until), corked=True)",
        ),
        ("cluster-lock",),
        faulty=True,
    ),
    "a redirect is followed": Safeguard(
        "A request that a node turns away goes to the node that serves its slot.",
        python(
            "transport.connection:Multiplexed._redirected",
            without="self._router is not None",
            instead="False",
        ),
        CLUSTERED,
        faulty=True,
    ),
    "half a step": Safeguard(
        "A step that needs several keys does nothing on a node that its slot is leaving.",
        lua("", without="if type(reply) == 'table' and string", instead="if false and string"),
        ("cluster-reentrant",),
        faulty=True,
        sorts=("move",),
        covered_by="nest: looked at before",
    ),
    "nest: looked at before": Safeguard(
        "A reentrant release does not touch the nest after it may have emptied it.",
        lua(
            "reentrant_release",
            without="local others = last_deadline(token)\n  redis.call('ZREM', nest, token)\n  return others",
            instead="redis.call('ZREM', nest, token)\n  return last_deadline()",
        ),
        ("cluster-reentrant",),
        faulty=True,
        sorts=("move",),
        covered_by="half a step",
    ),
    "mid-move": Safeguard(
        "While a slot moves, the steps of a holder declare one key only.",
        python(
            "transport.cluster.redirects:Redirects._has_mid_move",
            without="return (",
            instead="return False and (",
        ),
        ("cluster-lock",),
        faulty=True,
    ),
    "the rest of an undo": Safeguard(
        "An undo that passed over the queue is sent again when the slot has moved.",
        python(
            "transport.cluster.redirects:Redirects._undo_the_rest",
            without="self._backlogs.hold(slot, rest, pause=PAUSE_FIRST)",
            instead="pass",
        ),
        ("cluster-fairlock",),
        faulty=True,
        covered_by="a seat of nobody",
    ),
    "a seat of nobody": Safeguard(
        "A seat of this session that stands first although its waiter has gone is given up.",
        python(
            "lock.queue:Gate.goes_first",
            without="self._give_up(1.0, seat=seat)",
            instead="pass",
        ),
        ("cluster-fairlock",),
        faulty=True,
        covered_by="the rest of an undo",
    ),
    "bells of a slot that has moved": Safeguard(
        "A waiter whose slot has moved hangs its bell up on the new node.",
        python(
            "transport.cluster.clustered:Clustered._rehang",
            without="self._on_rung(way, bells)",
            instead="pass",
        ),
        CLUSTERED,
        faulty=True,
        unseen="the server tells of a slot that leaves, but for a user who may not SSUBSCRIBE",
    ),
    "a slot that leaves": Safeguard(
        "With keyspace notifications, the server tells of a slot that leaves its node, and its waiters look.",
        python(
            "transport.hearing:Keyspace._left",
            without="return tuple(self._in_slots.get(slot, ()))",
            instead="return ()",
        ),
        ("cluster-lock",),
        faulty=True,
        covered_by="heartbeat",
    ),
    "taken back": Safeguard(
        "A request that waits for a node that is away goes to the node that has taken its place.",
        python("transport.cluster.clustered:Clustered._learned", without="self.send(call)", instead="pass"),
        CLUSTERED,
        faulty=True,
    ),
    "an older epoch": Safeguard(
        "A table that is older than one before it is not believed.",
        python(
            "transport.cluster.members:Members.check",
            without="epoch is not None and epoch < self._epoch",
            instead="False",
        ),
        CLUSTERED,
        faulty=True,
        unseen="a node that knows an older table turns requests away; the client asks again until another "
        "node tells, and a failure explains a wait for longer",
    ),
    "the trial is made again": Safeguard(
        "A node that has just lost the slot of the trial of a wakeup is tried out with another one.",
        python(
            "transport.hearing:Keyspace.open",
            without="redirect is None or self._turned_away is None",
            instead="True",
        ),
        CLUSTERED,
        faulty=True,
    ),
    "requests behind a trial": Safeguard(
        "A request that waits for the trial of a node goes on elsewhere if that node has lost its slot.",
        python(
            "transport.cluster.redirects:Redirects.follow_trial",
            without="in node.take_back(lambda call: slot_of_call(call) == slot)",
            instead="in ()",
        ),
        ("cluster-lock",),
        faulty=True,
    ),
    # -- behind Sentinel
    "a master that was demoted": Safeguard(
        "A connection to a server that has become a replica is left.",
        python(
            "transport.connection:Multiplexed._refused",
            without="if fault.demoted:",
            instead="if False:",
        ),
        WATCHED,
        faulty=True,
        covered_by="two masters: left at once",
    ),
    "a lease that is not known": Safeguard(
        "A lease of which the new master knows nothing has ended.",
        python(
            "lock.renewal:Watch._renewed",
            without="if not held:",
            instead="if False:",
        ),
        ("sentinel-lock",),
        faulty=True,
    ),
    "a replica has it": Safeguard(
        "A lease that must be on a replica counts only when the replica has said so.",
        python(
            "transport.replication:_Round._counted",
            without="self._acknowledged = number >= self._replicas",
            instead="self._acknowledged = True",
        ),
        ("sentinel-replicas",),
        faulty=True,
    ),
    "two masters: left at once": Safeguard(
        "A session leaves a master as soon as a Sentinel names another one.",
        python(
            "transport.sentinel:NamedMaster._renamed",
            without="former in (None, master)",
            instead="True",
        ),
        WATCHED,
        faulty=True,
        sorts=("two masters",),
    ),
    "two masters: the one that was named": Safeguard(
        "A connection that leads to another master than the one that was named meanwhile is not used.",
        together(
            python(
                "transport.sentinel:NamedMaster._open_raw",
                without="self._news() in (None, raw.server[:2])",
                instead="True",
            ),
            python("transport.sentinel:_Door.get_master_address", without="self._news() or "),
        ),
        WATCHED,
        faulty=True,
        sorts=("two masters",),
    ),
    "two masters: all are asked for": Safeguard(
        "Where another server takes the place of the master, each lease is asked for at once.",
        python("lock.renewal:Tracked.rung", without="self.ask_all()", instead="pass"),
        WATCHED,
        faulty=True,
        sorts=("two masters",),
    ),
    "a release comes again": Safeguard(
        "A release is sent again when its name gets another master, which may not have got it.",
        python(
            "transport.releases:Releases._some_again",
            without="self._again(self._due.pop())",
            instead="self._due.pop()",
        ),
        ("cluster-lock",),
        faulty=True,
        sorts=("takeover",),
    ),
    "a release comes again, behind Sentinel": Safeguard(
        "The same where Sentinel names the other master.",
        python(
            "transport.releases:Releases._some_again",
            without="self._again(self._due.pop())",
            instead="self._due.pop()",
        ),
        WATCHED,
        faulty=True,
        sorts=("two masters",),
    ),
    "idle beside a silent one": Safeguard(
        "Where a connection was silent, the idle one beside it is made again.",
        python(
            "transport.connection:Multiplexed._check_stall",
            without="spare.distrust()",
            instead="pass",
        ),
        ("sentinel-replicas",),
        faulty=True,
        sorts=("half open",),
    ),
}

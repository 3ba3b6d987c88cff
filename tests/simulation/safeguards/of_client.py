"""Safeguards of the client, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import ALL, FAIR, LOCKS, Safeguard, python, together

OF_CLIENT: dict[str, Safeguard] = {
    # -- the client: waiting
    "undo of a try": Safeguard(
        "A lease that an acquire may have got is given back when its task has gone.",
        python(
            "lock.waiter:Waiter._withdraw",
            without="if executed or last or own_seat:",
            instead="if False:",
        ),
        ALL,
    ),
    "undo of a grant": Safeguard(
        "A grant whose task was cancelled at that moment is given back.",
        python(
            "lock.lease:Possession.undo",
            without="self.engine.undo(self, self.target.options.first_ttl)",
            instead="pass",
        ),
        ALL,
    ),
    "place passed on": Safeguard(
        "A head that leaves lets the next one ask.",
        python("lock.queue:Gate.waiter_left", without="self._admit_next()", instead="pass"),
        ALL,
    ),
    "asks again": Safeguard(
        "A waiter that is woken while its try is under way tries again.",
        python("lock.waiter:Waiter.prompt", without="self._ask_again = True", instead="pass"),
        ("semaphore",),
        covered_by="listening: rung",
    ),
    "behind others": Safeguard(
        "A waiter behind others of its session takes a seat, and does not get in before them.",
        python(
            "lock.queue:Gate.asks",
            without="standing |= BEHIND",
            instead="pass",
        ),
        ("limits", "cluster-limits", "uniquejob", "fair-semaphore"),
    ),
    "one that asks already": Safeguard(
        "In a strict queue, a waiter that asks beside the head is the next head.",
        python(
            "lock.queue:Gate._admit_next",
            without="self._entering or self.policy.strict",
            instead="self._entering",
        ),
        ("fair-semaphore", "fairlock", "cluster-fairlock", "sentinel-fairlock"),
        unseen="the server refuses who asks out of turn; a unit test looks at it",
    ),
    "a seat beside one that gets in": Safeguard(
        "A waiter that gets in leaves the seats of others of its session, and their bell, as they are.",
        python(
            "lock.queue:Gate.waiter_got_in",
            without="self.policy.strict and self.others_wait(acquisition)",
            instead="False",
        ),
        ("fairlock", "fair-semaphore", "sentinel-fairlock"),
        unseen="the others show at their next heartbeat that they wait; a unit test looks at it",
    ),
    "a seat that is given up while it is taken": Safeguard(
        "Where a request for a seat hangs up a bell that was rung, the head asks.",
        python("lock.queue:Gate.not_ours", without='self._prompt("local")', instead="pass"),
        ("limits", "fairlock", "fair-semaphore"),
    ),
    "heartbeat": Safeguard(
        "A session that waits shows that it lives.",
        python("lock.wakeups:Bells._listen", without="gate.listener()", instead="None"),
        ("lock", "fairlock", "rwlock"),
    ),
    "far from the front: signs": Safeguard(
        "A session shows that its waiters live also where they are far from the front.",
        python(
            "lock.wakeups:Bells._listen",
            without="gate.listener()",
            instead="None if gate in self._far else gate.listener()",
        ),
        ("far-fairlock", "far-lock"),
    ),
    "listening at once": Safeguard(
        "A waiter hears its bell from its refusal on.",
        python("lock.waiter:Waiter._go_on", without="self._gate.listen(self)", instead="pass"),
        ("lock", "semaphore", "rwlock"),
        covered_by="heartbeat",
    ),
    "listening along: read": Safeguard(
        "A waiter that asks where the last acquire was refused reads its bell right behind.",
        python(
            "lock.wakeups:Bells.ask_and_listen",
            without="self._look(gate)",
            instead="pass",
        ),
        ("lock", "fairlock", "semaphore"),
        covered_by="heartbeat",
    ),
    "listening along: answered too soon": Safeguard(
        "Where the request that asks was sent again, what was read before it counts for nothing.",
        python("lock.queue:Gate.saw", without="self._listens_along = False", instead="pass"),
        ("lock", "fairlock", "semaphore"),
        faulty=True,
        sorts=("no scripts",),
        covered_by="heartbeat",
    ),
    "listening along: rung before": Safeguard(
        "A waiter whose bell was rung between its refusal and the request that reads the bell asks.",
        python("lock.queue:Gate.saw", without='self.lost("poll")', instead="pass"),
        ("lock", "semaphore"),
        covered_by="heartbeat",
    ),
    "listening along: another's turn": Safeguard(
        "A waiter that has let another process go first listens for whether that one could use its turn.",
        python(
            "lock.queue:Gate.listens_on",
            without="self._engine.bells.listen_for(self, acquisition.lease.listener())",
            instead="pass",
        ),
        ("lock", "reentrant"),
        faulty=True,
        unseen="the next sign of life finds it, sooner than a death is excused; a unit test looks at it",
    ),
    "listening along: on one connection": Safeguard(
        "Where a bell is heard on another connection, a waiter does not ask and listen in one write.",
        python(
            "lock.wakeups:Bells.ask_and_listen",
            without='transport.way != "tracking"',
            instead='transport.way == "poll"',
        ),
        ("lock", "fairlock", "semaphore"),
        covered_by="heartbeat",
        unseen="the channel of the wait before is mostly heard still; a unit test looks at it",
    ),
    "a bell that was put back": Safeguard(
        "A waiter whose bell a refusal has put back listens for it again.",
        python("lock.queue:Gate.not_ours", without="self._armed = False", instead="pass"),
        ("fairlock", "rwlock", "semaphore"),
        faulty=True,
        covered_by="heartbeat",
    ),
    "the safety poll": Safeguard(
        "A waiter that need not ask asks after 10 s all the same.",
        python(
            "lock.waiter:Waiter._sleep",
            without="self._gate.policy.silence if told",
            instead="600.0 if told",
        ),
        ("fairlock",),
        covered_by="listen: queue's ttl",
    ),
    "listening: no answer": Safeguard(
        "A waiter that does not know whether its bell hangs asks.",
        python("lock.wakeups:Bells._unheard", without="gate.unheard()", instead="pass"),
        ("lock", "semaphore", "rwlock"),
        faulty=True,
        unseen="the next heartbeat tells what this one did not",
    ),
    "listening: gone": Safeguard(
        "A waiter whose bell or place is gone takes it again.",
        python(
            "lock.queue:Gate.listened",
            without="self._missed(rung=answer == GONE and self.seated)",
            instead="pass",
        ),
        ("lock", "fairlock", "rwlock"),
        faulty=True,
    ),
    "rung before it listened": Safeguard(
        "A waiter asks at once when its bell was rung before it listened, however often that happens.",
        python(
            "lock.queue:Gate._missed",
            without="known = self._answered or rung",
            instead="known = self._answered",
        ),
        ("lock", "multilock", "reentrant"),
    ),
    "listening: rung": Safeguard(
        "A bell that was rung while nobody heard it is found by listening.",
        together(
            python("lock.queue:Gate.listened", without='self.rung("poll")', instead="pass"),
            python("lock.queue:Gate.saw", without='self.rung("poll")', instead="pass"),
        ),
        ("fairlock", "rwlock", "semaphore"),
    ),
    "listening: ask": Safeguard(
        "A waiter asks when the server tells it to.",
        python(
            "lock.queue:Gate.listened",
            without='self._head.prompt("poll", in_turn=False)',
            instead="self._head.need_not_ask(None)",
        ),
        ("multilock",),
        faulty=True,
        sorts=("kill",),
    ),
    "seats while held here": Safeguard(
        "The seats of those that wait behind a holder of their own session live on.",
        python(
            "lock.queue:Gate.listener",
            without="self._first_seated or waiter",
            instead="waiter",
        ),
        ("fairlock", "fair-semaphore"),
    ),
    "own bells": Safeguard(
        "A session hears its own bells, of which the server does not tell it.",
        python("lock.wakeups:Bells.wake_own", without="if answer.rung:", instead="if False:"),
        ("semaphore", "rwlock", "fairlock"),
    ),
    "rung by a refusal": Safeguard(
        "Bells that a try of this session rang are heard.",
        python("lock.waiter:Acquiring._tell_rung", without="if bells:", instead="if False:"),
        ("semaphore", "rwlock", "fairlock"),
    ),
    "the last tells": Safeguard(
        "The last waiter that leaves wakes others for what was let go of here.",
        python(
            "lock.waiter:Waiter._withdraw",
            without="gate.must_tell_others and",
            instead="gate.place_taken and",
        ),
        ("lock", "semaphore"),
        unseen="a waiter elsewhere asks at its next heartbeat, at most 0.6 s later; a unit test looks at it",
    ),
    "place given up": Safeguard(
        "A place that was kept for others is given up when they have left.",
        python(
            "lock.queue:Gate.drop_seat",
            without="self._give_up(of_use, leave=True)",
            instead="pass",
        ),
        ("fairlock", "rwlock"),
    ),
    "handed over here": Safeguard(
        "A release makes the next waiter of the session ask.",
        python(
            "lock.queue:Gate.holds_no_more",
            without='self._head.prompt("local", in_turn=self.next_in_turn())',
            instead="pass",
        ),
        ("semaphore",),
        covered_by="handed over when it has ended",
    ),
    "handed over when it has ended": Safeguard(
        "A release that nobody could follow at once makes the next waiter here ask when it has ended.",
        python(
            "lock.queue:Gate.holder_released",
            without='self._head.prompt("local", in_turn=self.yielding)',
            instead="pass",
        ),
        ("semaphore",),
        covered_by="handed over here",
    ),
    "quiet release": Safeguard(
        "After a run of hand-overs within a session, a release wakes a waiter of another one.",
        python("lock.queue:Gate.holder_releasing", without="return over", instead="return False"),
        ("lock", "semaphore"),
    ),
    "a release that is not quiet": Safeguard(
        "Where no waiter of the session can follow right behind a release, the release wakes other sessions.",
        python("lock.queue:Gate.holder_releasing", without="return True", instead="return False"),
        ("rwlock",),
    ),
    # -- the client: holding
    "renewal": Safeguard(
        "A lease is renewed while it is held.",
        python("lock.renewal:Watch._renew", without="possession.engine.send(renewal)", instead="pass"),
        ALL,
    ),
    "late grant": Safeguard(
        "A grant whose time was over before it came is not given out.",
        python(
            "lock.waiter:Acquiring._answered",
            without="now - answer.sent >= options.dependable",
            instead="False",
        ),
        ALL,
        faulty=True,
        sorts=("freeze of the server", "freeze", "black hole"),
        covered_by="deadline from the sending",
    ),
    "deadline from the sending": Safeguard(
        "A lease counts from before its request was sent.",
        together(
            python(
                "lock.renewal:Watch.__init__",
                without="self.deadline = sent + options.dependable",
                instead="self.deadline = NEVER",
            ),
            python(
                "lock.renewal:Watch.holds_from",
                without="self.deadline = sent + ",
                instead="self.deadline = NEVER + ",
            ),
        ),
        ALL,
        faulty=True,
        sorts=("freeze of the server", "freeze", "black hole"),
    ),
    "lost": Safeguard(
        "A renewal that finds another holder ends the lease.",
        python(
            "lock.renewal:Watch._renewed",
            without="if not held:",
            instead="if False:",
        ),
        ALL,
        faulty=True,
        sorts=("flush",),
    ),
    # -- the client: the connection
    "the old connection": Safeguard(
        "After a broken connection, the server drops it before anything is sent again.",
        python(
            "transport.residue:Residue.drop",
            without="await kill(ask, former)",
            instead="pass",
        ),
        ALL,
        faulty=True,
        sorts=(
            "half cut",
            "cut",
        ),
    ),
    "a question after a push": Safeguard(
        "A holder asks whether it still holds when the server tells that its key has changed.",
        python(
            "lock.renewal:Tracked._changed",
            without="known = self._armed.pop(key, None)",
            instead="known = None",
        ),
        LOCKS,
        faulty=True,
        sorts=("deletion",),
    ),
    "a question after a flush": Safeguard(
        "A holder asks when the server tells that anything may have changed.",
        python(
            "lock.renewal:Tracked._all",
            without="armed, self._armed = self._armed, {}",
            instead="armed = {}",
        ),
        LOCKS,
        faulty=True,
        sorts=("flush",),
    ),
    "tracked soon after the grant": Safeguard(
        "The server is asked to tell of a loss a moment after the grant, and not with the first renewal.",
        python("lock.lease:Possession.hold", without="hears=engine.hears", instead="hears=False"),
        LOCKS,
        faulty=True,
        sorts=("deletion",),
    ),
    "tracked by each renewal": Safeguard(
        "Each renewal is tracked, for its write has ended what was tracked before.",
        python(
            "lock.renewal:Watch.renewal_now",
            without="(hears or self.watched != ())",
            instead="(hears and self.watched == ())",
        ),
        LOCKS,
        faulty=True,
        sorts=("deletion",),
    ),
    "silence": Safeguard(
        "A connection that is silent for long is made again.",
        python(
            "transport.connection:Multiplexed._watch_stall",
            without="self._check_stall,",
            instead="int,",
        ),
        ALL,
        faulty=True,
    ),
    "sent again": Safeguard(
        "A request that was not answered is sent again on the next connection.",
        python(
            "transport.connection:Multiplexed.connection_lost",
            without="self._queue.extendleft(call for call in reversed(unanswered) if not call.done)",
            instead="pass",
        ),
        ALL,
        faulty=True,
    ),
    "unknown scripts": Safeguard(
        "A script that the server does not know is sent in full.",
        python(
            "transport.connection:Multiplexed._refused",
            without="isinstance(error, UnknownScriptError) and not call.as_eval",
            instead="False",
        ),
        ALL,
    ),
    "after a new connection": Safeguard(
        "On a new connection any bell may have been rung.",
        python("transport.hearing:Wakeups.begin", without="self._on_rung(chosen, None)", instead="pass"),
        ("lock", "fairlock"),
        faulty=True,
        covered_by="a bell that is found rung",
    ),
    "a bell that is found rung": Safeguard(
        "A heartbeat that finds the bell rung, or gone, makes the head ask.",
        python("lock.queue:Gate._missed", without='self.lost("poll")', instead="pass"),
        ("lock", "fairlock"),
        faulty=True,
        covered_by="after a new connection",
    ),
    "CLIENT CACHING": Safeguard(
        "The server is asked to tell of a bell.",
        python("transport.hearing:Tracking.before_arming", without="(CACHING,)", instead="()"),
        LOCKS,
    ),
    "SUBSCRIBE": Safeguard(
        "The channel of a bell is listened to.",
        python(
            "transport.hearing:Keyspace.before_arming",
            without='words.append(("SUBSCRIBE", self._channel + bell))',
            instead="pass",
        ),
        LOCKS,
    ),
    "a subscription that is made later": Safeguard(
        "A session that a server out of memory has refused to tell subscribes when there is memory again.",
        python(
            "transport.connection:Multiplexed._hear",
            without="and self._hearing_again is None and self._raw is raw:",
            instead="and False:",
        ),
        LOCKS,
        faulty=True,
        covered_by="heartbeat",
    ),
    "armed on the second connection": Safeguard(
        "A waiter listens for its bell when the second connection hears it.",
        python(
            "lock.wakeups:Bells.listen_for",
            without="self.arm(listener.bell)",
            instead="None",
        ),
        LOCKS,
    ),
    "order without a connection": Safeguard(
        "Where the client makes each request, those of one possession go in their order.",
        python(
            "transport.serial:Serial._put_back",
            without="self._queue = stay + move",
            instead="self._queue.rotate(-1)",
        ),
        FAIR,
        unseen="a session has few requests under way that hang; a unit test looks at it",
    ),
}

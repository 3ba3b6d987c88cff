"""Safeguards of rate limits and latches, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python

OF_COUNTS: dict[str, Safeguard] = {
    "rate limits: the bucket": Safeguard(
        "What is admitted counts for those who come after.",
        lua("ratelimit_acquire", without="backlog = backlog + n * interval\n"),
        ("ratelimit",),
    ),
    "rate limits: all of them": Safeguard(
        "A request counts as many as it wants.",
        lua(
            "ratelimit_acquire", without="exact) + n * set.interval end", instead="exact) + set.interval end"
        ),
        ("ratelimit",),
    ),
    "rate limits: each of several": Safeguard(
        "A request of several limits is admitted by all of them.",
        lua("ratelimit_acquire", without="if own > (behind", instead="if l == 1 and own > (behind"),
        ("ratelimit",),
    ),
    "rate limits: the moment": Safeguard(
        "A task sleeps until the moment for which the server has admitted it.",
        python("kinds.ratelimit:_Turn._look_at", without="engine.now() < moment", instead="False"),
        ("ratelimit",),
    ),
    "rate limits: places": Safeguard(
        "A task that has gone gives up its place.",
        python("kinds.ratelimit:_Turn.come", without="if seen:", instead="if False:"),
        ("ratelimit",),
    ),
    "rate limits: the bell": Safeguard(
        "The next waiter of another session is woken when it may come earlier than it knows.",
        lua("ratelimit_", without="if bell and bell ~= asker and states[bell] == '' then ring(bell) end"),
        ("ratelimit",),
    ),
    "rate limits: signs of life": Safeguard(
        "A session says that its waiters live, else the others pass them.",
        python("kinds.ratelimit:_Line._ask", without="HEARING if polls else PLACED", instead="PLACED"),
        ("ratelimit",),
    ),
    "rate limits: the dead": Safeguard(
        "A waiter whose bell has ended is passed over.",
        lua("ratelimit_", without="bell == asker or state_of(bell)", instead="bell == asker or true"),
        ("ratelimit",),
        faulty=True,
        sorts=("kill",),
    ),
    "rate limits: a new place": Safeguard(
        "A waiter that was taken for dead takes a new place.",
        python(
            "kinds.ratelimit:_Line._told",
            without="turn.ask_again(functools.partial(self._told_of, turn), self._failed)",
            instead="pass",
        ),
        ("ratelimit",),
        faulty=True,
    ),
    "rate limits: places that come back": Safeguard(
        "A session gives up the place of a waiter that a failover has brought back.",
        python("kinds.ratelimit:_Line._told", without="self._give_up_places(answer)", instead="pass"),
        ("cluster-ratelimit",),
        faulty=True,
    ),
    "rate limits: places of tasks that wait": Safeguard(
        "A session keeps the place of a waiter that it was told of, and whose task waits.",
        python(
            "kinds.ratelimit:_Line._give_up_places",
            without="(token := rest.decode()) not in engine.in_progress",
            instead="(token := rest.decode())",
        ),
        ("ratelimit",),
    ),
    "rate limits: only who waits": Safeguard(
        "A request that asks for waiters makes no place for one that has left.",
        lua(
            "ratelimit_acquire", without="if placed and not (stands or moment) then", instead="if false then"
        ),
        ("ratelimit",),
        faulty=True,
        covered_by="the old connection",
    ),
    "rate limits: permits of those before": Safeguard(
        "A request passes waiters only if there are permits for them all.",
        lua(
            "ratelimit_acquire",
            without="if own > (behind and 0 or AHEAD) then ok",
            instead="if own > AHEAD then ok",
        ),
        ("ratelimit",),
    ),
    "rate limits: sent again": Safeguard(
        "A request that is sent again counts once.",
        lua(
            "ratelimit_acquire",
            without="if again and not stands and not moment then",
            instead="if false then",
        ),
        ("ratelimit",),
        faulty=True,
        sorts=("lost answer", "cut"),
    ),
    "rate limits: settled once": Safeguard(
        "Less than the estimate is given back as far as the bucket had room for it since.",
        lua(
            "ratelimit_settle",
            without="return math.min(n * set.interval, idle)",
            instead="return n * set.interval",
        ),
        ("ratelimit",),
    ),
    "latches: news": Safeguard(
        "Who waits for a latch is told that it opens.",
        lua("latch_count_down", without="redis.call('DEL', KEYS[3])"),
        ("latch",),
    ),
    "latches: news of its own session": Safeguard(
        "A session whose own step opens a latch wakes those of its tasks that wait.",
        python("kinds.latch:Latch._changed", without=", told=engine.wake_own", instead=""),
        ("latch",),
    ),
    "latches: listening": Safeguard(
        "A waiter listens before it asks.",
        python(
            "lock.wakeups:KeyListener.listened",
            without="engine.send(telling(self._key).ask(ignore, ignore, until=until), corked=True)",
            instead="pass",
        ),
        ("latch",),
    ),
    "latches: once": Safeguard(
        "A step that is sent again counts once.",
        lua("latch_count_down", without="not is_known(steps, token)", instead="true"),
        ("latch",),
        faulty=True,
        sorts=("lost answer", "cut"),
    ),
}

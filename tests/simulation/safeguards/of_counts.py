"""Safeguards of rate limits and latches, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python

OF_COUNTS: dict[str, Safeguard] = {
    "rate limits: the bucket": Safeguard(
        "What is taken from a bucket counts for those who come after.",
        lua("ratelimit_acquire", without="last - math.max(seen, MICROSECONDS)", instead="0"),
        ("ratelimit",),
    ),
    "rate limits: the moment": Safeguard(
        "A task sleeps until the moment that the server has reserved.",
        python("kinds.ratelimit:_Moment.come", without="await self._future", instead="return"),
        ("ratelimit",),
    ),
    "rate limits: all of them": Safeguard(
        "A request counts as many as it wants.",
        lua("ratelimit_acquire", without="math.ceil(n * interval)", instead="math.ceil(interval)"),
        ("ratelimit",),
    ),
    "rate limits: given back": Safeguard(
        "The moment of a task that has gone is given back.",
        python("kinds.ratelimit:_Limiting._take", without="if engine.forget(call):", instead="if False:"),
        ("ratelimit",),
        unseen="others wait longer, and no window has more; tests of adversity look at it",
    ),
    "latches: news": Safeguard(
        "Who waits for a latch is told that it opens.",
        lua("latch_count_down", without="redis.call('DEL', KEYS[2])"),
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
            "kinds.latch:_Waiting._look",
            without="engine.send(Call(self._commands.listen(), ignore, ignore, until=until), corked=True)",
            instead="pass",
        ),
        ("latch",),
    ),
    "latches: once": Safeguard(
        "A step that is sent again counts once.",
        lua("latch_count_down", without="if not is_known then left", instead="if true then left"),
        ("latch",),
        faulty=True,
        sorts=("lost answer", "cut"),
    ),
}

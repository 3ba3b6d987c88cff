"""Safeguards of limits, each as a piece of a script that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua

LIMITS = ("limits",)

OF_LIMITS: dict[str, Safeguard] = {
    "limits: caps": Safeguard(
        "No key has more holders than its cap.",
        lua(
            "limits",
            "permits",
            without="if held >= tonumber(cap) then",
            instead="if held > tonumber(cap) then",
        ),
        LIMITS,
    ),
    "limits: a call takes the permits": Safeguard(
        "Nobody passes a waiter that was called.",
        lua(
            "limits",
            "permits",
            without="hold(CALLED .. string.sub(entry, -SEAT), line, 0, '', redis.call('PTTL', bell))",
            instead="do return rung end",
        ),
        LIMITS,
    ),
    "limits: turns": Safeguard(
        "A line that was called goes behind the others.",
        lua("limits", "permits", without="or 0) + 1)", instead="or 0))"),
        LIMITS,
    ),
    "limits: a key that comes back": Safeguard(
        "A holder that gives back a permit calls the line whose turn it is.",
        lua(
            "limits",
            "permits",
            without="for key in each(line) do freed[key] = true end\n  end\n  return line",
            instead="end\n  return line",
        ),
        LIMITS,
    ),
    "limits: waits at a key": Safeguard(
        "A line that is refused waits for the key that is full.",
        lua(
            "limits",
            "permits",
            without="enter_turns(line, place or full_key(line) or string.match(line, '[^,]+'))",
        ),
        LIMITS,
    ),
    "limits: moves to another key": Safeguard(
        "A line waits for that key of its own that is full now.",
        lua(
            "limits",
            "permits",
            without="enter_turns(line, blocked, found)",
            instead="leave_turns(line, found)",
        ),
        LIMITS,
    ),
    "limits: no further life for the dead": Safeguard(
        "A further call prolongs no bell.",
        lua("limits", "permits", without="redis.call('GET', bell) ~= 'rung'", instead="true"),
        LIMITS,
        faulty=True,
    ),
}

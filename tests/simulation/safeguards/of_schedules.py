"""Safeguards of schedules, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, together

_KINDS = ("schedule",)

OF_SCHEDULES: dict[str, Safeguard] = {
    "schedule: claimed once": Safeguard(
        "A tick that is claimed is refused.",
        lua("schedule_claim", without="if due <= claimed then return turn_away('t', claimed) end"),
        _KINDS,
    ),
    "schedule: never early": Safeguard(
        "No tick is claimed before it is due by the server's clock.",
        lua("schedule_claim", without="if due > NOW then return turn_away('e', claimed) end"),
        _KINDS,
    ),
    "schedule: one by one": Safeguard(
        "Where all ticks are run, each is claimed by a process that knows the one before it.",
        lua(
            "schedule_claim",
            without="if has(flags, 'w') and known ~= claimed then return turn_away('o', claimed) end",
        ),
        _KINDS,
    ),
    "schedule: overlap": Safeguard(
        "A run that goes on keeps the next one out, if that was asked for.",
        lua("schedule_claim", without="if is_blocked() then", instead="if false then"),
        _KINDS,
    ),
    "schedule: alive": Safeguard(
        "Only a run without a lease is lost.",
        lua("schedule_claim", without="if runner and not lease_of(runner) then", instead="if runner then"),
        _KINDS,
    ),
    "schedule: taken back": Safeguard(
        "A claim that nobody has run is taken back, so that another process runs the tick.",
        lua("schedule_release", without="  give_back(run)\n", instead="  delete_run(token)\n"),
        _KINDS,
    ),
    "schedule: not put back": Safeguard(
        "One that knew of a claim that was taken back since does not put it back.",
        lua(
            "schedule_claim",
            without="known == tonumber(redis.call('HGET', register, 'undone'))",
            instead="false",
        ),
        _KINDS,
    ),
    "schedule: definition": Safeguard(
        "Each definition claims its own ticks: a changed schedule begins as a new one does.",
        together(
            lua("schedule_claim", without="ARGV[14]", instead="'0'"),
            lua("schedule_release", without="ARGV[6]", instead="'0'"),
        ),
        _KINDS,
    ),
    "schedule: comes back": Safeguard(
        "A definition that comes back after another one has taken its place begins as a new one does.",
        together(
            lua("schedule_claim", without="(NOW <= expected or last_asked <= asked or claimed >= due) and"),
            lua("schedule_claim", without="if NOW > expected and NOW >= tick then", instead="if false then"),
        ),
        _KINDS,
    ),
}

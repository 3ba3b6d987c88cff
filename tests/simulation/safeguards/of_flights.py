"""Safeguards of single flights, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua, python

_FLIGHTS = ("singleflight",)

OF_FLIGHTS: dict[str, Safeguard] = {
    "flights: a run that was begun before keeps nothing": Safeguard(
        "What was begun before its key was forgotten is not kept.",
        lua(
            "flight_publish",
            without="fresh, keep_for = '0', '0'",
        ),
        _FLIGHTS,
    ),
    "flights: who comes later waits for a newer run": Safeguard(
        "A caller that comes after its key was forgotten does not get the result of the run under way.",
        lua(
            "flight_acquire",
            without="result = whole(result + 1)",
        ),
        _FLIGHTS,
    ),
    "flights: a value says how long it is kept": Safeguard(
        "The function that is `keep` is asked.",
        python("kinds.singleflight:Making._call", without="self._resolve_keep(value)", instead="pass"),
        _FLIGHTS,
    ),
}

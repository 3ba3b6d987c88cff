"""Safeguards of renewals that go in one request, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, python

_KINDS = ("locks",)

OF_CONVOYS: dict[str, Safeguard] = {
    "convoy: the answer does not count for those that left": Safeguard(
        "A lease that was let go or extended meanwhile is not told of an answer to its former renewal.",
        python("lock.renewal:Convoy._answered", without="watch.renewal is not self", instead="False"),
        _KINDS,
    ),
    "convoy: a request is used again only by the leases that it was for": Safeguard(
        "The request that has renewed several leases is sent again only if none has left and none has come.",
        python(
            "lock.renewal:Convoys._again",
            without="full and company == watches[at : at + len(company)]",
            instead="full",
        ),
        _KINDS,
    ),
    "convoy: watched again": Safeguard(
        "A lease that was renewed with others is renewed again.",
        python(
            "lock.renewal:Convoy._answered",
            without="watch_all(renewed, again",
            instead="watch_all(renewed[1:], again",
        ),
        _KINDS,
    ),
}

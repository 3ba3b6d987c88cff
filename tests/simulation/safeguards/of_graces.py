"""Safeguards of `grace`, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, python

_KINDS = ("grace",)

OF_GRACES: dict[str, Safeguard] = {
    "grace: told to stop": Safeguard(
        "A body is cancelled when its grace begins.",
        python(
            "lock.lease:Possession.stop",
            without='self.cancel(f"{self.label} {self.name!r}: {reason}")',
            instead="pass",
        ),
        _KINDS,
        faulty=True,
    ),
    "grace: in time": Safeguard(
        "The grace begins before the lease ends.",
        python(
            "lock.renewal:Watch.tend",
            without="self.deadline - self.options.grace",
            instead="self.deadline",
        ),
        _KINDS,
        faulty=True,
    ),
    "grace: as long as it was asked for": Safeguard(
        "The grace is counted back from the end on which the holder may rely.",
        python(
            "lock.renewal:Watch.tend",
            without="self.deadline - self.options.grace",
            instead="self.deadline - self.options.grace / 2",
        ),
        _KINDS,
        faulty=True,
    ),
}

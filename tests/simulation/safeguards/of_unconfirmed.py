"""Safeguards of blocks that do not wait for the answer to their release, as code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, python

_KINDS = ("unconfirmed",)
_SENDS = "transport.connection:Multiplexed._sent_otherwise"

OF_UNCONFIRMED: dict[str, Safeguard] = {
    "unconfirmed: the release is written in the step of the exit": Safeguard(
        "A process that is killed right behind a block leaves nothing.",
        python("lock.lease:Possession.send_release", without="at_once=True", instead="at_once=False"),
        _KINDS,
        faulty=True,
        sorts=("kill behind",),
    ),
    "unconfirmed: with the text of its script": Safeguard(
        "So does the first release of a connection: the server may not know the script.",
        python(_SENDS, without="if call.final and not (", instead="if False and not ("),
        _KINDS,
        faulty=True,
        sorts=("kill behind",),
    ),
}

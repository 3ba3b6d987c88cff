"""The protocol, wrong on purpose: what the simulation must find out."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from aiolocks._transport import Granted
from aiolocks._transport.ballots import Errand
from aiolocks._transport.elections import Acquiring
from aiolocks._transport.faults import Fault


class WithoutWritingBack(Acquiring):  # type: ignore[misc]
    """A lease is given when a majority has granted it, with the largest of their fencing tokens."""

    def _propose(self, carrying: AbstractSet[int]) -> list[Errand]:
        self._fencing_token = max(self._granted[master].fencing_token for master in carrying)
        self.outcome = Granted(self._fencing_token, 0)
        return []

    def _granted_late(self, master: int) -> list[Errand]:
        return []


class ToEverybody(Acquiring):  # type: ignore[misc]
    """The fencing token is written back to all masters, also to those that have not granted."""

    def _propose(self, carrying: AbstractSet[int]) -> list[Errand]:
        errand = super()._propose(carrying)[0]
        return [errand._replace(master=master) for master in range(len(self._labels))]


class HalfIsEnough(Acquiring):  # type: ignore[misc]
    """A majority may be one short."""

    def __init__(self, labels: Any, **how: Any) -> None:
        super().__init__(labels, **how)
        self.majority = len(labels) // 2
        self.enough_against = len(labels) - self.majority + 1


class OfThoseThatAnswer(Acquiring):  # type: ignore[misc]
    """A majority is one of the masters that have not failed."""

    def failed(self, master: int, phase: int, fault: Fault) -> list[Errand]:
        alive = len(self._labels) - len(self._faults.keys() | {master})
        self.majority = alive // 2 + 1
        self.enough_against = len(self._labels) - self.majority + 1
        return super().failed(master, phase, fault)

"""The steps that jobs and schedules share: a run is a permit, under the first six of their keys."""

from __future__ import annotations

from typing import Any, Final

from ..transport.answers import fencing_token, truth
from ..transport.commands.base import FamilySteps
from ..transport.commands.family import Step
from ..transport.commands.snapshots import Holder
from .permits import ADOPT, ADOPTS, ANNOTATE, ANNOTATES, AVAILABLE, OWNED, told_permits

RUN_ADOPT: Final = Step(ADOPT, ADOPTS, fencing_token, keys=6)
RUN_ANNOTATE: Final = Step(ANNOTATE, ANNOTATES, truth, keys=6)
RUN_OWNED: Final = Step(OWNED, "token", truth, keys=6)


def _none(raw: Any) -> bool:
    return int(raw) < 1


RUN_LOCKED: Final = Step(AVAILABLE, "none fair", _none, keys=6)


class RunSteps(FamilySteps):
    """The steps of one that runs."""

    __slots__ = ()

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_permits(token, left_ms, lease)

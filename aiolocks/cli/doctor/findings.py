"""The report of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final


@final
class Level(StrEnum):
    """How much a finding matters.

    Attributes:
        OK: All is well.
        NOTE: It may be meant so; the advice says how to change it.
        WARNING: Locks work, but later or less safely than they could.
        ERROR: Locks do not work.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


AMISS: Final = frozenset({Level.WARNING, Level.ERROR})


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        level: How much it matters.
        check: The name of the check, one word.
        says: One sentence, without the full stop.
        fix: One line that fixes it: a command, a line of the configuration, or advice; empty with OK.
        node: The address of the server that it is about, where several were looked at.
    """

    level: Level
    check: str
    says: str
    fix: str = ""
    node: str = ""


def any_error(findings: Iterable[Finding]) -> bool:
    """Whether locks do not work."""
    return any(finding.level is Level.ERROR for finding in findings)

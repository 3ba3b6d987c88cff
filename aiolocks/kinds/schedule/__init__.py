"""Schedules: of all processes that keep one, one runs each tick."""

from .run import KINDS, Tick, TickRecord
from .schedule import Schedule

__all__ = ["KINDS", "Schedule", "Tick", "TickRecord"]

"""Schedules: of all processes that keep one, one runs each tick."""

from .schedule import Schedule
from .steps import KINDS
from .ticks import Tick, TickRecord

__all__ = ["KINDS", "Schedule", "Tick", "TickRecord"]

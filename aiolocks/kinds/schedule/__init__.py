"""Schedules: of all processes that keep one, one runs each tick."""

from .schedule import Schedule
from .ticks import Tick, TickRecord

__all__ = ["Schedule", "Tick", "TickRecord"]

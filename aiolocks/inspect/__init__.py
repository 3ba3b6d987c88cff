"""Looking at what the server holds: locks and waiters, deadlocks, forced releases.

A session has its methods for operators, and its search for deadlocks, from here.
"""

from .deadlocks import deadlocks
from .detector import Detector
from .freeing import force_release
from .looking import inspect

__all__ = ["Detector", "deadlocks", "force_release", "inspect"]

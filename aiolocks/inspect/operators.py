"""What a session takes from this package: its methods for operators, and its search for deadlocks."""

from .deadlocks import deadlocks
from .detector import Detector
from .freeing import force_release
from .looking import inspect

__all__ = ["Detector", "deadlocks", "force_release", "inspect"]

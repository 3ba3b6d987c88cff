"""Safeguards of the client and of the scripts, each as a piece of code that can be taken out."""

from .of_client import OF_CLIENT
from .of_masters import OF_MASTERS
from .of_scripts import OF_SCRIPTS
from .of_topologies import OF_TOPOLOGIES
from .taking import Safeguard

SAFEGUARDS: dict[str, Safeguard] = {**OF_SCRIPTS, **OF_CLIENT, **OF_MASTERS, **OF_TOPOLOGIES}

__all__ = ["SAFEGUARDS", "Safeguard"]

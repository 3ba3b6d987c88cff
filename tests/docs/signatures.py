"""Shows signatures in the reference as a user calls them: without the parameters that only catch slips."""

from __future__ import annotations

from typing import Any

import griffe

HIDDEN = ("slips", "slipped")
"""They take unknown arguments, to say in the error how the right one is called."""


class Signatures(griffe.Extension):
    """Reads each function and method."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """A function has been read: removes the parameters."""
        for name in HIDDEN:
            if name in func.parameters:
                del func.parameters[name]

"""The steps in Lua, read from their files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, final

_LUA: Final = Path(__file__).parents[2] / "lua"


@final
class Script:
    """One atomic step on the server, read from its file in `aiolocks/lua` when it is first needed.

    Args:
        shared: Files of `aiolocks/lua/shared` that stand before it: what several steps have in common.
        mid_move: The last of these files while the slot of the keys moves to another node of a cluster.
        several: The script that does this step for several at once, if there is one. It has their keys, and
            their arguments, one after the other, and answers with the list of their replies.

    Attributes:
        mid_move: The same step in the form for that time (see `lua/shared/mid_move.lua`), if it has one.
    """

    __slots__ = ("mid_move", "name", "several", "sha", "shared", "text")

    sha: bytes
    text: bytes

    def __init__(self, name: str, *shared: str, mid_move: str = "", several: Script | None = None) -> None:
        self.name = name
        self.shared = shared
        self.several = several
        self.mid_move = Script(name, "mid_move", *shared, mid_move) if mid_move else None

    def __getattr__(self, attribute: str) -> bytes:
        """The text or digest, on first use: an import must not wait for files that may never be needed."""
        if attribute not in self.__slots__:
            raise AttributeError(attribute)
        files = [*(f"shared/{name}.lua" for name in self.shared), f"{self.name}.lua"]
        self.text = b"".join((_LUA / file).read_bytes() for file in files)
        # The server names a script by this digest; it guards nothing.
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        value: bytes = getattr(self, attribute)
        return value

    def __repr__(self) -> str:
        return f"<Script {self.name}>"

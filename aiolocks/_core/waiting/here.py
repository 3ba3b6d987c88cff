"""Those of a session that hold what others in it wait for."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from ..claim import Claim
    from ..possession import Possession


@final
class Here:
    """The holders of one gate.

    Invariant: `closed` says whether one of them excludes all waiters, who then do not ask.

    Attributes:
        closed: Nobody may ask.
        first: One that holds it, if any does; there are several where they do not exclude each other, or
            where the server has lost its data.
    """

    __slots__ = ("_also", "_exclusive", "_possession", "closed", "first")

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self.first: Claim | None = None
        self._possession: weakref.ref[Possession] | None = None  # of the first
        self._also: dict[Claim, None] | None = None  # most gates never have a second holder
        self.closed = False

    def __contains__(self, claim: Claim) -> bool:
        return self.first is claim or (self._also is not None and claim in self._also)

    @property
    def held(self) -> bool:
        """Whether anybody in this session is known to hold it."""
        return self.first is not None

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return bool(self._also)

    @property
    def possession(self) -> Possession | None:
        """The possession of the first, once its grant has become one."""
        return None if self._possession is None else self._possession()

    def are_of(self, owner: str) -> bool:
        """Whether that owner holds it."""
        return any(claim is not None and claim.owner == owner for claim in (self.first, *(self._also or ())))

    def add(self, claim: Claim) -> None:
        """It was granted; no possession of it is known yet."""
        if self.first is None:
            self.first, self._possession = claim, None
            self.closed = self._exclusive
            return
        if self._also is None:
            self._also = {}
        self._also[claim] = None

    def entrust(self, claim: Claim, possession: weakref.ref[Possession]) -> None:
        """The possession that this grant has become: of a claim that was added, or that was adopted."""
        if self.first is None:
            self.add(claim)
        if self.first is claim:
            self._possession = possession
        else:
            self.add(claim)

    def remove(self, claim: Claim) -> bool:
        """Whether it did hold."""
        if self.first is claim:
            self.first = self._possession = None
            if self._also:
                self.first, _ = self._also.popitem()
            self.closed = self._exclusive and self.first is not None
            return True
        if self._also and claim in self._also:
            del self._also[claim]
            return True
        return False

"""How a handler ends of which no answer is kept."""

from __future__ import annotations

from typing import final

from ._problems import Problem
from ._record import Record, Unkept


@final
class Failed(Exception):  # noqa: N818 - the way in which an answer that is not kept leaves SingleFlight
    """The handler ended without an answer that must be kept."""

    def __init__(self, *, answer: Record | Unkept | None = None, error: BaseException | None = None) -> None:
        self.answer = answer
        self.error = error
        # SingleFlight tells waiters elsewhere its text.
        super().__init__(error.reason if isinstance(error, Problem) else "")

    def get(self) -> Record | Unkept:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

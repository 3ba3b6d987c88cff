"""Where records are kept beside the effects of the requests, so that both commit together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, final


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """A record as a store has it.

    Attributes:
        fingerprint: The hash of method, path and body of the request.
        answer: The answer of the handler.
    """

    fingerprint: str
    answer: bytes


class Transaction(Protocol):
    """A transaction that has begun, in which a handler works."""

    async def commit(self, key: str, record: Stored, *, keep: float) -> None:
        """Writes the record, and commits it with all that the handler has written.

        Args:
            key: The key, with the prefix of the session and the user in it: at most 250 characters of ASCII.
            record: The record.
            keep: Seconds after which the record counts no more.

        Raises:
            Exception: There is a record with this key already, or the commit was not confirmed. The
                middleware then asks `find` which it was.
        """
        ...


class Store(Protocol):
    """The user's database. `SQLAlchemyStore` is one.

    The store must hold against two handlers of one key at the same time: of two transactions with one key,
    the second one must not commit.
    """

    async def find(self, key: str) -> Stored | None:
        """The record that was committed with this key, and counts still.

        It is asked for a second key, without a prefix, where there is none: under that, versions until 0.2
        kept records.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begins a transaction, and rolls it back at the exit unless it was committed.

        The store hands the transaction to the handler in a way of its own, such as a context variable.
        """
        ...

"""Where records are kept beside the effects of the requests, so that both commit together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, final


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """The record of a request in a store.

    Attributes:
        fingerprint: The hash of method, path, query and body of the request.
        answer: The answer of the handler.
    """

    fingerprint: str
    answer: bytes


class Transaction(Protocol):
    """An open transaction, in which a handler works."""

    async def commit(self, key: str, record: Stored, *, keep: float) -> None:
        """Writes the record, and commits it together with all that the handler has written.

        Args:
            key: The key, with the prefix of the session and the user in it: at most 250 characters of ASCII.
            record: The record.
            keep: Seconds after which the record no longer counts.

        Raises:
            Exception: There is already a record with this key, or the commit was not confirmed. The
                middleware then calls `find` to learn which.
        """
        ...


class Store(Protocol):
    """Your database, as the middleware uses it. `SQLAlchemyStore` implements it.

    Two handlers may work with one key at the same time. Then the store must refuse the second commit.
    """

    async def find(self, key: str) -> Stored | None:
        """Returns the committed record of this key, if it still counts; else None.

        If there is none, the middleware asks for a second key, without the prefix: versions up to 0.2 wrote
        records under that key.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begins a transaction. Its exit rolls back what was not committed.

        The store gives the transaction to the handler in its own way, such as by a context variable.
        """
        ...

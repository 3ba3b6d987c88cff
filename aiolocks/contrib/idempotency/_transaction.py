"""One request whose answer is recorded in the transaction of its work."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, final

from ..._logs import get_logger
from . import _problems as problems
from ._keys import stored_name
from ._policy import Policy
from ._problems import Failed
from ._record import Record, Unkept
from ._store import Store, Stored, Transaction

log: Final = get_logger("aiolocks.requests")

Work = Callable[[], Awaitable[Record | Unkept]]
"""Runs the handler."""

_NO_ANSWER: Final = b""
"""In a store: the request was done, and its answer was sent and is gone."""


@final
class InStore:
    """The record of one request in a store.

    Args:
        store: The store.
        policy: The options.
        prefix: The prefix of the session: services with other prefixes have records of their own.
        name: The result of `name_of`.
        fingerprint: The hash of the request.
    """

    __slots__ = ("_fingerprint", "_name", "_name_before", "_policy", "_store")

    def __init__(self, store: Store, policy: Policy, prefix: str, name: str, fingerprint: str) -> None:
        self._store = store
        self._policy = policy
        self._name = stored_name(prefix, name)
        self._name_before = name
        self._fingerprint = fingerprint

    async def run(self, work: Work) -> Record | Unkept:
        if (found := await self.found()) is not None:
            return found.replayed()
        answer: Record | Unkept | None = None
        try:
            async with self._store.transaction() as transaction:
                answer = await work()
                if isinstance(answer, Unkept):
                    if not answer.sent:
                        log.error("%s: rolled back: %s", self._name, answer.why)
                        raise Failed(error=problems.answer_too_long())
                    log.warning("%s: the answer is not in its record: %s", self._name, answer.why)
                    await self._commit(transaction, _NO_ANSWER)
                    return answer
                if answer.status < 400:
                    await self._commit(transaction, answer.dumps())
            if answer.status >= 400:
                # A handler that refused its request has no effects; the refusal is kept by itself.
                async with self._store.transaction() as transaction:
                    await self._commit(transaction, answer.dumps())
        except _Uncommitted as uncommitted:
            # Another was faster, or the commit came through and its confirmation did not.
            found = None
            with contextlib.suppress(Exception):
                found = await self.found()
            if found is None:
                raise uncommitted.error from None
            own = isinstance(answer, Record) and found == answer.again()
            return found if own else found.replayed()
        return answer

    async def _commit(self, transaction: Transaction, answer: bytes) -> None:
        record = Stored(self._fingerprint, answer)
        try:
            await transaction.commit(self._name, record, keep=self._policy.keep)
        except Exception as error:
            raise _Uncommitted(error) from error

    async def found(self) -> Record | None:
        stored = await self._store.find(self._name)
        if stored is None:
            # Until 0.2 the prefix was not in the key. Such a record must count as long as it is kept: without
            # it, a request that was done before an update would be done again after it.
            stored = await self._store.find(self._name_before)
        if stored is None:
            return None
        if stored.fingerprint != self._fingerprint:
            raise Failed(error=problems.reused())
        if stored.answer == _NO_ANSWER:
            raise Failed(error=problems.not_kept())
        return Record.loads(stored.answer)


@final
class _Uncommitted(Exception):  # noqa: N818 - it says by which of several awaits the error came
    """The commit has raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__()

"""The settings of a job; checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, final

from .._core.arguments import Metadata, lock_name, user_metadata, whole_number
from .._core.options import Options

_MOST_AT_ONCE: Final = 2**31 - 1

# The names that other libraries use for an option, or that are easily taken for it.
MEANT: Final = {
    "blocking_timeout": "asyncio.timeout() around run() or perform(), or run(waiting=0)",
    "concurrency": "limit= (how many may run at once)",
    "lock_name": "key=",
    "name": "key=",
    "on_conflict": "enqueue(mode, on_conflict=...)",
    "value": "limit= (how many may run at once)",
    "timeout": "ttl= (how long the lease lasts), or asyncio.timeout() around run() or perform()",
    "waiting": "run(waiting=...)",
}


@final
@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job.

    Attributes:
        limit: The most runs at once.
    """

    key: str
    options: Options
    limit: int

    @classmethod
    def checked(cls, key: object, *, ttl: object, limit: object, metadata: object) -> JobSettings:
        name = lock_name(key, "key")
        options = Options.checked(ttl=ttl, metadata=metadata)
        return cls(name, options, whole_number("limit", limit, most=_MOST_AT_ONCE))

    def options_with(self, metadata: Metadata | None) -> Options:
        """The options of one run, with metadata of its own beside those of the job."""
        if metadata is None:
            return self.options
        both = {**self.options.metadata, **user_metadata(metadata)}
        return dataclasses.replace(self.options, metadata=both)

"""The settings of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from ..errors import ConfigurationError
from .backoff import Backoff
from .guard import GuardMode

OnDeadlock = Literal["report", "raise"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session; checked. Times in seconds, sizes in bytes."""

    prefix: str
    backoff: Backoff
    command_timeout: float
    fence_retention: float
    metadata: dict[str, Any]
    largest_metadata: int
    largest_value: int
    guard: GuardMode = "log"
    on_deadlock: OnDeadlock = "report"

    def user_json(self, metadata: Mapping[str, Any]) -> str:
        """The user's metadata as they stand on the server.

        Raises:
            ConfigurationError: They are too large; nothing was sent.
        """
        text = json.dumps(metadata, separators=(",", ":"))
        if len(text) > self.largest_metadata:
            raise ConfigurationError(
                f"metadata have {len(text)} bytes as JSON, with those of the session, and at most "
                f"{self.largest_metadata} are allowed: Session(client, largest_metadata=...)"
            )
        return text

    def check_value(self, data: bytes) -> None:
        """Refuses a value that is too large; nothing was sent.

        Raises:
            ConfigurationError: It is.
        """
        if len(data) > self.largest_value:
            raise ConfigurationError(
                f"the value has {len(data)} bytes, and at most {self.largest_value} are allowed: "
                "Session(client, largest_value=...)"
            )

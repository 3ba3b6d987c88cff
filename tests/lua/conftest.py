"""Fixtures for tests of the scripts."""

from __future__ import annotations

import pytest

from tests.lua.scripts import Scripts
from tests.support.servers import ServerKind


@pytest.fixture
def acl(server_kind: ServerKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has access control lists, and a step needs nothing but `eval` to be run."""
    monkeypatch.setattr(Scripts, "by_digest", False)
    if server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: everybody may do everything")

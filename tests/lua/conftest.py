"""Fixtures for tests of the scripts."""

from __future__ import annotations

import pytest

from tests.support.servers import ServerKind


@pytest.fixture
def acl(server_kind: ServerKind) -> None:
    """The server has access control lists."""
    if server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: everybody may do everything")

"""Fixtures for tests of the scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lua.mutants import JUDGES, LEARN, VERDICT, depended_on, digest, is_judged
from tests.lua.scripts import Scripts
from tests.support.servers import ServerKind

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # and so before those with the marker `more` are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(LEARN) or not is_judged():
        return
    here = f"{FOLDER}{os.sep}"
    for item in items:
        if JUDGES.match(item.name) and str(item.path).startswith(here):
            item.add_marker("more")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With `AIOLOCKS_TEST_LEARN=1`: if the whole folder was run, and has passed, the verdict is kept."""
    asked = [session.config.invocation_params.dir / argument for argument in session.config.args]
    chosen = session.config.option.keyword
    if os.environ.get(LEARN) and exitstatus == 0 and FOLDER in asked and not chosen:
        VERDICT.write_text(f"{digest(depended_on())}\n", "utf-8")


@pytest.fixture
def acl(server_kind: ServerKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has access control lists, and a step needs nothing but `eval` to be run."""
    monkeypatch.setattr(Scripts, "by_digest", False)
    if server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: everybody may do everything")

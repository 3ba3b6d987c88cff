"""The servers of the pages that are run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from aiolocks.testing import EmbeddedServer
from tests.support.clusters import Cluster


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Callable[[], str]]:
    """Gives the URL of one node; the cluster is formed when it is first asked for."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(Cluster(None)).masters[0].url)

"""Runs the tests with tasks that begin eagerly, on Python 3.12 or later.

`python -m pytest -p tests.support.eager_tasks tests/conformance`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest


@pytest.hookimpl
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"eager": _eager_loop}


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    factory: Any = getattr(asyncio, "eager_task_factory", None)
    if factory is None:
        raise pytest.UsageError("tasks begin eagerly from Python 3.12 on")
    loop.set_task_factory(factory)
    return loop

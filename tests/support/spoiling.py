"""A task whose count of cancellations is raised, although nobody cancels it."""

from __future__ import annotations

import asyncio


async def _fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("a child has failed")


async def spoil() -> None:
    """A task group fails while its body has ended, and the failure is handled.

    CPython 3.11 and 3.12 leave `cancelling()` of the task raised by one.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_fail())
    except* ValueError:
        pass


def cancelling() -> int:
    """Requests to cancel the running task that nobody has taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()

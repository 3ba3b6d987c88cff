"""Workers are real processes that tell, obey signals and never outlive their test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import WorkerError, Workers, tell
from tests.support.waiting import eventually


async def double(number: int) -> None:
    tell("started", pid=os.getpid(), parent=os.getppid())
    tell("doubled", result=2 * number)


async def tick() -> None:
    while True:
        tell("tick", at=time.monotonic())
        await asyncio.sleep(0.005)


async def fail() -> None:
    tell("started")
    raise RuntimeError("of the worker's own")


async def start_one_and_tell() -> None:
    """A test run in miniature, to be killed."""
    async with Workers() as workers:
        worker = await workers.start(tick)
        await worker.told("tick")
        worker.stop()
        tell("grandchild", pid=worker.pid)
        await asyncio.sleep(60)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and was not yet asked for its status is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_runs_a_function_with_arguments_and_hears_what_it_tells(workers) -> None:
    worker = await workers.start(double, number=21)

    started, doubled = await worker.finish()

    assert started == {"event": "started", "pid": worker.pid, "parent": os.getpid()}
    assert doubled == {"event": "doubled", "result": 42}


async def test_several_run_side_by_side(workers) -> None:
    many = await workers.start_many(3, double, number=1)

    assert len({worker.pid for worker in many}) == 3
    for worker in many:
        assert len(await worker.finish()) == 2


async def test_waits_for_an_event_and_keeps_those_before(workers) -> None:
    worker = await workers.start(double, number=1)

    assert (await worker.told("doubled"))["result"] == 2
    assert [report["event"] for report in worker.told_so_far] == ["started", "doubled"]
    with pytest.raises(WorkerError, match=r"did not tell 'tripled' \(status 0;"):
        await worker.told("tripled")


async def test_does_not_wait_for_ever(workers) -> None:
    worker = await workers.start(tick)

    with pytest.raises(WorkerError, match="did not tell 'tock' \\(still running;"):
        await worker.told("tock", within=0.01)
    with pytest.raises(WorkerError, match="did not end with status 0 \\(still running;"):
        await worker.finish(within=0.01)


async def test_an_error_in_a_worker_is_the_tests(workers) -> None:
    worker = await workers.start(fail)

    with pytest.raises(WorkerError, match=r"(?s)\(status 1; .*RuntimeError: of the worker's own"):
        await worker.finish()
    assert len(await worker.finish(status=1)) == 1, "unless it was expected"


async def test_a_killed_worker_has_no_say_in_it(workers) -> None:
    worker = await workers.start(tick)
    await worker.told("tick")

    worker.kill()

    assert (await worker.finish(status=-signal.SIGKILL))[0]["event"] == "tick"
    worker.kill()  # nothing happens


async def test_a_stopped_worker_is_silent_until_it_goes_on(workers) -> None:
    worker = await workers.start(tick)
    await worker.told("tick")
    worker.stop()
    with pytest.raises(WorkerError, match="still running"):
        await worker.told("never", within=0.1)  # and all that was under way has been heard
    silent_since, now = worker.told_so_far[-1]["at"], time.monotonic()

    worker.cont()

    assert silent_since < now - 0.05 < now < (await worker.told("tick"))["at"], (
        "the clocks of all processes are one"
    )


async def test_leaving_ends_those_that_still_run() -> None:
    async with Workers() as workers:
        running, stopped = await workers.start_many(2, tick)
        for worker in (running, stopped):
            await worker.told("tick")
        stopped.stop()

    assert not is_running(running.pid)
    assert not is_running(stopped.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="a stopped process outlives its parent elsewhere")
async def test_a_run_that_is_killed_leaves_no_worker_not_even_a_stopped_one(workers) -> None:
    run = await workers.start(start_one_and_tell)
    grandchild = (await run.told("grandchild"))["pid"]
    assert is_running(grandchild)

    run.kill()

    await eventually(lambda: not is_running(grandchild), within=5)

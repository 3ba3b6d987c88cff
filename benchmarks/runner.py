"""Runs workloads: all contenders in the same run, in alternating rounds."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import nullcontext
from typing import Protocol

from aiolocks import ConfigurationError

from .cores import apart
from .crew import WorkerFailedError
from .machine import today
from .model import FLOOR, Result, Sample, Standing
from .servers import shown
from .settings import Address, Settings
from .workloads.base import Measure, Workload


class Watcher(Protocol):
    """The observer that is told of the progress."""

    def at(self, workload: str, contender: str, done: float) -> None:
        """This contender's turn; the share of the workload that is done."""
        ...


async def run(workload: Workload, settings: Settings, watcher: Watcher) -> Result:
    """Measures a workload."""
    began = time.monotonic()
    async with (
        asyncio.timeout(workload.limit),
        settings.embedded(port=0 if settings.tcp else None) as server,
    ):
        with apart(server.pid) if workload.core_apart else nullcontext():
            standings = await _rounds(workload, Address.of(server), watcher)
    return Result(
        name=workload.name,
        case=workload.case,
        work=workload.work,
        floor=workload.floor,
        server=shown(settings.server),
        one_server=workload.one_server,
        figures=list(workload.figures),
        standings=standings,
        seconds=time.monotonic() - began,
        date=today(),
    )


async def _rounds(workload: Workload, address: Address, watcher: Watcher) -> list[Standing]:
    """A contender that fails is left out from then on, and says why: it harms nobody else's figures."""
    contenders = list(workload.contenders)
    samples: dict[str, list[Sample]] = {contender: [] for contender in contenders}
    trouble: dict[str, str] = {}
    rounds = {contender: workload.rounds_of(contender) for contender in contenders}
    warm_up = int(workload.warm_up)
    turns = [
        (number < warm_up, contender)
        for number in range(warm_up + max(rounds.values()))
        for contender in contenders
        if number < warm_up + rounds[contender]
    ]
    async with workload.stage(address) as measure:
        for number, (thrown_away, contender) in enumerate(turns):
            if contender in trouble:
                continue
            watcher.at(workload.name, contender, number / len(turns))
            try:
                sample = await _measure(measure, contender, workload.patience)
            except Exception as error:
                if contender == FLOOR:
                    raise
                trouble[contender] = _say(error, address)
            else:
                if not thrown_away:
                    samples[contender].append(sample)
    return [
        Standing(contender, trouble=trouble[contender])
        if contender in trouble
        else Standing.of(contender, samples[contender])
        for contender in contenders
    ]


async def _measure(measure: Measure, contender: str, patience: float) -> Sample:
    gc.collect()
    async with asyncio.timeout(patience):
        return await measure(contender)


def _say(error: Exception, address: Address) -> str:
    """Why a contender has no figures, without the paths of this machine."""
    text = str(error) if isinstance(error, WorkerFailedError) else f"{type(error).__name__}: {error}"
    kind, _, message = text.replace(address.path, "the socket").partition(": ")
    if kind == ConfigurationError.__name__:
        return f"not available: {message}"
    if kind in ("ImportError", "ModuleNotFoundError"):
        return f"not installed: {message.partition(' (')[0]}"
    return f"failed: {kind}: {message}"

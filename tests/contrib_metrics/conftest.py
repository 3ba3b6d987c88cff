"""Both listeners, each with a place of its own to put what it measures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aiolocks import Session

OpenSession = Callable[..., Session]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


@pytest.fixture
async def open_session(redis: Redis, prefix: str) -> AsyncIterator[OpenSession]:
    """Makes sessions, closed at the end: `open_session(listener)`, `open_session(listener, to=client)`."""
    sessions: list[Session] = []

    def make(*listeners: object, to: Redis = redis, **options: Any) -> Session:
        sessions.append(Session(to, prefix=prefix, listeners=listeners, **options))
        return sessions[-1]

    yield make
    for session in sessions:
        await session.aclose()

"""Fixtures of the interop tests: the Java client, and the gateway's own link to a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from gateway.config import BrokerSettings
from gateway.upstreams import Upstream
from tests.interop.embedded import Embedded
from tests.servers.judge import Judge

Connect = Callable[[str], Awaitable[Upstream]]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Qpid's Java client."""
    judge = Judge()
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def embedded() -> Iterator[Embedded]:
    """The gateway's own broker."""
    broker = Embedded()
    yield broker
    broker.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """``await connect(url)``: a broker as the gateway sees it, connected."""
    opened: list[Upstream] = []

    async def open_upstream(url: str) -> Upstream:
        upstream = Upstream("interop", BrokerSettings(url=url, annotate=False))
        opened.append(upstream)
        await upstream.start()
        assert await upstream.wait_up(20), upstream.reason
        return upstream

    yield open_upstream
    for upstream in opened:
        await upstream.close()

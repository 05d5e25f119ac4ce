"""Upstreams over the fake broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.config import BrokerSettings
from gateway.session import Confirms
from gateway.upstreams import Upstream
from gateway.upstreams.publishing import isolation
from tests.upstreams.fake import FakeBroker

Start = Callable[..., Awaitable[Upstream]]


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def transacting() -> FakeBroker:
    """A broker that confirms by transactions and has no word for being blocked, as RabbitMQ's 0-8."""
    return FakeBroker(confirms=Confirms.TRANSACTION, blocked_notification=False)


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """``await start(broker, **settings)``: an upstream that is up. Its windows are wide open from the first publish on,
    unless ``proving`` is asked for."""
    started: list[Upstream] = []

    async def begin(broker: FakeBroker, wait: bool = True, **settings: Any) -> Upstream:
        monkeypatch.setattr("gateway.upstreams.keeper.client_session", broker.session)
        if not settings.pop("proving", False):
            monkeypatch.setattr(isolation, "FIRST_WINDOW", 65_535)
        version = settings.pop("version", "0-9-1")
        options = {"reconnect_min": 0.01, "reconnect_max": 0.05, "connect_timeout": 2.0, **settings}
        upstream = Upstream(
            "fake",
            BrokerSettings(url=f"amqp://guest:guest@localhost/?version={version}", **options),
            connector=broker.dial,
        )
        started.append(upstream)
        await upstream.start()
        if wait:
            assert await upstream.wait_up(30), upstream.reason
        return upstream

    yield begin
    for upstream in started:
        await upstream.close(0.0)

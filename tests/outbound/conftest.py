"""An endpoint, and the transport that may call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules
from tests.outbound.endpoint import Endpoint, endpoint

Make = Callable[..., GuardedTransport]
LOOPBACK = OutboundRules(allow=["127.0.0.0/8", "localhost", "hooks.example"])


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Endpoint]:
    """One for the test."""
    async with endpoint() as found:
        yield found


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    """Transports that may call loopback; limits by their names. All places must be free at the end."""
    made: list[GuardedTransport] = []

    def make(
        rules: OutboundRules = LOOPBACK, *, resolve: Any = None, dial: Any = None, tls: Any = None, **limits: Any
    ) -> Any:
        options = {"resolve": resolve} | ({"dial": dial} if dial else {}) | ({"tls": tls} if tls else {})
        found = GuardedTransport(rules, replace(DEFAULT_OUTBOUND_LIMITS, **limits), **options)
        made.append(found)
        return found

    yield make
    for transport in made:
        await transport.aclose()
    for _ in range(20):
        if not any(transport.open for transport in made):
            break
        await asyncio.sleep(0.01)
    assert [transport.open for transport in made] == [0] * len(made)


@pytest_asyncio.fixture
async def transport(make: Make) -> GuardedTransport:
    """One with the usual limits."""
    return make()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops that the gateway runs on: their transports differ in how connections end."""
    if item.path.name == "test_rebinding.py":  # nothing is connected there
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

"""A real server, and a sender that may call it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.outbound import GuardedTransport
from gateway.webhooks.attempts.sender import Sender
from tests.outbound.conftest import make, server

__all__ = ["make", "server"]


@pytest.fixture
async def transport(make: Callable[..., GuardedTransport]) -> GuardedTransport:
    """One that may call loopback."""
    return make()


@pytest.fixture
async def sender(transport: GuardedTransport) -> AsyncIterator[Sender]:
    """Over that transport."""
    found: Any = Sender(transport)
    yield found
    await found.close()

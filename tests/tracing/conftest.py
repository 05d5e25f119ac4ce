"""A collector for each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.tracing.collector import Collector, collecting


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as found:
        yield found

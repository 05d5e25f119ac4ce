"""The harness without a fault: everything arrives, once, and the table says so."""

from __future__ import annotations

import pytest

from tests.faults.harness import Run
from tests.faults.load import Shape
from tests.servers import RabbitMQ

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("version", ["0-9-1", "0-8"])
async def test_a_good_day_on_rabbitmq(rabbitmq: RabbitMQ, version: str) -> None:
    async with Run(rabbitmq, version, "no fault", Shape(messages=300)) as run:
        run.load.begin()
        verdict = await run.finish()
        assert verdict.attempted == verdict.acknowledged == 300

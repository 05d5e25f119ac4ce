"""The harness without a fault: everything arrives, once, and the table says so."""

from __future__ import annotations

import pytest

from tests.faults.harness import Run
from tests.faults.load import Shape
from tests.servers import serving

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("version", ["0-9-1", "0-8"])
async def test_a_good_day_on_rabbitmq(request: pytest.FixtureRequest, version: str) -> None:
    rabbitmq = request.getfixturevalue(serving("rabbitmq", version))
    async with Run(rabbitmq, version, "no fault", Shape(messages=300)) as run:
        run.load.begin()
        verdict = await run.finish()
        assert verdict.attempted == verdict.acknowledged == 300

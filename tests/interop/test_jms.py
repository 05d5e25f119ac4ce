"""What JMS applications do, over 0-8 to 0-10: on Broker-J, their usual one, and on the embedded broker."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.versions import VERSION_NAMES
from tests.servers.judge import Judge

pytestmark = pytest.mark.broker

VERSIONS = VERSION_NAMES


@pytest.mark.parametrize("syntax", ["ADDR", "BURL"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("server", "virtual_host"), [("brokerj", "memory"), ("embedded", "/")])
def test_every_step_of_the_scenario_succeeds(
    server: str, virtual_host: str, version: str, syntax: str, judge: Judge, request: pytest.FixtureRequest
) -> None:
    broker: Any = request.getfixturevalue(server)
    steps = judge.scenario(version, broker.port, virtual_host, syntax)
    assert len(steps) >= 14
    assert {step: error for step, error in steps.items() if error is not None} == {}

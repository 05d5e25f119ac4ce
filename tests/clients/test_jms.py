"""A JMS application of each version on RabbitMQ 4.3, which serves none of them; through a front it works.

What RabbitMQ cannot do is refused with a sentence: docs/reference/front-door-jms.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.versions import VERSION_NAMES
from tests.front.fronts import RunningFront
from tests.servers.judge import Judge

pytestmark = pytest.mark.broker

REFUSED = {
    "browse leaves messages": "NOT_IMPLEMENTED - a consumer that does not acquire: the broker behind this gateway "
    "cannot browse",
    "selector": "NOT_IMPLEMENTED - a selector: the broker behind this gateway would ignore it",
}
"""Steps of the application that RabbitMQ cannot take, and the sentence of the front."""


@pytest.fixture
def front(rabbitmq43: Any) -> Iterator[RunningFront]:
    """A front to RabbitMQ 4.3."""
    front = RunningFront(rabbitmq43.url("0-9-1"))
    yield front
    front.close()


@pytest.fixture(scope="module")
def java() -> Iterator[Judge]:
    """Qpid's JMS client."""
    judge = Judge()
    yield judge
    judge.close()


def test_directly(rabbitmq43: Any, java: Judge) -> None:
    step = "send and receive"
    for version in VERSION_NAMES:
        assert java.scenario(version, rabbitmq43.port, "/", "BURL", only=step)[step] is not None


@pytest.mark.parametrize("syntax", ["ADDR", "BURL"])
@pytest.mark.parametrize("version", VERSION_NAMES)
def test_through_a_front(front: RunningFront, java: Judge, version: str, syntax: str) -> None:
    steps = java.scenario(version, front.port, "/", syntax)
    assert len(steps) >= 14
    failed = {step: error for step, error in steps.items() if error is not None}
    assert failed.keys() == REFUSED.keys(), failed
    for step, error in failed.items():
        assert REFUSED[step] in error
        assert "error code: 540(not implemented)" in error

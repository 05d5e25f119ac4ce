"""Every pair of versions, there and back by real bridges over real brokers. The full form is
``python -m tests.translation.live``."""

from __future__ import annotations

import pytest

from gateway.versions import VERSION_NAMES
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.translation.live.ends import ENDS, Servers, ends
from tests.translation.live.run import there_and_back

pytestmark = pytest.mark.broker

MESSAGES = 300
QUICK = (
    ("rabbitmq-0-8", "brokerj-0-8"),
    ("brokerj-0-8", "rabbitmq-0-9-1"),
    ("brokerj-0-8", "brokerj-0-10"),
    ("rabbitmq-0-9-1", "rabbitmq-0-8"),
    ("brokerj-0-9-1", "rabbitmq-0-9-1"),
    ("rabbitmq-0-9-1", "brokerj-0-10"),
    ("brokerj-0-10", "rabbitmq-0-8"),
    ("brokerj-0-10", "brokerj-0-9-1"),
    ("brokerj-0-10", "brokerj-0-10"),
    ("brokerj-0-9", "brokerj-0-9"),
    ("brokerj-0-9", "rabbitmq-0-8"),
    ("brokerj-0-8", "brokerj-0-9"),
    ("brokerj-0-9", "rabbitmq-0-9-1"),
    ("rabbitmq-0-9-1", "brokerj-0-9"),
    ("brokerj-0-9", "brokerj-0-10"),
    ("brokerj-0-10", "brokerj-0-9"),
)
"""Each pair of versions once, and each end in both directions."""


@pytest.mark.parametrize(("source", "target"), QUICK)
async def test_all_comes_back_as_it_was(
    source: str, target: str, rabbitmq: RabbitMQ, rabbitmq310: RabbitMQ310, brokerj: BrokerJ
) -> None:
    (one,), (other,) = ends(source), ends(target)
    # Each pair has another stretch of the edge values.
    seed = QUICK.index((source, target)) * 2 + 1
    result = await there_and_back(one, other, Servers(rabbitmq, rabbitmq310, brokerj), seed, MESSAGES)
    assert result.perfect, "\n".join([str(result.row()), *result.notes()])


def test_it_is_each_pair_of_versions() -> None:
    versions = {tuple(end.partition("-")[2] for end in pair) for pair in QUICK}
    assert len(versions) == len(QUICK) == len(VERSION_NAMES) ** 2
    assert len({source for source, _ in QUICK}) == len({target for _, target in QUICK}) == len(ENDS)

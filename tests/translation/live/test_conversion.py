"""What the documentation says of Broker-J's own conversion is what is seen, and the gateway keeps all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.translation.live import conversion
from tests.translation.live.ends import Servers

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "translation-losses.md"


@pytest.mark.broker
async def test_the_table_in_the_docs_is_what_is_seen(
    rabbitmq: RabbitMQ, rabbitmq310: RabbitMQ310, brokerj: BrokerJ
) -> None:
    seen, through = await conversion.look(Servers(rabbitmq, rabbitmq310, brokerj))
    changed = {f"{pair} {name}": what for pair, found in through.items() for name, what in found.items() if what}
    assert changed == {}
    table = conversion.table(seen)
    assert table in PAGE.read_text(), table


def test_every_type_and_property_is_a_sample() -> None:
    for version, end in conversion.END.items():
        samples = [sample for sample in conversion.SAMPLES if version in sample.versions]
        headers = {name for sample in samples for name in [sample.name.partition("header: ")[2]] if name}
        assert {name.partition(",")[0].partition(" ")[0] for name in headers} == set(end.types)

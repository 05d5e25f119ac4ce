"""A message that costs too much to match: refused, counted and logged once."""

from __future__ import annotations

import logging

import pytest

from gateway.amqp.operations import BindQueue, CloseChannel, DeclareQueue, Failed
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.limits import BrokerLimits
from gateway.observing.telemetry import Metrics
from tests.broker.clients import Client


def test_a_message_that_costs_too_much_to_match_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("test")
    broker = EmbeddedBroker(EmbeddedSettings(port=0), broker_limits=BrokerLimits(match_steps=8), metrics=metrics)
    client = Client(broker.broker)
    client(DeclareQueue(1, "q"))
    for number in range(20):
        client(BindQueue(1, "q", "amq.match", arguments={"x-match": "all", f"h{number}": number}))
    with caplog.at_level(logging.WARNING, "gateway"):
        for _ in range(2):
            told = client.publish("", exchange="amq.match", headers={"h19": 0})
            assert any(isinstance(each, CloseChannel | Failed) and each.code == 506 for each in told), told
            client = Client(broker.broker)
    assert b"amqpgw_embedded_matches_refused_total 2.0" in metrics.render()
    lines = [record for record in caplog.records if record.message == "embedded.match_refused"]
    assert len(lines) == 2, "once for each connection"


def test_one_that_does_not_is_routed() -> None:
    metrics = Metrics("test")
    broker = EmbeddedBroker(EmbeddedSettings(port=0), broker_limits=BrokerLimits(match_steps=1_000), metrics=metrics)
    client = Client(broker.broker)
    client(DeclareQueue(1, "q"), BindQueue(1, "q", "amq.match", arguments={"x-match": "all", "h": 1}))
    client.publish("", b"x", exchange="amq.match", headers={"h": 1})
    assert client.drain("q") == [b"x"]
    assert b"amqpgw_embedded_matches_refused_total 0.0" in metrics.render()

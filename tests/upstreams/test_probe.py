"""What a broker really speaks."""

from __future__ import annotations

import pytest

from gateway.amqp.operations import Closed, CloseReason, Opened
from gateway.config import BrokerSettings
from gateway.upstreams import keeper, probe
from gateway.v08.version import V0_8
from gateway.v09.version import V0_9
from tests.upstreams.fake import FakeBroker, Peer, until


async def test_each_version_is_tried(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Peer] = []

    def second_only(peer: Peer, operation: Opened) -> bool:
        tried.append(peer)
        if len(tried) == 2:
            return False
        peer.send(Closed(0, CloseReason.PROTOCOL_HEADER, 0, "no", supported="0-9-1"))
        return True

    broker.on[Opened] = second_only
    monkeypatch.setattr("gateway.upstreams.keeper.client_session", broker.session)
    result = await probe(BrokerSettings(url="amqp://localhost:5/?version=0-10"), broker.dial)
    assert (result.host, result.port, result.versions) == ("localhost", 5, (V0_9,))
    first, second, third, _ = result.attempts
    assert (first.version, first.speaks, first.supported) == (V0_8, False, "0-9-1")
    assert "0-9-1" in first.reason
    assert (second.product, second.reason, second.supported) == ("Fake", "", None)
    assert second.capabilities is not None
    assert third.capabilities is None


async def test_no_connection_is_left_behind(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "client_session", broker.session)
    found = await probe(BrokerSettings(url="amqp://guest:guest@localhost/"), broker.dial)
    assert broker.connections == len(found.attempts) == len(found.versions)
    await until(lambda: not broker.peers)

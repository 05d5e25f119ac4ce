"""Where brokers may be that somebody put over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.config import BrokerSettings, OutboundSettings, parse_broker_url
from gateway.errors import AddressDenied, EncodeError, ResolveFailed
from gateway.outbound import BrokerGuard, OutboundRules

DEFAULT = OutboundSettings().broker_allow


def guard(*allow: str, addresses: Sequence[str] = ()) -> BrokerGuard:
    async def resolve(host: str) -> Sequence[str]:
        if not addresses:
            raise ResolveFailed(f"{host}: no such host")
        return addresses

    return BrokerGuard(OutboundRules(own=[("127.0.0.1", 8080)]).beside(allow or DEFAULT, "broker_allow"), resolve)


def test_private_networks_are_allowed_and_metadata_is_not() -> None:
    for url in ("amqp://10.1.2.3/", "amqps://192.168.0.5:5673/", "amqp://172.31.0.1/", "amqp://rabbit.example:7/"):
        guard().check(BrokerSettings(url=url))
    for host in ("169.254.169.254", "127.0.0.1", "100.100.100.200", "[fd00:ec2::254]", "[::1]", "0.0.0.0", "localhost"):
        with pytest.raises(AddressDenied, match=r"`broker_allow` of .outbound.") as refused:
            guard().check(BrokerSettings(url=f"amqp://{host}/"))
        assert str(refused.value).startswith(f"amqp://{host}: ")
    with pytest.raises(AddressDenied, match=r"^amqp://169.254.169.254:81: "):
        guard().check(BrokerSettings(url="amqp://rabbit.example/", hosts=("169.254.169.254:81",)))
    with pytest.raises(AddressDenied):
        guard().check(BrokerSettings(url="amqp://rabbit.example/", redirect_hosts=("127.0.0.1",)))
    with pytest.raises(EncodeError, match=r"^url: .*no host name"):
        guard().check(BrokerSettings(url="amqp://a..b/"))


def test_what_is_listed_is_allowed_but_the_gateway_itself() -> None:
    guard("127.0.0.0/8").check(BrokerSettings(url="amqp://127.0.0.1/"))
    with pytest.raises(AddressDenied, match="is this gateway itself"):
        guard("127.0.0.0/8").check(BrokerSettings(url="amqp://127.0.0.1:8080/"))


async def test_every_address_is_judged_when_the_gateway_connects(caplog: pytest.LogCaptureFixture) -> None:
    url = parse_broker_url("amqp://rabbit.example/")
    assert await guard(addresses=["10.0.0.1", "192.0.9.1"])(url) == ["10.0.0.1", "192.0.9.1"]
    with pytest.raises(ResolveFailed, match="no address that the gateway may call") as refused:
        await guard(addresses=["10.0.0.1", "169.254.169.254"])(url)
    assert "169.254" not in str(refused.value), "everybody who sees the broker sees why it is not up"
    logged = [vars(record) for record in caplog.records if record.message == "broker.not_resolved"]
    assert "cloud metadata" in str(logged)
    with pytest.raises(AddressDenied, match="cloud metadata"):
        await guard()(parse_broker_url("amqp://169.254.169.254/"))
    with pytest.raises(ResolveFailed):
        await guard()(url)
    assert await guard("rabbit.example", addresses=["127.0.0.1"])(url) == ["127.0.0.1"]
    assert await guard()(parse_broker_url("amqp://10.0.0.1/")) == ["10.0.0.1"]


async def test_a_lookup_ends_with_the_guard() -> None:
    found = BrokerGuard(OutboundRules().beside(DEFAULT, "broker_allow"))
    found.close()
    await asyncio.sleep(0)

"""``amqps://`` against real brokers: whom we trust, who must trust us, and what is said when that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings, TlsSettings
from gateway.errors import BrokerUnavailable
from gateway.upstreams import Upstream, UpstreamState, probe
from gateway.versions import VERSION_NAMES
from tests.servers import BrokerJWithTls, RabbitMQWithTls, serving
from tests.servers.certificates import EXPIRED, MUTUAL, NAMES
from tests.upstreams.fake import until

pytestmark = pytest.mark.broker

CONNECT_TIMEOUT = 5.0
DOCUMENTED = {"code": "broker_unavailable", "retryable": True, "outcome": "not_sent"}

Begin = Callable[[BrokerSettings], Awaitable[Upstream]]
Name = Callable[[str], str]


@pytest.fixture
def rabbit(private_server: Callable[[str], RabbitMQWithTls], request: pytest.FixtureRequest) -> RabbitMQWithTls:
    """The one that speaks the version of the test."""
    version = request.getfixturevalue("version") if "version" in request.fixturenames else "0-9-1"
    return private_server(serving("rabbitmq-tls", version))


@pytest.fixture
def qpid(private_server: Callable[[str], BrokerJWithTls]) -> BrokerJWithTls:
    return private_server("brokerj-tls")


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """An upstream that is as far as it gets: up, or not to be had."""
    begun: list[Upstream] = []

    async def start(settings: BrokerSettings) -> Upstream:
        upstream = Upstream("tls", settings)
        begun.append(upstream)
        await upstream.start()
        await until(lambda: upstream.state is not UpstreamState.CONNECTING, CONNECT_TIMEOUT)
        return upstream

    yield start
    for upstream in begun:
        await upstream.close(0.0)


def settings(port: int, host: str = "localhost", version: str = "0-9-1", scheme: str = "amqps", **tls: Any) -> Any:
    return BrokerSettings(
        url=f"{scheme}://guest:guest@{host}:{port}/?version={version}",
        connect_timeout=CONNECT_TIMEOUT,
        tls=TlsSettings(**tls),
    )


async def works(upstream: Upstream, begin: Begin, queue: str) -> None:
    """Publish, fetch, accept. A connection that ends gives back what was not accepted; the next one finds nothing."""
    assert await upstream.wait_up(CONNECT_TIMEOUT), upstream.reason
    await upstream.declare_queue(queue)
    body = bytes(range(256)) * 4096  # more than one record of TLS, and than one frame
    await upstream.publish("", queue, Message(body))
    (delivery,) = await upstream.fetch(queue, 1, 5.0)
    assert delivery.message.body == body
    delivery.settle(Settlement.ACCEPT)
    await upstream.close()
    again = await begin(upstream.settings)
    assert await again.wait_up(CONNECT_TIMEOUT), again.reason
    assert await again.fetch(queue, 1) == []
    await again.delete_queue(queue)


async def refused(upstream: Upstream, state: UpstreamState, words: str) -> None:
    """It is not up and says why, so does a probe, and nobody has been told a password."""
    assert upstream.state is state
    assert words in upstream.reason
    assert upstream.status().code == ("certificate_refused" if state is UpstreamState.FAILED else "protocol_mismatch")
    with pytest.raises(BrokerUnavailable, match="tls") as caught:
        await upstream.publish("", "anything", Message(b"secret"))
    assert {name: getattr(caught.value, name) for name in DOCUMENTED} == DOCUMENTED
    found = await probe(upstream.settings)
    assert found.versions == ()
    assert all(words in attempt.reason for attempt in found.attempts)
    assert not any(attempt.product or attempt.mechanisms for attempt in found.attempts)  # no start, so no start-ok


@pytest.mark.parametrize("version", ["0-8", "0-9-1", "auto"])
async def test_a_verified_connection(rabbit: RabbitMQWithTls, begin: Begin, unique_name: Name, version: str) -> None:
    upstream = await begin(settings(rabbit.tls_port, version=version, ca_file=rabbit.certificates.ca_file))
    await works(upstream, begin, unique_name("tls"))


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_a_verified_connection_to_brokerj(
    qpid: BrokerJWithTls, begin: Begin, unique_name: Name, version: str
) -> None:
    upstream = await begin(settings(qpid.tls_port, version=version, ca_file=qpid.certificates.ca_file))
    await works(upstream, begin, unique_name("tls"))


async def test_brokerj_on_the_wrong_port(qpid: BrokerJWithTls, begin: Begin) -> None:
    plain = await begin(settings(qpid.port, ca_file=qpid.certificates.ca_file))
    assert plain.state is UpstreamState.FAILED
    assert "that port does not speak TLS" in plain.reason
    secure = await begin(settings(qpid.tls_port, scheme="amqp"))
    assert secure.state is UpstreamState.DOWN
    assert "hung up" in secure.reason  # without a word


async def test_an_unknown_authority(rabbit: RabbitMQWithTls, begin: Begin) -> None:
    for tls in ({}, {"ca_file": rabbit.certificates.other_ca_file}):
        upstream = await begin(settings(rabbit.tls_port, **tls))
        await refused(upstream, UpstreamState.FAILED, "the certificate does not verify: self-signed")


async def test_another_host_s_name(rabbit: RabbitMQWithTls, begin: Begin, unique_name: Name) -> None:
    ca_file = rabbit.certificates.ca_file
    upstream = await begin(settings(rabbit.tls_port, "127.0.0.1", ca_file=ca_file))
    await refused(upstream, UpstreamState.FAILED, "certificate is not valid for '127.0.0.1'")
    named = await begin(settings(rabbit.tls_port, "127.0.0.1", ca_file=ca_file, server_name=NAMES[1]))
    await works(named, begin, unique_name("tls"))


async def test_an_expired_certificate(rabbit: RabbitMQWithTls, begin: Begin) -> None:
    upstream = await begin(settings(rabbit.tls_port, ca_file=rabbit.certificates.ca_file, server_name=EXPIRED))
    await refused(upstream, UpstreamState.FAILED, "the certificate does not verify: certificate has expired")


async def test_a_client_certificate(rabbit: RabbitMQWithTls, begin: Begin, unique_name: Name) -> None:
    """In TLS 1.3 the refusal comes when our handshake is over: the first words of AMQP may be on their way."""
    files = rabbit.certificates
    asked: dict[str, Any] = {"ca_file": files.ca_file, "server_name": MUTUAL}
    for version in ("0-9-1", "auto"):
        without = await begin(settings(rabbit.tls_port, version=version, **asked))
        await refused(without, UpstreamState.FAILED, "the broker wants a client certificate, see tls.cert_file")
    foreign = {"cert_file": files.cert_file("foreign"), "key_file": files.key_file("foreign")}
    stranger = await begin(settings(rabbit.tls_port, **asked, **foreign))
    await refused(stranger, UpstreamState.FAILED, "does not know the authority of our tls.cert_file")
    ours = {"cert_file": files.cert_file("client"), "key_file": files.key_file("client")}
    await works(await begin(settings(rabbit.tls_port, **asked, **ours)), begin, unique_name("tls"))


async def test_without_verification(
    rabbit: RabbitMQWithTls, begin: Begin, unique_name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gateway"):
        upstream = await begin(settings(rabbit.tls_port, "127.0.0.1", dangerous_disable_verification=True))
        await works(upstream, begin, unique_name("tls"))
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.getMessage() for record in warnings} == {"broker.tls_not_verified"}


@pytest.mark.parametrize("version", [*VERSION_NAMES, "auto"])
async def test_the_wrong_port(rabbit: RabbitMQWithTls, begin: Begin, unique_name: Name, version: str) -> None:
    """Each other's port, while somebody else works: said within the time to connect, and nobody else notices."""
    ca_file = rabbit.certificates.ca_file
    other = await begin(settings(rabbit.tls_port, ca_file=ca_file))
    began = asyncio.get_running_loop().time()
    plain = await begin(settings(rabbit.tls_port, version=version, scheme="amqp"))
    secure = await begin(settings(rabbit.port, version=version, ca_file=ca_file))
    assert asyncio.get_running_loop().time() - began < CONNECT_TIMEOUT
    await refused(plain, UpstreamState.DOWN, "it is TLS: use amqps://")
    await refused(secure, UpstreamState.FAILED, "that port does not speak TLS")
    await works(other, begin, unique_name("tls"))

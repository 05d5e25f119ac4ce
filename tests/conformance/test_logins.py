"""How we log in to real brokers: each mechanism, in each version that the broker speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp import sasl
from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import DeclareQueue, DeleteQueue, Done, Settlement, UpdateSecret
from gateway.amqp.sasl import Mechanism
from gateway.config import BrokerSettings, TlsSettings
from gateway.errors import AuthenticationFailed, LoginCut
from gateway.link import Channel
from gateway.upstreams import Upstream
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.conformance.conftest import FarEnd
from tests.servers import BrokerJ, BrokerJWithTls, RabbitMQWithTls, serving
from tests.servers.certificates import CLIENT, MUTUAL

ROUNDS = ("SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5")
VERSIONS = VERSION_NAMES


@pytest.fixture
def rabbit(private_server: Callable[[str], RabbitMQWithTls], request: pytest.FixtureRequest) -> RabbitMQWithTls:
    """The one that speaks the version of the test."""
    version = request.getfixturevalue("version") if "version" in request.fixturenames else "0-9-1"
    return private_server(serving("rabbitmq-tls", version))


@pytest.fixture
def qpid(private_server: Callable[[str], BrokerJWithTls]) -> BrokerJWithTls:
    return private_server("brokerj-tls")


def url(port: int, version: str, user: str = "", scheme: str = "amqp", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{user}{'@' if user else ''}{host}:{port}/?version={version}"


async def works(settings: BrokerSettings, queue: str) -> None:
    """It is open, and good for something."""
    link = await Dialer("login", settings).open("conformance")
    try:
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, queue, durable=True, auto_delete=True))
        await channel.request(DeleteQueue(channel.number, queue))
    finally:
        await link.close()


async def refused(settings: BrokerSettings, words: str) -> None:
    with pytest.raises((AuthenticationFailed, LoginCut), match=words):
        await Dialer("login", settings).open("conformance")


@pytest.mark.broker
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mechanism", ROUNDS)
async def test_rounds_of_brokerj(
    brokerj: BrokerJ, unique_name: Callable[[str], str], version: str, mechanism: str
) -> None:
    where = f"amqp://guest:%s@127.0.0.1:{brokerj.port}/memory?version={version}"
    await works(BrokerSettings(url=where % "guest", mechanisms=(mechanism,)), unique_name("login"))
    await refused(BrokerSettings(url=where % "wrong", mechanisms=(mechanism,)), "refused|hung up")


@pytest.mark.broker
@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
async def test_rounds_of_rabbitmq(
    rabbit: RabbitMQWithTls, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """It has one mechanism with a challenge, for demonstration: what a client answers is the test's, how it comes there
    and back is ours."""

    class Demonstration(Mechanism):
        name = "RABBIT-CR-DEMO"

        def start(self) -> bytes:
            return self.user.encode()

        def challenge(self, data: bytes) -> bytes:
            assert data == b"Please tell me your password"
            return b"My password is " + self.password.encode()

    monkeypatch.setitem(sasl.MECHANISMS, "RABBIT-CR-DEMO", Demonstration)  # type: ignore[arg-type]
    where = f"amqp://guest:%s@127.0.0.1:{rabbit.port}/?version={version}"
    await works(BrokerSettings(url=where % "guest", mechanisms=(Demonstration.name,)), unique_name("login"))
    await refused(BrokerSettings(url=where % "wrong", mechanisms=(Demonstration.name,)), "refused|hung up")


def certified(server: Any, port: int, version: str, host: str, user: str = "", **more: Any) -> BrokerSettings:
    files = server.certificates
    tls = TlsSettings(
        ca_file=files.ca_file,
        cert_file=files.cert_file("client"),
        key_file=files.key_file("client"),
        server_name=MUTUAL if host == MUTUAL else "",
    )
    where = url(port, version, user, "amqps", "localhost")
    return BrokerSettings(url=where, tls=tls, mechanisms=("EXTERNAL",), **more)


@pytest.mark.broker
@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
async def test_a_certificate_at_rabbitmq(
    rabbit: RabbitMQWithTls, unique_name: Callable[[str], str], version: str
) -> None:
    settings = certified(rabbit, rabbit.tls_port, version, MUTUAL)
    if CLIENT in {row["name"] for row in rabbit.api("GET", "users")}:
        rabbit.delete_user(CLIENT)
    await refused(settings, "refused|hung up")  # the certificate is good, and nobody has that name
    rabbit.create_user(CLIENT, "unused")
    await works(settings, unique_name("login"))
    plain = BrokerSettings(url=url(rabbit.port, version), mechanisms=("EXTERNAL",))
    await refused(plain, "none of the mechanisms offered")


@pytest.mark.broker
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_certificate_at_brokerj(qpid: BrokerJWithTls, unique_name: Callable[[str], str], version: str) -> None:
    await works(certified(qpid, qpid.external_port, version, "localhost"), unique_name("login"))
    without = BrokerSettings(url=url(qpid.port, version), mechanisms=("EXTERNAL",))
    await refused(without, "no mechanism in common|none of the mechanisms offered")


@pytest.mark.broker
@pytest.mark.parametrize("version", VERSIONS)
async def test_nobody_at_brokerj(qpid: BrokerJWithTls, unique_name: Callable[[str], str], version: str) -> None:
    settings = BrokerSettings(url=url(qpid.anonymous_port, version, "me:secret"))
    await refused(settings, "no mechanism in common|none of the mechanisms offered")  # it was not asked for
    settings = BrokerSettings(url=url(qpid.anonymous_port, version), mechanisms=("ANONYMOUS",))
    await works(settings, unique_name("login"))


@pytest.mark.broker
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_of_somebody_whom_only_the_broker_knows(
    qpid: BrokerJWithTls, unique_name: Callable[[str], str], version: str
) -> None:
    """A user-id is not said of a login that we do not know: the broker would refuse it, or believe it."""
    settings = BrokerSettings(url=url(qpid.anonymous_port, version), mechanisms=("ANONYMOUS",))
    upstream = Upstream("nobody", settings)
    await upstream.start()
    try:
        assert await upstream.wait_up(10), upstream.reason
        queue = unique_name("login")
        await upstream.declare_queue(queue)
        target = upstream.target
        assert target is not None
        assert target.login == ""
        await upstream.publish("", queue, Message(b"body", Properties(app_id="me")))
        (delivery,) = await upstream.fetch(queue, 1, 5.0)
        assert (delivery.message.body, delivery.message.properties.app_id) == (b"body", "me")
        delivery.settle(Settlement.ACCEPT)
        await upstream.delete_queue(queue)
    finally:
        await upstream.close()


@pytest.mark.broker
async def test_a_new_password_for_rabbitmq(rabbit: RabbitMQWithTls) -> None:
    """RabbitMQ's own users never expire, so it takes what it is told; and the connection goes on."""
    where = url(rabbit.port, "0-9-1", "guest:guest")
    link = await Dialer("login", BrokerSettings(url=where)).open("conformance")
    try:
        assert link.capabilities.update_secret
        assert await link.request(UpdateSecret(0, "another", "rotation")) == Done(0, 1, 1)
        await link.channel(Channel).open()
    finally:
        await link.close()


async def test_the_best_mechanism_is_taken(far_end: FarEnd) -> None:
    """Of those that the broker offers, the first of ours; nobody is told a password who can do without."""
    link = await far_end.link()
    offered = link.capabilities.mechanisms
    assert ("SCRAM-SHA-256" in offered) == (far_end.kind != "rabbitmq")
    modern = far_end.kind == "rabbitmq" and far_end.version != "0-8"
    assert {"ANONYMOUS", "EXTERNAL"} & set(offered) == ({"ANONYMOUS"} if modern else set())
    taken: Any = link.session
    best = "SCRAM-SHA-256" if far_end.kind != "rabbitmq" else "PLAIN"
    assert taken._mechanism.name == best

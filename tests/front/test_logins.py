"""How clients log in at a front: as its users, by certificate, or with their own login at the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import DeclareQueue, Get, Got, Publish, SelectConfirm
from gateway.broker.server import EmbeddedBroker
from gateway.config import (
    BrokerSettings,
    EmbeddedSettings,
    EmbeddedUser,
    FrontSettings,
    FrontTls,
    FrontUser,
    TlsSettings,
)
from gateway.errors import AuthenticationFailed, BrokerUnavailable, ConfigurationError, GatewayError
from gateway.front import server
from gateway.front.pool import as_user
from gateway.front.server import Front
from gateway.limits import Limits
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.broker.test_logins import Files
from tests.upstreams.fake import until

USERS = (EmbeddedUser(name="guest", password="guest"), EmbeddedUser(name="carol", password="p@ss/word: ü"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(EmbeddedSettings(port=0, users=USERS), Limits(close_timeout=0.5))
    await broker.start()
    yield broker
    await broker.stop()


@asynccontextmanager
async def front_of(broker: EmbeddedBroker, version: str = "0-9-1", **settings: Any) -> AsyncIterator[Front]:
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/?version={version}"
    upstream = BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.05)
    front = Front("test", FrontSettings(port=0, broker="upstream", **settings), {"upstream": upstream})
    await front.start()
    try:
        yield front
    finally:
        await front.stop()


async def opened(front: Front, version: str = "0-9-1", user: str = "carol", password: str = USERS[1].password) -> Link:
    settings = BrokerSettings(url=f"amqp://127.0.0.1:{front.port}/?version={version}")
    return await Dialer("client", as_user(settings, user, password)).open("client")


def logins(broker: EmbeddedBroker) -> list[str]:
    return sorted(connection.user for connection in broker.broker.connections.values() if connection.open)


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_the_broker_checks_the_clients_own_login(broker: EmbeddedBroker, version: str) -> None:
    async with front_of(broker, login="pass") as front:
        link = await opened(front, version)
        assert logins(broker) == ["carol"]
        other = await opened(front, version)
        assert logins(broker) == ["carol"], "both share a connection"
        guest = await opened(front, version, "guest", "guest")
        assert logins(broker) == ["carol", "guest"]
        with pytest.raises(AuthenticationFailed):
            await opened(front, version, "carol", "wrong")
        with pytest.raises(AuthenticationFailed):
            await opened(front, version, "nobody", "")
        await until(lambda: logins(broker) == ["carol", "guest"], 5.0)
        assert len(front.pool.links) == 2
        for each in (link, other, guest):
            channel = each.channel(Channel)
            await channel.open()
            await channel.request(DeclareQueue(channel.number, "q", durable=True))
            await each.close()


@pytest.mark.parametrize("version", ["0-9-1", "0-10"])
async def test_a_user_id_reaches_readers_as_it_is(broker: EmbeddedBroker, version: str) -> None:
    async with front_of(broker, version, login="pass") as front:
        link = await opened(front)
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(SelectConfirm(channel.number))
        channel.send(Publish(channel.number, "", "q", Message(b"m", Properties(user_id="carol"))))
        got = await channel.request(Get(channel.number, "q", no_ack=True))
        while not isinstance(got, Got):
            got = await channel.request(Get(channel.number, "q", no_ack=True))
        assert got.message.properties.user_id == "carol"
        assert not got.message.properties.headers
        await link.close()


async def test_a_broker_that_is_away_refuses_nobody_as_wrong(broker: EmbeddedBroker) -> None:
    async with front_of(broker, login="pass", handshake_timeout_seconds=2.0) as front:
        link = await opened(front)
        await broker.stop()
        known = await opened(front)  # the broker has taken this login before
        for version in VERSION_NAMES:
            with pytest.raises(GatewayError, match=r"320: .*the broker is away"):
                await opened(front, version, "guest", "guest")
        assert link.ended is None
        assert known.ended is None
        await link.close()
        await known.close()


async def test_clients_go_when_the_broker_takes_their_login_no_more(broker: EmbeddedBroker) -> None:
    async with front_of(broker, login="pass") as front:
        link = await opened(front)
        guest = await opened(front, "0-10", "guest", "guest")
        broker.broker._passwords["carol"] = "another"
        broker.broker._scram_keys.clear()
        for served in list(broker._served):
            served.stream.abort()
        await until(lambda: link.ended is not None, 5.0)
        assert link.ended is not None
        assert "refuses this login now" in link.ended.text
        assert guest.ended is None
        with pytest.raises(AuthenticationFailed):
            await opened(front)
        again = await opened(front, password="another")
        await again.close()
        await guest.close()


async def test_more_different_logins_than_allowed(broker: EmbeddedBroker) -> None:
    async with front_of(broker, login="pass", logins=1) as front:
        link = await opened(front)
        with pytest.raises(GatewayError, match="too many different logins"):
            await opened(front, user="guest", password="guest")
        await link.close()


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_users_of_the_front_over_tls(broker: EmbeddedBroker, files: Files, version: str, mechanism: str) -> None:
    users = (FrontUser(name="guest", password="guest"), FrontUser(name="carol"))
    tls = FrontTls(cert_file=files["server"], client_ca_file=files["ca"])
    async with front_of(broker, users=users, tls=tls) as front:
        url = f"amqps://guest:{{}}@localhost:{front.port}/?version={version}"
        settings = BrokerSettings(
            url=url.format("guest"), tls=TlsSettings(ca_file=files["ca"]), mechanisms=(mechanism,)
        )
        link = await Dialer("client", settings).open("client")
        assert mechanism in link.capabilities.mechanisms
        await link.close()
        for login in ("guest:wrong", "carol:", "nobody:"):
            wrong = BrokerSettings(
                url=url.format("x").replace("guest:x", login), tls=settings.tls, mechanisms=(mechanism,)
            )
            with pytest.raises(AuthenticationFailed):
                await Dialer("client", wrong).open("client")
        assert {client.user for client in front.clients.values() if client.open} <= {"guest"}


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_a_certificate(broker: EmbeddedBroker, files: Files, version: str) -> None:
    tls = FrontTls(cert_file=files["server"], client_ca_file=files["ca"], clients="required")
    async with front_of(broker, users=(FrontUser(name="carol"),), tls=tls) as front:
        url = f"amqps://localhost:{front.port}/?version={version}"

        async def opened_with(name: str) -> Link:
            own = TlsSettings(ca_file=files["ca"], cert_file=files[name] if name else "")
            return await Dialer("client", BrokerSettings(url=url, tls=own, mechanisms=("EXTERNAL",))).open("client")

        link = await opened_with("carol")
        assert [client.user for client in front.clients.values()] == ["carol"]
        await link.close()
        with pytest.raises(AuthenticationFailed):
            await opened_with("stranger")
        for name in ("", "forged"):
            with pytest.raises(BrokerUnavailable):
                await opened_with(name)


async def test_a_certificate_is_renewed_without_a_restart(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RENEW_EVERY", 0.02)
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    old, new = Files(tmp_path / "old"), Files(tmp_path / "new")
    own = tmp_path / "server.pem"
    own.write_bytes(Path(old["server"]).read_bytes())
    async with front_of(broker, login="pass", tls=FrontTls(cert_file=str(own))) as front:

        async def opened_with(files: Files) -> Link:
            url = f"amqps://guest:guest@localhost:{front.port}/?version=0-9-1"
            return await Dialer("client", BrokerSettings(url=url, tls=TlsSettings(ca_file=files["ca"]))).open("client")

        link = await opened_with(old)
        own.write_bytes(Path(new["server"]).read_bytes())
        for attempt in range(500):
            try:
                await (await opened_with(new)).close()
                break
            except GatewayError:
                assert attempt < 499
        assert link.ended is None
        await link.close()


async def test_files_that_are_missing(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    users = (FrontUser(name="a", password_file=missing),)
    with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.users\.a\.password_file"):
        Front("legacy", FrontSettings(port=0, broker="b", users=users), {})
    front = Front("legacy", FrontSettings(port=0, broker="b", login="pass", tls=FrontTls(cert_file=missing)), {})
    with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.tls\.cert_file"):
        await front.start()

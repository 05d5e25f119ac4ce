"""How clients log in to the embedded broker: by rounds, by certificate, as nobody. Our own client and foreign ones."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import amqp
import pika
import pytest
import trustme

from gateway.amqp.sasl import ScramSha256, ServerScram
from gateway.broker import server
from gateway.broker.broker import Broker
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, EmbeddedTls, EmbeddedUser, TlsSettings
from gateway.errors import AuthenticationFailed, BrokerUnavailable, CertificateRefused, ConfigurationError
from gateway.limits import Limits
from gateway.link import Link
from gateway.session import ServerConfig
from gateway.transports.tls import ServerTls, common_name
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.upstreams.fake import until

VERSIONS = VERSION_NAMES
USERS = (EmbeddedUser(name="guest", password="guest"), EmbeddedUser(name="carol", password="unsaid"))


class Files:
    """An authority, a server's certificate and some of clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        for name, certificate in {
            "server": authority.issue_cert("localhost"),
            "carol": authority.issue_cert("carol.example", common_name="carol"),
            "stranger": authority.issue_cert("stranger.example", common_name="stranger"),
            "nameless": authority.issue_cert("nameless.example"),
            "forged": other.issue_cert("carol.example", common_name="carol"),
        }.items():
            certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))

    def __getitem__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def broker(files: Files) -> AsyncIterator[EmbeddedBroker]:
    tls = EmbeddedTls(port=0, cert_file=files["server"], ca_file=files["ca"])
    settings = EmbeddedSettings(port=0, users=USERS, anonymous="somebody", tls=tls)
    broker = EmbeddedBroker(settings, Limits(close_timeout=0.5))
    await broker.start()
    yield broker
    await broker.stop()


async def opened(settings: BrokerSettings) -> Link:
    return await Dialer("login", settings).open("test")


def logins(broker: EmbeddedBroker) -> set[str]:
    return {connection.user for connection in broker.broker.connections.values() if connection.open}


def plain(broker: EmbeddedBroker, version: str, mechanism: str, login: str = "guest:guest") -> BrokerSettings:
    return BrokerSettings(url=f"amqp://{login}@127.0.0.1:{broker.port}/?version={version}", mechanisms=(mechanism,))


def secure(broker: EmbeddedBroker, version: str, files: Files, name: str, *mechanisms: str) -> BrokerSettings:
    tls = TlsSettings(ca_file=files["ca"], cert_file=files[name] if name else "")
    url = f"amqps://localhost:{broker.tls_port}/?version={version}"
    return BrokerSettings(url=url, tls=tls, mechanisms=mechanisms or ("EXTERNAL",))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("mechanism", "user"), [("SCRAM-SHA-256", "guest"), ("PLAIN", "guest"), ("ANONYMOUS", "somebody")]
)
async def test_our_own_client(broker: EmbeddedBroker, version: str, mechanism: str, user: str) -> None:
    link = await opened(plain(broker, version, mechanism))
    assert logins(broker) == {user}
    assert mechanism in link.capabilities.mechanisms
    assert "EXTERNAL" not in link.capabilities.mechanisms
    await link.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("login", ["guest:wrong", "nobody:guest", "guest:"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_wrong_login(broker: EmbeddedBroker, version: str, mechanism: str, login: str) -> None:
    with pytest.raises(AuthenticationFailed):
        await opened(plain(broker, version, mechanism, login))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_certificate(broker: EmbeddedBroker, files: Files, version: str) -> None:
    link = await opened(secure(broker, version, files, "carol"))
    assert logins(broker) == {"carol"}
    await link.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["", "stranger", "nameless"])
async def test_without_a_certificate_of_a_user(broker: EmbeddedBroker, files: Files, version: str, name: str) -> None:
    """Nobody needs one, and one that names no user is worth nothing."""
    with pytest.raises(AuthenticationFailed, match=r"mechanism"):
        await opened(secure(broker, version, files, name))
    link = await opened(secure(broker, version, files, name, "PLAIN"))
    assert logins(broker) == {"guest"}
    await link.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_forged_certificate(broker: EmbeddedBroker, files: Files, version: str) -> None:
    with pytest.raises(BrokerUnavailable):
        await opened(secure(broker, version, files, "forged", "PLAIN"))
    assert not logins(broker)


async def test_pika_by_certificate(broker: EmbeddedBroker, files: Files) -> None:
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["carol"])
    parameters = pika.ConnectionParameters(
        "localhost",
        broker.tls_port,
        credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, "localhost"),
    )

    def talk() -> None:
        connection = pika.BlockingConnection(parameters)
        connection.channel().queue_declare("", exclusive=True)
        found.append(logins(broker))
        connection.close()

    found: list[set[str]] = []
    await asyncio.to_thread(talk)
    assert found == [{"carol"}]


async def test_py_amqp_by_certificate(broker: EmbeddedBroker, files: Files) -> None:
    options = {"ca_certs": files["ca"], "certfile": files["carol"], "server_hostname": "localhost"}

    def talk() -> None:
        with amqp.Connection(f"localhost:{broker.tls_port}", login_method="EXTERNAL", ssl=options) as connection:
            connection.channel()
            found.append(logins(broker))

    found: list[set[str]] = []
    await asyncio.to_thread(talk)
    assert found == [{"carol"}]


async def test_nobody_is_anonymous_unless_told() -> None:
    broker = EmbeddedBroker(EmbeddedSettings(port=0), Limits(close_timeout=0.5))
    await broker.start()
    try:
        for version in VERSIONS:
            with pytest.raises(AuthenticationFailed):
                await opened(plain(broker, version, "ANONYMOUS"))
    finally:
        await broker.stop()


def test_files_that_are_none(files: Files, tmp_path: Path) -> None:
    for ca_file in (str(tmp_path / "missing.pem"), __file__):
        with pytest.raises(ConfigurationError, match=r"tls\.ca_file"):
            ServerTls(EmbeddedTls(cert_file=files["server"], ca_file=ca_file))


async def test_certificates_that_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections see the new certificate and the new authority, and no longer the old ones; open ones go on."""
    monkeypatch.setattr(server, "RENEW_EVERY", 0.02)
    for folder in ("old", "new", "tls"):
        (tmp_path / folder).mkdir()
    old, new, tls = Files(tmp_path / "old"), Files(tmp_path / "new"), tmp_path / "tls"

    def install(files: Files) -> None:
        for name in ("server", "ca"):
            copy = tls / f"{name}.new"
            copy.write_bytes(Path(files[name]).read_bytes())
            copy.replace(tls / f"{name}.pem")

    install(old)
    settings = EmbeddedTls(port=0, cert_file=str(tls / "server.pem"), ca_file=str(tls / "ca.pem"))
    broker = EmbeddedBroker(EmbeddedSettings(port=0, users=USERS, tls=settings), Limits(close_timeout=0.5))
    await broker.start()
    try:
        link = await opened(secure(broker, "0-9-1", old, "carol"))
        with caplog.at_level(logging.INFO, "gateway"):
            (tls / "server.pem").write_text("half of it")
            await until(lambda: "embedded.tls_not_renewed" in [r.getMessage() for r in caplog.records], 5.0)
            await (await opened(secure(broker, "0-9-1", old, "carol"))).close()
            install(new)
            await until(lambda: "embedded.tls_renewed" in [r.getMessage() for r in caplog.records], 5.0)
        assert link.ended is None
        other = await opened(secure(broker, "0-10", new, "carol"))
        await other.close()
        with pytest.raises(CertificateRefused, match="does not verify"):
            await opened(secure(broker, "0-9-1", old, "carol"))
        # The old authority is not among ours any more: its callers are turned away, although they trust us.
        former = TlsSettings(ca_file=new["ca"], cert_file=old["carol"])
        url = f"amqps://localhost:{broker.tls_port}/?version=0-9-1"
        with pytest.raises(BrokerUnavailable, match="hung up"):
            await opened(BrokerSettings(url=url, tls=former, mechanisms=("EXTERNAL",)))
        await link.close()
    finally:
        await broker.stop()


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({"subject": ((("organizationName", "o"),), (("commonName", "carol"),))}, "carol"),
        ({"subject": ((("commonName", "carol"),), (("commonName", "guest"),))}, ""),
        ({"subject": ()}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_common_names(certificate: Any, name: str) -> None:
    assert common_name(certificate) == name


# ------------------------------------------------------------------------------------------------ the keys


def made(*users: EmbeddedUser) -> Broker:
    return Broker(EmbeddedSettings(users=users), random_octets=bytes, wall_clock=lambda: 0.0)


def test_keys_are_made_once_and_never_for_nobody() -> None:
    broker = made(*USERS, EmbeddedUser(name="odd", password="a\x00b"), EmbeddedUser(name="empty", password=""))
    assert broker.scram_keys("guest") is broker.scram_keys("guest")
    for user in ("nobody", "odd", "empty"):
        assert broker.scram_keys(user) == broker.scram_keys(user)
    assert set(broker._scram_keys) == {"guest"}


@pytest.mark.parametrize("password", ["", "guest"])
@pytest.mark.parametrize("user", ["nobody", "empty"])
def test_nobody_logs_in_without_a_password(user: str, password: str) -> None:
    broker = made(*USERS, EmbeddedUser(name="empty", password=""))
    config = ServerConfig(broker.authenticate, broker.open_virtual_host, random_octets=bytes, scram=broker.scram_keys)
    server, client = ServerScram(replace(config)), ScramSha256(user, password, bytes)
    challenge = server.respond(client.start())
    assert challenge is not None
    assert server.respond(client.challenge(challenge)) is None
    assert server.user is None

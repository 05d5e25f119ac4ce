"""Streams over TCP and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from gateway.config import BrokerUrl, TlsSettings, parse_broker_url
from gateway.errors import AddressDenied, BrokerUnavailable, CertificateRefused, ConfigurationError
from gateway.transports import client_context, dial
from gateway.transports.dial import tls_problem
from tests.transports.test_stream import User
from tests.upstreams.fake import until


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except (ConnectionError, ssl.SSLError):
        pass  # the other side broke off, which is what some of these tests are about
    writer.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def server_context(authority: trustme.CA, name: str = "127.0.0.1", client_certificates: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


async def serve(context: ssl.SSLContext | None = None) -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    return server, server.sockets[0].getsockname()[1]


@pytest.fixture(autouse=True)
async def quiet() -> AsyncIterator[None]:
    """Failed handshakes of the server's side are expected here."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    yield
    await asyncio.sleep(0.01)


async def roundtrip(port: int, scheme: str = "amqp", tls: TlsSettings | None = None, host: str = "127.0.0.1") -> None:
    user = User()
    stream = await dial(user, parse_broker_url(f"{scheme}://{host}:{port}/"), tls or TlsSettings(), 5.0)
    assert stream.peer == f"127.0.0.1:{port}"
    user.out += [b"hel", b"lo"]
    stream.wake()
    await until(lambda: user.got == b"hello")
    stream.close()
    await until(lambda: user.lost)


async def test_tcp() -> None:
    server, port = await serve()
    async with server:
        await roundtrip(port)


async def test_only_the_addresses_that_are_allowed() -> None:
    """One after the other; none where the name is not allowed."""
    server, port = await serve()
    closed, _ = await serve()
    closed.close()
    asked = []

    async def resolve(url: BrokerUrl) -> list[str]:
        asked.append(url.host)
        return ["127.0.0.2", "127.0.0.1"]

    async def deny(url: BrokerUrl) -> list[str]:
        raise AddressDenied(f"{url.host} is denied")

    url = parse_broker_url(f"amqp://broker.invalid:{port}/")
    async with server:
        user = User()
        stream = await dial(user, url, TlsSettings(), 5.0, resolve)
        assert stream.peer == f"127.0.0.1:{port}"
        assert asked == ["broker.invalid"]
        stream.abort()
        await until(lambda: user.lost)
        with pytest.raises(AddressDenied):
            await dial(User(), url, TlsSettings(), 5.0, deny)
        assert await tls_problem(url, TlsSettings(), 0.5, deny) is None
    server.close()
    await server.wait_closed()
    with pytest.raises(BrokerUnavailable, match="refused"):
        await dial(User(), url, TlsSettings(), 5.0, resolve)


async def test_nobody_listens() -> None:
    server, port = await serve()
    server.close()
    await server.wait_closed()
    with pytest.raises(BrokerUnavailable, match="refused"):
        await roundtrip(port)


async def test_no_such_host() -> None:
    with pytest.raises(BrokerUnavailable, match=r"no-such-host\.invalid"):
        await dial(User(), parse_broker_url("amqp://no-such-host.invalid:1/"), TlsSettings(), 5.0)


async def test_tls_is_verified(authority: trustme.CA, ca_file: str) -> None:
    server, port = await serve(server_context(authority))
    async with server:
        await roundtrip(port, "amqps", TlsSettings(ca_file=ca_file))
        with pytest.raises(CertificateRefused, match="does not verify"):
            await roundtrip(port, "amqps")


async def test_tls_of_another_host(authority: trustme.CA, ca_file: str) -> None:
    server, port = await serve(server_context(authority, "broker.example"))
    async with server:
        with pytest.raises(CertificateRefused, match="does not verify"):
            await roundtrip(port, "amqps", TlsSettings(ca_file=ca_file))
        await roundtrip(port, "amqps", TlsSettings(ca_file=ca_file, server_name="broker.example"))
        await roundtrip(port, "amqps", TlsSettings(dangerous_disable_verification=True))


async def test_client_certificates(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    certificate = authority.issue_cert("client")
    cert_file, key_file = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.cert_chain_pems[0].write_to_path(cert_file)
    certificate.private_key_pem.write_to_path(key_file)
    server, port = await serve(server_context(authority, client_certificates=True))
    async with server:
        await roundtrip(port, "amqps", TlsSettings(ca_file=ca_file, cert_file=str(cert_file), key_file=str(key_file)))


async def test_the_verdict_on_a_client_without_certificate(authority: trustme.CA, ca_file: str) -> None:
    """The server's side is a blocking one: asyncio's does not send the alert."""
    context = server_context(authority, client_certificates=True)

    def shake_hands(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = asyncio.create_task(asyncio.to_thread(shake_hands, listener))
        url, tls = parse_broker_url(f"amqps://127.0.0.1:{listener.getsockname()[1]}/"), TlsSettings(ca_file=ca_file)
        problem = await tls_problem(url, tls, 5.0)
        await server
    assert isinstance(problem, CertificateRefused)
    assert str(problem).endswith("the broker wants a client certificate, see tls.cert_file")
    assert await tls_problem(url, tls, 5.0) is None  # nobody is there now


async def test_no_verdict_where_tls_has_no_part(authority: trustme.CA, ca_file: str) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        writer.close()

    context = server_context(authority)
    for speaker in (hang_up, talk):
        server = await asyncio.start_server(speaker, "127.0.0.1", 0, ssl=context)
        async with server:
            url = parse_broker_url(f"amqps://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            assert await tls_problem(url, TlsSettings(ca_file=ca_file), 5.0) is None
    server, port = await serve(context)
    async with server:  # the echo says nothing to who says nothing
        assert (
            await tls_problem(parse_broker_url(f"amqps://127.0.0.1:{port}/"), TlsSettings(ca_file=ca_file), 0.2) is None
        )


async def test_a_server_that_hangs_up_on_the_handshake() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        with pytest.raises(BrokerUnavailable, match=r"hung up during the handshake|reset") as caught:
            await roundtrip(server.sockets[0].getsockname()[1], "amqps")
        assert not isinstance(caught.value, CertificateRefused)  # it may be about to restart


async def test_tls_where_none_is_spoken() -> None:
    server, port = await serve()
    async with server:
        with pytest.raises(CertificateRefused, match="TLS failed"):
            await roundtrip(port, "amqps")


async def test_a_handshake_that_stalls() -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stall, "127.0.0.1", 0)
    async with server:
        url = parse_broker_url(f"amqps://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        with pytest.raises(BrokerUnavailable, match="within"):
            await dial(User(), url, TlsSettings(), 0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (TlsSettings(ca_file="/nowhere/ca.pem"), "tls.ca_file: /nowhere"),
        (TlsSettings(cert_file="/nowhere/cert.pem"), "tls.cert_file: /nowhere"),
        (TlsSettings(key_file="/nowhere/key.pem"), "tls.key_file"),
    ],
)
def test_files_that_are_not_there(settings: TlsSettings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        client_context(settings)


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    path = tmp_path / "text.pem"
    path.write_text("no certificate")
    for settings in (TlsSettings(ca_file=str(path)), TlsSettings(cert_file=str(path))):
        with pytest.raises(ConfigurationError, match=r"text\.pem"):
            client_context(settings)

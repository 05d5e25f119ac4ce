"""Who comes, and how: deadlines until a connection is open, crowds, TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.amqp.operations import CloseReason, Opened
from gateway.config import EmbeddedTls
from gateway.errors import ConfigurationError
from gateway.limits import BrokerLimits, Limits
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from tests.broker.raw import VERSIONS, Raw, over_tls, served, until

versions = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.value)

SOON = Limits(handshake_timeout=0.3, close_timeout=0.1)


# ---------------------------------------------------------------------------------------------- deadlines


@versions
async def test_a_header_octet_by_octet_and_then_nothing(version: Version) -> None:
    """Every octet comes in time for itself; what counts is when it began."""
    async with served(Limits(handshake_timeout=2.0)) as broker:
        client = await Raw.connect(broker.port, version)
        began = client.now
        for octet in version.header:
            await client.write(bytes([octet]))
            await asyncio.sleep(0.2)
        assert await client.read()
        assert await client.read_all() == b""
        assert 1.8 < client.now - began < 3.3
        assert not broker.broker.connections


@versions
async def test_a_handshake_octet_by_octet(version: Version) -> None:
    async with served(SOON) as broker:
        client = await Raw.connect(broker.port, version)
        began = client.now
        await client.write(version.header)
        client.session.data_to_send()
        client.session.receive_data(await client.read(), client.now)
        answer = b"".join(client.session.data_to_send())
        assert len(answer) > 40
        for octet in answer:
            if client.now - began > 5:
                break
            try:
                await client.write(bytes([octet]))
            except ConnectionError:
                break
            await asyncio.sleep(0.02)
        await until(lambda: not broker._served)
        assert 0.25 < client.now - began < 4


async def test_silence() -> None:
    async with served(SOON) as broker:
        client = await Raw.connect(broker.port)
        began = client.now
        assert await client.read_all() == b""
        assert 0.25 < client.now - began < 4


@versions
async def test_who_is_in_time_stays(version: Version) -> None:
    async with served(SOON) as broker:
        client = await Raw.open(broker.port, version)
        await asyncio.sleep(0.5)
        assert await client.declare("q") == 0


# ------------------------------------------------------------------------------------------------- crowds


@versions
async def test_one_connection_too_many_is_told_so(version: Version) -> None:
    async with served(broker_limits=BrokerLimits(connections=2)) as broker:
        first, second = [await Raw.open(broker.port, version) for _ in range(2)]
        third = await Raw.connect(broker.port, version)
        closed = await third.closed()
        assert closed.reason is CloseReason.PEER
        assert closed.code == (320 if version is V0_10 else 530)
        assert closed.text == "NOT_ALLOWED - the limit of 2 connections is reached"
        assert await second.declare("q") == 0
        first.close()
        await until(lambda: len(broker.broker.connections) == 1)
        await Raw.open(broker.port, version)


async def test_connections_of_one_address() -> None:
    async with served(SOON, BrokerLimits(connections_per_address=2)) as broker:
        first = await Raw.open(broker.port, source="127.0.0.2")
        await Raw.open(broker.port, source="127.0.0.2")
        third = await Raw.connect(broker.port, source="127.0.0.2")
        assert "limit of 2 connections from 127.0.0.2" in (await third.closed()).text
        await Raw.open(broker.port, source="127.0.0.3")
        first.close()
        await until(lambda: len(broker.broker.connections) == 2)
        await Raw.open(broker.port, source="127.0.0.2")
        (listener,) = broker._listeners
        await until(lambda: len(listener.served) == 3)
        assert listener._addresses == {"127.0.0.2": 2, "127.0.0.3": 1}


async def test_a_crowd_is_not_told_one_by_one() -> None:
    """The first are told; the others are hung up on, and hold nothing."""
    limits = BrokerLimits(connections=1, connections_refused=3)
    async with served(broker_limits=limits) as broker:
        await Raw.open(broker.port)
        waiting = [await Raw.connect(broker.port) for _ in range(3)]
        await until(lambda: len(broker._served) == 4)
        for _ in range(20):
            assert await (await Raw.connect(broker.port)).read_all() == b""
        await until(lambda: len(broker._served) == 4)
        for client in waiting:
            assert "the limit of 1 connections" in (await client.closed()).text


async def test_who_has_connected_as_the_port_closes_is_hung_up_on() -> None:
    """The system accepts a connection before the event loop hears of it. Nobody would end one that comes after that."""
    async with served() as broker:
        (listener,) = broker._listeners
        port, sockets = broker.port, listener._sockets
        listener._sockets = None  # what came before is still taken in
        listener.close()
        assert await (await Raw.connect(port)).read_all() == b""
        await until(lambda: not broker._served)
        listener._sockets = sockets


async def test_those_who_come_and_go_leave_nothing_behind() -> None:
    async with served() as broker:
        for _ in range(20):
            crowd = [await Raw.connect(broker.port) for _ in range(20)]
            for client in crowd:
                client.close()
            Raw.made.clear()
        await until(lambda: not broker._served)
        (listener,) = broker._listeners
        assert not listener.served
        assert not listener._addresses
        assert not broker.broker.connections


# ---------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A file with certificate and key of ``localhost``, and what trusts it."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return path, context


@versions
async def test_tls(version: Version, certificate: tuple[Path, ssl.SSLContext]) -> None:
    path, context = certificate
    async with served(tls=EmbeddedTls(port=0, cert_file=str(path))) as broker:
        reader, writer = await over_tls(broker.tls_port, context)
        session = Raw(writer.get_extra_info("socket"), version).session
        Raw.made.clear()
        told = []
        while not any(isinstance(each, Opened) for each in told):
            writer.writelines(session.data_to_send())
            octets = await asyncio.wait_for(reader.read(65_536), 5)
            assert octets
            told += session.receive_data(octets, 0.0)
        writer.close()
        await writer.wait_closed()
        await until(lambda: not broker._served)


async def test_a_tls_handshake_that_is_never_finished(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """No octet, half of the first message, or what is no TLS at all."""
    path, context = certificate
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    octets = outgoing.read()
    async with served(SOON, tls=EmbeddedTls(port=0, cert_file=str(path))) as broker:
        for start in (b"", octets[:50], octets):
            client = await Raw.connect(broker.tls_port)
            await client.write(start)
            began = client.now
            await until(lambda: len(broker._served) == 1)
            await client.read_all()
            assert 0.2 < client.now - began < 10
            await until(lambda: not broker._served)
        client = await Raw.connect(broker.tls_port)
        await client.write(V0_9_1.header)
        await client.read_all()
        hasty = await Raw.connect(broker.tls_port)
        hasty.close()
        await until(lambda: not broker._served)
        assert not broker._listeners[1].served


async def test_tls_handshakes_count_as_connections(certificate: tuple[Path, ssl.SSLContext]) -> None:
    path, _ = certificate
    limits = BrokerLimits(connections=1, connections_refused=1)
    async with served(broker_limits=limits, tls=EmbeddedTls(port=0, cert_file=str(path))) as broker:
        for _ in range(2):
            await Raw.connect(broker.tls_port)
        await until(lambda: len(broker._served) == 2)
        assert await (await Raw.connect(broker.tls_port)).read_all() == b""
        await Raw.open(broker.port)  # the other port has a count of its own


async def test_stop_in_the_middle_of_a_tls_handshake(certificate: tuple[Path, ssl.SSLContext]) -> None:
    path, _ = certificate
    async with served(tls=EmbeddedTls(port=0, cert_file=str(path))) as broker:
        client = await Raw.connect(broker.tls_port)
        await until(lambda: broker._served)
        began = client.now
        await broker.stop()
        assert client.now - began < 10


async def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"tls\.cert_file: .*server\.pem"):
        async with served(tls=EmbeddedTls(cert_file=str(path))):
            pass

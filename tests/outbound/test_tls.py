"""TLS: whose certificate is taken, and what is said when it is not."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from pathlib import Path

import msgspec
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from gateway.config import EndpointTls, TlsSettings
from gateway.errors import AnswerCut, ConfigurationError, TlsFailed
from tests.outbound.conftest import Make
from tests.outbound.endpoint import endpoint

AUTHORITY = trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and client.pem with its key."""
    folder = tmp_path_factory.mktemp("tls")
    AUTHORITY.cert_pem.write_to_path(str(folder / "ca.pem"))
    AUTHORITY.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return folder


def context(*names: str, authority: trustme.CA = AUTHORITY, ask: bool = False) -> ssl.SSLContext:
    """A server's."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(found)
    if ask:
        AUTHORITY.configure_trust(found)
        found.verify_mode = ssl.CERT_REQUIRED
    return found


async def resolve(host: str) -> list[str]:
    return ["127.0.0.1"]


async def test_the_name_is_verified_and_sent(make: Make, files: Path) -> None:
    seen: list[str | None] = []
    server_side = context("hooks.example")
    server_side.sni_callback = lambda _, name, __: seen.append(name)
    async with endpoint(server_side) as server:
        transport = make(resolve=resolve, tls=TlsSettings(ca_file=str(files / "ca.pem")))
        for _ in range(3):
            answer = await transport.send("POST", server.url("/200", "https", "hooks.example"), (), b"x")
            assert (answer.status, answer.body) == (200, b"ok")
        assert server.connections == 1
        assert seen == ["hooks.example"]
        assert server.requests[0].headers["host"] == f"hooks.example:{server.port}"


async def test_an_address_is_verified_as_an_address(make: Make, files: Path) -> None:
    async with endpoint(context("127.0.0.1")) as server:
        transport = make(tls=TlsSettings(ca_file=str(files / "ca.pem")))
        assert (await transport.send("POST", server.url("/200", "https"))).status == 200


async def test_another_name_than_the_urls_can_be_verified(make: Make, files: Path) -> None:
    async with endpoint(context("other.example")) as server:
        transport = make(tls=TlsSettings(ca_file=str(files / "ca.pem")))
        url = server.url("/200", "https")
        with pytest.raises(TlsFailed, match="does not verify"):
            await transport.send("POST", url)
        tls = TlsSettings(ca_file=str(files / "ca.pem"), server_name="other.example")
        assert (await transport.send("POST", url, tls=tls)).status == 200


@pytest.mark.parametrize(
    ("names", "authority", "why"),
    [
        (["wrong.example"], AUTHORITY, "Hostname mismatch"),
        (["hooks.example"], trustme.CA(), "unable to get local issuer|self.signed"),
    ],
)
async def test_certificates_that_are_not_taken(
    names: list[str], authority: trustme.CA, why: str, make: Make, files: Path
) -> None:
    async with endpoint(context(*names, authority=authority)) as server:
        transport = make(resolve=resolve, tls=TlsSettings(ca_file=str(files / "ca.pem")))
        with pytest.raises(TlsFailed, match=f"the certificate does not verify: .*({why})") as error:
            await transport.send("POST", server.url("/200", "https", "hooks.example"))
        assert not error.value.sent
        assert not server.requests
        assert transport.open == 0


async def test_the_systems_authorities_are_the_default(make: Make) -> None:
    async with endpoint(context("hooks.example")) as server:
        with pytest.raises(TlsFailed, match="does not verify"):
            await make(resolve=resolve).send("POST", server.url("/200", "https", "hooks.example"))


async def test_a_port_that_speaks_no_tls(make: Make) -> None:
    async with endpoint() as server:
        transport = make(deadline=1)
        with pytest.raises(TlsFailed, match=r"TLS failed|hung up|no end of the TLS handshake"):
            await transport.send("POST", server.url("/200", "https"))
        assert transport.open == 0


async def test_a_server_that_says_nothing_in_the_handshake(make: Make) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    transport = make(connect_timeout=0.2)
    with pytest.raises(TlsFailed, match=r"no end of the TLS handshake within 0\.2 s"):
        await transport.send("POST", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert transport.open == 0
    server.close()
    await asyncio.sleep(0.02)


async def test_a_client_certificate(make: Make, files: Path) -> None:
    async with endpoint(context("hooks.example", ask=True)) as server:
        url = server.url("/200", "https", "hooks.example")
        ca_file, cert_file = str(files / "ca.pem"), str(files / "client.pem")
        transport = make(resolve=resolve, tls=TlsSettings(ca_file=ca_file))
        with pytest.raises((TlsFailed, AnswerCut)) as error:
            await transport.send("POST", url)
        assert not server.requests
        assert "answer" in str(error.value) or "TLS" in str(error.value)
        ours = TlsSettings(ca_file=ca_file, cert_file=cert_file)
        assert (await transport.send("POST", url, tls=ours)).status == 200
        assert (await transport.send("POST", url, tls=ours)).status == 200
        assert transport.idle == 1
        # One caller's certificate is not another caller's connection.
        with pytest.raises((TlsFailed, AnswerCut)):
            await transport.send("POST", url)


async def test_a_renewed_file_is_used_by_the_next_connection(make: Make, tmp_path: Path) -> None:
    old, new = trustme.CA(), AUTHORITY
    ca_file = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(str(ca_file))
    async with endpoint(context("hooks.example")) as server:
        transport = make(resolve=resolve, tls=TlsSettings(ca_file=str(ca_file)))
        url = server.url("/200", "https", "hooks.example")
        with pytest.raises(TlsFailed):
            await transport.send("POST", url)
        await asyncio.sleep(0.02)  # the time stamp of a file is that coarse
        new.cert_pem.write_to_path(str(ca_file))
        assert (await transport.send("POST", url)).status == 200


async def test_a_file_that_is_missing(make: Make) -> None:
    async with endpoint() as server:
        transport = make(tls=TlsSettings(ca_file="/nowhere/ca.pem"))
        with pytest.raises(ConfigurationError, match=r"/nowhere/ca\.pem"):
            await transport.send("POST", server.url("/200", "https"))
        assert transport.open == 0


def texts(authority: trustme.CA = AUTHORITY) -> EndpointTls:
    """Authority, client certificate and key, as texts."""
    made = authority.issue_cert("client.example")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems).decode()
    return EndpointTls(ca=AUTHORITY.cert_pem.bytes().decode(), cert=chain, key=made.private_key_pem.bytes().decode())


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_client_certificate_that_is_a_text(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    async with endpoint(context("hooks.example", ask=True)) as server:
        url = server.url("/200", "https", "hooks.example")
        transport = make(resolve=resolve)
        assert (await transport.send("POST", url, tls=texts())).status == 200
        assert (await transport.send("POST", url, tls=texts())).status == 200
        with pytest.raises((TlsFailed, AnswerCut)):
            await transport.send("POST", url, tls=texts(trustme.CA()))
        with pytest.raises((TlsFailed, AnswerCut)):
            await transport.send("POST", url, tls=EndpointTls(ca=texts().ca))
    assert list(tmp_path.iterdir()) == [], "no key stays on the disk"


async def test_files_of_an_endpoint(make: Make, files: Path) -> None:
    async with endpoint(context("inner.example", ask=True)) as server:
        tls = EndpointTls(
            ca_file=str(files / "ca.pem"), cert_file=str(files / "client.pem"), server_name="inner.example"
        )
        url = server.url("/200", "https", "hooks.example")
        assert (await make(resolve=resolve).send("POST", url, tls=tls)).status == 200


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        (EndpointTls(ca="nonsense"), "tls.ca: "),
        (EndpointTls(ca="ünsinn"), "tls.ca: "),
        (EndpointTls(ca_file="/nowhere"), "tls.ca_file: /nowhere: No such file"),
        (EndpointTls(cert="nonsense", key="nonsense"), "tls.cert: "),
        (EndpointTls(cert_file="/nowhere"), "tls.cert_file: /nowhere: No such file"),
        (EndpointTls(key="k"), "tls.key: a key without a certificate"),
        (msgspec.structs.replace(texts(), key=texts().key), "tls.cert: .*(?i:mismatch|key values)"),
    ],
)
async def test_texts_that_are_no_certificates(make: Make, tls: EndpointTls, why: str) -> None:
    async with endpoint() as server:
        with pytest.raises(ConfigurationError, match=f"^{why}") as error:
            await make().send("POST", server.url("/200", "https"), tls=tls)
        assert "PRIVATE" not in str(error.value)


async def test_a_key_with_a_password_asks_nobody(make: Make) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")).decode()
    async with endpoint() as server:
        with pytest.raises(ConfigurationError, match="has a password"):
            await make().send("POST", server.url("/200", "https"), tls=msgspec.structs.replace(texts(), key=sealed))

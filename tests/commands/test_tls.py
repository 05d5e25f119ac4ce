"""``--ca``, ``--cert`` and ``--key``: a gateway behind a private authority, and one that asks for certificates."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from gateway import commands
from tests.commands.conftest import Canned, Run

BROKERS = {"brokers": []}


class Files:
    """An authority, and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        trustme.CA().cert_pem.write_to_path(str(folder / "other.pem"))
        client = self.authority.issue_cert("shop.example")
        client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
        client.private_key_pem.write_to_path(str(folder / "client.key"))
        client.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
        (folder / "nonsense.pem").write_text("nonsense")

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server(files: Files) -> Iterator[Canned]:
    """A gateway that answers over TLS, and wants a certificate where ``context.verify_mode`` says so."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files.authority.issue_cert("127.0.0.1").configure_cert(context)
    files.authority.configure_trust(context)
    with Canned() as server:
        server.context = context  # type: ignore[attr-defined]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]  # callers that hang up
        server.answer(200, BROKERS)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server: Canned) -> str:
    return server.url.replace("http:", "https:")


def test_a_private_authority(run: Run, server: Canned, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("brokers", "--url", url(server), "--ca", files.path("ca.pem"), "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, BROKERS), result.stderr
    monkeypatch.setenv("GATEWAY_CA", files.path("ca.pem"))
    assert run("brokers", "--url", url(server)).exit_code == 0


@pytest.mark.parametrize("ca", ["", "other.pem"])
def test_an_authority_that_nobody_knows(run: Run, server: Canned, files: Files, ca: str) -> None:
    result = run("brokers", "--url", url(server), *(("--ca", files.path(ca)) if ca else ()))
    assert result.exit_code == commands.UNREACHABLE
    assert "Name the authority that signed its certificate: --ca FILE, or GATEWAY_CA." in result.stderr
    assert "Is `gateway serve` running?" not in result.stderr


def test_another_name_than_that_of_the_certificate(run: Run, server: Canned, files: Files) -> None:
    address = url(server).replace("127.0.0.1", "localhost")
    result = run("brokers", "--url", address, "--ca", files.path("ca.pem"))
    assert result.exit_code == commands.UNREACHABLE
    assert "Use one of the names in its certificate in --url." in result.stderr


@pytest.mark.parametrize(
    "given", [("--cert", "both.pem"), ("--cert", "client.pem", "--key", "client.key")], ids=["one file", "two files"]
)
def test_a_certificate_of_ours(run: Run, server: Canned, files: Files, given: tuple[str, ...]) -> None:
    server.context.verify_mode = ssl.CERT_REQUIRED  # type: ignore[attr-defined]
    ca = ("--ca", files.path("ca.pem"))
    named = [files.path(each) if not each.startswith("-") else each for each in given]
    assert run("brokers", "--url", url(server), *ca, *named).exit_code == 0
    without = run("brokers", "--url", url(server), *ca)
    assert without.exit_code == commands.UNREACHABLE


def test_a_stream(run: Run, server: Canned, files: Files) -> None:
    server.answer(200, b'id: 1\ndata: {"kind": "confirmed"}\n\n')
    result = run("tail", "--no-follow", "--json", "--url", url(server), "--ca", files.path("ca.pem"))
    assert json.loads(result.stdout) == {"kind": "confirmed"}, result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--ca", "none.pem"), "none.pem: No such file or directory"),
        (("--ca", "nonsense.pem"), "nonsense.pem: "),
        (("--cert", "client.pem"), "client.pem: "),
        (("--cert", "client.pem", "--key", "none.key"), "none.key: No such file"),
        (("--key", "client.key"), "--key is a key without a certificate"),
    ],
)
def test_files_that_are_wrong(run: Run, files: Files, given: tuple[str, ...], said: str) -> None:
    named = [files.path(each) if not each.startswith("-") else each for each in given]
    result = run("brokers", "--url", "https://127.0.0.1:1", *named)
    assert result.exit_code == commands.USAGE, result.stderr
    assert said in result.stderr


def test_a_gateway_without_tls(run: Run, canned: Canned, files: Files) -> None:
    address = canned.url.replace("http:", "https:")
    result = run("brokers", "--url", address, "--ca", files.path("ca.pem"))
    assert result.exit_code == commands.UNREACHABLE
    assert "http:// may be meant" in result.stderr

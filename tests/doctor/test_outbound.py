"""The guard, and the endpoints of the file."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from gateway.exits import REFUSED, UNREACHABLE, USAGE
from tests.doctor.conftest import Look
from tests.servers.process import free_port

LOOPBACK = '[outbound]\nallow = ["127.0.0.1"]\n'


def endpoint(url: str, more: str = "") -> str:
    return f'[endpoints.shop]\nurl = "{url}"\n{more}\n'


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made


@pytest.fixture
def heard() -> list[bytes]:
    """What the receiver got."""
    return []


@pytest.fixture
def receiver(authority: trustme.CA, heard: list[bytes]) -> Iterator[int]:
    """The port of a server with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with suppress(OSError), context.wrap_socket(sock, server_side=True) as secured:
                    heard.append(secured.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_an_endpoint_that_can_be_called(look: Look, receiver: int, heard: list[bytes], tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{receiver}/orders"
    found = look(LOOPBACK + endpoint(url, f'tls = {{ca_file = "{tmp_path}/ca.pem"}}'), "outbound")
    assert found.failed == [], found.text
    assert found.one("outbound.endpoint").what == "the guard allows it, and it takes connections"
    assert all(octets == b"" for octets in heard), "no request is sent"


def test_an_authority_that_nobody_knows(look: Look, receiver: int) -> None:
    found = look(LOOPBACK + endpoint(f"https://127.0.0.1:{receiver}/"), "outbound")
    assert "the certificate does not verify" in found.one("outbound.endpoint").what
    assert found.exit == UNREACHABLE


@pytest.mark.parametrize(
    ("url", "what", "status"),
    [
        ("https://10.1.2.3/", "the guard denies it: https://10.1.2.3: 10.1.2.3 is denied", REFUSED),
        ("https://localhost/", "the guard denies it: https://localhost: the name localhost is denied", REFUSED),
        ("http://8.8.8.8/", "the guard denies it: http://8.8.8.8: only https is allowed", REFUSED),
        ("https://8.8.8.8:25/", "the guard denies it: https://8.8.8.8:25: port 25 is not allowed", REFUSED),
        ("https://127.1/", "URL: '127.1' ends in a number", USAGE),
        ("https://no-such-host.example.invalid2/", "no-such-host.example.invalid2: ", UNREACHABLE),
    ],
)
def test_endpoints_that_cannot_be_called(look: Look, url: str, what: str, status: int) -> None:
    found = look(endpoint(url), "outbound", within=3.0)
    finding = found.one("outbound.endpoint")
    assert finding.what.removeprefix("https://").startswith(what.removeprefix("https://")), found.text
    assert found.exit == status


def test_an_endpoint_that_is_down(look: Look) -> None:
    found = look(LOOPBACK + endpoint(f"http://127.0.0.1:{free_port()}/"), "outbound")
    assert found.warned == ["outbound.rules", "outbound.endpoint"]
    assert found.failed == []


def test_an_endpoint_that_is_the_gateway_itself(look: Look) -> None:
    port = free_port()
    found = look(f"[http]\nport = {port}\n" + LOOPBACK + endpoint(f"http://127.0.0.1:{port}/"), "outbound")
    assert found.one("outbound.endpoint").what.endswith("is this gateway itself, which no setting allows")
    assert found.one("outbound.endpoint").do == "Correct the URL."


def test_where_tokens_come_from(look: Look) -> None:
    auth = 'auth = {kind = "oauth2", user = "u", secret = "s", token_url = "https://10.9.9.9/token"}'
    found = look(LOOPBACK + endpoint(f"http://127.0.0.1:{free_port()}/", auth), "outbound")
    assert found.failed == ["outbound.endpoint"]
    assert "endpoints.shop.auth.token_url" in found.text


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('allow = ["0.0.0.0/0"]', ["outbound.allow 0.0.0.0/0"] * 2),
        ('allow = ["169.254.0.0/16"]', ["outbound.allow 169.254.0.0/16"]),
        ("plain = true", ["outbound.plain"]),
        ('allow = ["10.1.0.0/16", "hooks.example"]', []),
    ],
)
def test_rules_that_let_too_much_through(look: Look, text: str, where: list[str]) -> None:
    found = look(f"[outbound]\n{text}", "outbound")
    warned = [finding.where for finding in found.report.findings if finding.severity.value == "warn"]
    assert warned == where
    assert found.failed == []


def test_a_rule_that_is_none(look: Look) -> None:
    found = look('[outbound]\nallow = ["not a host!"]', "outbound")
    assert (found.failed, found.exit) == (["outbound.rules"], USAGE)

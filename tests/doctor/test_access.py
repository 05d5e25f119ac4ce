"""Who may call."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gateway.exits import FAILED, UNREACHABLE, USAGE
from tests.doctor.conftest import Look

KEY = 'sha256 = "' + hashlib.sha256(b"key").hexdigest() + '"'


def key(more: str = KEY, name: str = "shop") -> str:
    return f'[[api_keys]]\nname = "{name}"\n{more}\n'


@pytest.mark.parametrize(
    ("text", "failed", "warned"),
    [
        ('[http]\nhost = "0.0.0.0"\n', True, ""),
        ("", False, "everybody on this machine may call the API, and do everything"),
        (key(), False, "the API can be reached from this machine alone"),
        ('[http]\nhost = "0.0.0.0"\n' + key(), False, "keys and messages travel in clear"),
    ],
)
def test_who_may_call(look: Look, text: str, failed: bool, warned: str) -> None:
    found = look(text, "access")
    assert (found.failed == ["access.callers"]) is failed, found.text
    if failed:
        assert (found.exit, "listens on loopback only" in found.text) == (USAGE, True)
    else:
        assert warned in [finding.what for finding in found.all("access.callers")]


def test_a_worker_serves_nobody(look: Look) -> None:
    text = 'role = "worker"\n[ledger]\nurl = "postgresql://a@127.0.0.1/b"\n'
    assert look(text, "access").one("access.callers").what == "a worker serves no API"


def test_a_role_that_needs_postgresql(look: Look) -> None:
    found = look('role = "api"', "access")
    assert "SQLite serves one process" in found.one("config.rule").what
    assert found.exit == USAGE


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (key("sha256 = 'short'"), "not 64 hexadecimal digits"),
        (key("key_file = '/nowhere'"), "No such file"),
        (key() + key(), "is there twice"),
        (key(KEY + "\nscopes = ['publish']"), "is none of publish:BROKER/EXCHANGE"),
    ],
)
def test_keys_that_are_wrong(look: Look, text: str, what: str) -> None:
    found = look(text, "access")
    assert what in found.one("access.keys").what
    assert (found.failed, found.exit) == (["access.keys"], USAGE)


def test_keys_that_are_weak(look: Look, tmp_path: Path) -> None:
    found = look(key("key = 'not-long-enough'"), "access")
    assert [finding.what for finding in found.all("access.keys")] == [
        "the key itself is in the file", "the key has fewer than 20 characters",
    ]  # fmt: skip
    path = tmp_path / "key"
    path.write_text("x" * 40)
    path.chmod(0o644)
    assert "everybody on this machine can read it" in look(key(f"key_file = '{path}'"), "access").text


def test_scopes_of_brokers_that_there_are_not(look: Look) -> None:
    text = '[brokers.orders]\nurl = "amqp://h"\n' + key(KEY + '\nscopes = ["publish:ordres/x", "consume:orders/q"]')
    finding = look(text, "access").one("access.keys")
    assert finding.what == (
        "the scope publish:ordres/x: it can match nothing: there is no broker 'ordres'. The brokers are: orders."
    )
    assert finding.do == "Correct the scope, or take it out."


def test_certificates_of_callers(look: Look) -> None:
    entry = '[[access.certificates]]\nclient = "a"\nname = "CN:a"\nscopes = ["{}"]\n'
    found = look(entry.format("admin") + entry.format("nonsense"), "access")
    assert [finding.what.partition(":")[0] for finding in found.all("access.keys")] == [
        "scopes", "the name is there twice", "http.tls.client_ca_file does not say who may sign them",
    ]  # fmt: skip


def test_endpoints_that_contradict_themselves(look: Look) -> None:
    found = look('[endpoints.e]\nurl = "https://hooks.example/"\nbatch_max = 5\nformat = "raw"', "access")
    assert found.one("config.rule").what.startswith("batch_max: ")
    assert found.exit == USAGE


# ------------------------------------------------------------------------------------------------------ JWKS


class Issuer(BaseHTTPRequestHandler):
    answer = (200, b"")

    def do_GET(self) -> None:
        status, body = type(self).answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def issuer() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


RSA = {"kty": "RSA", "kid": "1", "n": base64.urlsafe_b64encode(b"\xff" * 256).decode(), "e": "AQAB"}
SHORT = RSA | {"n": base64.urlsafe_b64encode(b"\xff" * 128).decode(), "kid": "2"}

BITS = "it is an RSA key of 1024 bits, and at least 2048 are needed (RFC 7518 section 3.3)"


@pytest.mark.parametrize(
    ("status", "body", "what", "exit"),
    [
        (200, json.dumps({"keys": [RSA]}), "1 keys that can be used", 0),
        (200, json.dumps({"keys": [{**RSA, "kid": None}]}), "none of its 1 keys can be used", FAILED),
        (200, json.dumps({"keys": [{"kty": "oct", "kid": "1"}]}), "none of its 1 keys can be used", FAILED),
        (200, json.dumps({"keys": [SHORT]}), "none of its 1 keys can be used", FAILED),
        (200, json.dumps({"keys": [RSA, SHORT]}), f"the key '2' is not used: {BITS}", 0),
        (200, "<html>", "the answer is no set of keys (RFC 7517)", UNREACHABLE),
        (404, "", "it answered with status 404", UNREACHABLE),
    ],
)
def test_the_keys_of_an_issuer(look: Look, issuer: HTTPServer, status: int, body: str, what: str, exit: int) -> None:
    Issuer.answer = (status, body.encode())
    url = f"http://127.0.0.1:{issuer.server_address[1]}/jwks"
    text = f'[outbound]\nallow = ["127.0.0.1"]\n[access.tokens]\nissuer = "i"\naudience = "a"\njwks_url = "{url}"\n'
    found = look(text, "access")
    assert found.one("access.tokens").what == what
    assert found.exit == exit


def test_an_issuer_that_the_guard_denies(look: Look) -> None:
    text = '[access.tokens]\nissuer = "i"\naudience = "a"\njwks_url = "https://127.0.0.1/jwks"\n'
    found = look(text, "access")
    assert "is denied" in found.one("access.tokens").what
    found = look('[access.tokens]\nissuer = "i"\n', "access")
    assert (found.one("access.tokens").where, found.exit) == ("access.tokens.audience", USAGE)


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("", None),
        ("[embedded]\nenabled = true\n", ""),
        ('[embedded]\nenabled = true\nhost = "0.0.0.0"\n', ""),
        (
            '[embedded]\nenabled = true\nhost = "0.0.0.0"\nloopback_users = []\n',
            "user 'guest': its password is its name",
        ),
        (
            '[embedded]\nenabled = true\nhost = "::"\nanonymous = "nobody"\n',
            "embedded.anonymous is 'nobody': clients need no password",
        ),
        (
            '[embedded]\nenabled = true\nhost = "0.0.0.0"\n[[embedded.users]]\nname = "a"\npassword = "a"\n',
            "user 'a': its password is its name",
        ),
        ('[embedded]\nenabled = true\n[[embedded.users]]\nname = "a"\npassword = "a"\n', ""),
    ],
)
def test_who_gets_into_the_embedded_broker(look: Look, text: str, warned: str | None) -> None:
    findings = look(text + key(), "access").all("access.embedded")
    if warned is None:
        assert not findings
    else:
        (finding,) = findings
        assert finding.what.endswith(warned or "or come from this machine")


@pytest.mark.parametrize(
    ("front", "warned"),
    [
        ("", []),
        ('host = "0.0.0.0"\n', ["passwords and messages of its clients travel in clear", "may do everything: a"]),
    ],
)
def test_who_gets_into_a_front(look: Look, front: str, warned: list[str]) -> None:
    text = f"""
[brokers.b]
url = "amqp://b/"
[fronts.legacy]
broker = "b"
{front}
[[fronts.legacy.users]]
name = "a"
password = "hidden-password"
"""
    found = look(text + key(), "access")
    findings = found.all("access.fronts")
    if not warned:
        assert [finding.what for finding in findings] == ["may log in: a"]
    else:
        assert [finding.what.endswith(words) for finding, words in zip(findings, warned, strict=True)] == [True, True]
    assert "hidden-password" not in found.text


def test_rules_and_scopes_of_fronts(look: Look) -> None:
    text = """
[brokers.b]
url = "amqp://b/"
[fronts.legacy]
broker = "b"
[fronts.legacy.rules]
transient = "on"
[[fronts.legacy.users]]
name = "a"
password = "b"
"""
    (finding,) = look(text + key(), "access").all("config.rule")
    assert "there is no rule 'transient'" in finding.what

"""SASL inside a session: mechanisms of one response and of rounds, both roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp import sasl
from gateway.amqp.operations import Close, Closed, CloseReason, Done, Opened, UpdateSecret
from gateway.classic import methods as m
from gateway.errors import StateError, Unsupported
from gateway.session import ClientConfig, ServerConfig, Version
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import QPID, RABBITMQ, ScriptedClient, ScriptedServer
from tests.pair import CLIENT, SERVER, SessionPair, only

ROUNDS = replace(
    SERVER,
    scram=lambda user: (
        sasl.scram_keys("guest", b"some salt") if user == "guest" else sasl.no_scram_keys(user, b"secret")
    ),
)


def shaken(version: Version, client: ClientConfig, server: ServerConfig) -> SessionPair:
    pair = SessionPair(version, client, server)
    pair.pump()
    return pair


@pytest.mark.parametrize(
    ("mechanism", "user", "server", "login", "told"),
    [
        ("SCRAM-SHA-256", "guest", ROUNDS, "guest", "guest"),
        ("EXTERNAL", "", replace(SERVER, certificate="carol"), "carol", ""),
        ("EXTERNAL", "carol", replace(SERVER, certificate="carol"), "carol", "carol"),
        ("ANONYMOUS", "guest", replace(SERVER, anonymous="nobody"), "nobody", ""),
    ],
)
def test_logins(version: Version, mechanism: str, user: str, server: ServerConfig, login: str, told: str) -> None:
    client = replace(CLIENT, user=user, mechanisms=(mechanism,), secure=False)
    pair = shaken(version, client, server)
    assert pair.requests == [Opened(0, login, "/")]
    assert pair.events == [Opened(0, told, "/")]
    assert mechanism in pair.client.capabilities.mechanisms
    assert pair.server.capabilities.mechanisms == (mechanism,)


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_what_was_not_asked_for_is_not_taken(version: Version, mechanism: str) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, secure=False))
    start = m.ConnectionStart(*server.dialect.start_version, RABBITMQ, f"PLAIN {mechanism}".encode())
    closed = only(server.say(start, channel=0))
    assert (closed.reason, closed.code) == (CloseReason.AUTHENTICATION, 403)


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest")])
def test_a_wrong_password_in_rounds(version: Version, user: str, password: str) -> None:
    client = replace(CLIENT, user=user, password=password, mechanisms=("SCRAM-SHA-256",))
    pair = shaken(version, client, ROUNDS)
    (closed,) = pair.events
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.code) == (CloseReason.AUTHENTICATION, 403)
    assert "SCRAM-SHA-256" in closed.text


def challenged(version: Version, config: ServerConfig = ROUNDS, response: bytes = b"") -> ScriptedClient:
    client = ScriptedClient(version, config=config)
    client.receive(client.dialect.version.header)
    ((_, start),) = client.heard()
    assert b"SCRAM-SHA-256" in start.mechanisms
    assert client.say(m.ConnectionStartOk(client.properties, "SCRAM-SHA-256", response), channel=0) == []
    return client


def test_a_client_that_begins_with_nothing(version: Version) -> None:
    client = challenged(version)
    assert client.heard() == [(0, m.ConnectionSecure(b""))]
    client.say(m.ConnectionSecureOk(b"n,,n=guest,r=abc"), channel=0)
    ((_, secure),) = client.heard()
    assert secure.challenge.startswith(b"r=abc")


@pytest.mark.parametrize("said", [m.ConnectionTuneOk(0, 0, 0), m.ConnectionOpen("/")])
def test_going_on_without_an_answer(version: Version, said: m.Method) -> None:
    client = challenged(version)
    client.heard()
    client.say(said, channel=0)
    assert client.heard()[0][1].reply_code == 503


def test_an_answer_that_nobody_asked_for(version: Version) -> None:
    client = ScriptedClient(version)
    client.greet()
    client.heard()
    client.say(m.ConnectionSecureOk(b""), channel=0)
    assert client.heard()[0][1].reply_code == 503


def test_a_malformed_response(version: Version) -> None:
    client = challenged(version, response=b"nonsense")
    ((_, close),) = client.heard()
    assert close.reply_code == 403
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused")


# ------------------------------------------------------------------------------------------- update-secret


def test_a_new_password(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.session.capabilities.update_secret is (version is not V0_8)
    if version is V0_8:
        with pytest.raises(Unsupported, match="update-secret"):
            server.send(UpdateSecret(0, "new"))
        return
    assert server.send(UpdateSecret(0, "n\u00e9w", "rotation"), UpdateSecret(0, "newer")) == [1, 2]
    assert server.heard() == [
        (0, m.ConnectionUpdateSecret("n\u00e9w".encode(), "rotation")),
        (0, m.ConnectionUpdateSecret(b"newer", "")),
    ]
    assert server.say(m.ConnectionUpdateSecretOk(), m.ConnectionUpdateSecretOk(), channel=0) == [
        Done(0, 1, 1),
        Done(0, 2, 2),
    ]
    assert only(server.say(m.ConnectionUpdateSecretOk(), channel=0)).code == 503


def test_a_new_password_where_nobody_takes_it() -> None:
    qpid = ScriptedServer(V0_9_1, QPID).open()
    with pytest.raises(Unsupported, match="update-secret"):
        qpid.send(UpdateSecret(0, "new"))
    with pytest.raises(StateError, match="channel 0"):
        qpid.send(UpdateSecret(5, "new"))
    with pytest.raises(StateError, match="channel 0"):
        qpid.send(Close(5))
    assert "new" not in repr(UpdateSecret(0, "new"))


@pytest.mark.parametrize(("secret", "outcome"), [("guest", Done), ("wrong", Closed)])
def test_a_new_password_between_the_two(secret: str, outcome: type[Any]) -> None:
    client = replace(CLIENT, dialect="rabbitmq")
    pair = SessionPair(V0_9_1, client).open()
    pair.ask(UpdateSecret(0, secret))
    assert [type(event) for event in pair.events] == [outcome]


# -------------------------------------------------------------------------------------------- redirection


def sent_away(*hosts: str) -> ServerConfig:
    return replace(SERVER, redirect=lambda user, name: hosts if (user, name) == ("guest", "/") else ())


@pytest.mark.parametrize("hosts", [("one:1",), ("one:1", "two:2", "three")])
def test_a_client_is_sent_away(hosts: tuple[str, ...]) -> None:
    pair = shaken(V0_8, replace(CLIENT, insist=False), sent_away(*hosts))
    assert pair.events == [Closed(0, CloseReason.PEER, 0, "redirected to one:1", redirect=hosts)]
    assert pair.requests == [Closed(0, CloseReason.LOCAL, 0, "redirected to one:1", redirect=hosts)]
    assert pair.server.closed


@pytest.mark.parametrize(
    ("insist", "server"), [(True, sent_away("one:1")), (False, sent_away()), (False, SERVER)], ids=str
)
def test_a_client_stays(insist: bool, server: ServerConfig) -> None:
    pair = shaken(V0_8, replace(CLIENT, insist=insist), server)
    assert pair.events == [Opened(0, "guest", "/")]


def test_0_9_1_has_no_redirection() -> None:
    pair = shaken(V0_9_1, replace(CLIENT, insist=False), sent_away("one:1"))
    assert pair.events == [Opened(0, "guest", "/")]

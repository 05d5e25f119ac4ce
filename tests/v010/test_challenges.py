"""SASL inside a session of 0-10, and being sent elsewhere: both roles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp import sasl
from gateway.amqp.operations import Closed, CloseReason, Opened
from gateway.session import ClientConfig, ServerConfig
from gateway.v010 import controls as k
from gateway.v010.frames import PROTOCOL_HEADER
from gateway.v010.version import V0_10
from tests.pair import CLIENT, SERVER, SessionPair
from tests.v010.peer import ClientPeer, ServerPeer

ROUNDS = replace(SERVER, scram=lambda user: sasl.scram_keys("guest", b"some salt"))


def shaken(client: ClientConfig, server: ServerConfig) -> SessionPair:
    pair = SessionPair(V0_10, client, server)
    pair.pump()
    return pair


@pytest.mark.parametrize(
    ("mechanism", "user", "server", "login", "told"),
    [
        ("SCRAM-SHA-256", "guest", ROUNDS, "guest", "guest"),
        ("EXTERNAL", "carol", replace(SERVER, certificate="carol"), "carol", "carol"),
        ("ANONYMOUS", "guest", replace(SERVER, anonymous="nobody"), "nobody", ""),
    ],
)
def test_logins(mechanism: str, user: str, server: ServerConfig, login: str, told: str) -> None:
    pair = shaken(replace(CLIENT, user=user, mechanisms=(mechanism,), secure=False), server)
    assert pair.requests == [Opened(0, login, "")]
    assert pair.events == [Opened(0, told, "/")]
    assert pair.server.capabilities.mechanisms == ("PLAIN", mechanism)


def test_a_wrong_password_in_rounds() -> None:
    pair = shaken(replace(CLIENT, password="wrong", mechanisms=("SCRAM-SHA-256",)), ROUNDS)
    (closed,) = pair.events
    assert isinstance(closed, Closed)
    assert closed.reason is CloseReason.AUTHENTICATION


def challenged(response: bytes = b"") -> ServerPeer:
    peer = ServerPeer(ROUNDS)
    peer.octets(PROTOCOL_HEADER)
    assert peer.sent()[1] == (
        0,
        k.ConnectionStart(dict(SERVER.properties), ("PLAIN", "SCRAM-SHA-256"), ("en_US",)),
    )
    assert peer.receive(0, k.ConnectionStartOk(None, "SCRAM-SHA-256", response)) == []
    return peer


def test_a_client_that_begins_with_nothing() -> None:
    peer = challenged()
    assert peer.sent() == [(0, k.ConnectionSecure(b""))]
    peer.receive(0, k.ConnectionSecureOk(b"n,,n=guest,r=abc"))
    ((_, secure),) = peer.sent()
    assert secure.challenge.startswith(b"r=abc")


def test_going_on_without_an_answer() -> None:
    peer = challenged()
    peer.sent()
    peer.receive(0, k.ConnectionTuneOk(1))
    assert peer.sent()[0][1].reply_code == 501
    early = ServerPeer().tuned()
    early.sent()
    early.receive(0, k.ConnectionSecureOk(b""))
    assert early.sent()[0][1].reply_code == 501


def test_a_malformed_response() -> None:
    peer = challenged(b"nonsense")
    assert peer.sent() == [(0, k.ConnectionClose(320, "Authentication failed"))]


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_what_was_not_asked_for_is_not_taken(mechanism: str) -> None:
    peer = ClientPeer(replace(CLIENT, secure=False))
    peer.octets(PROTOCOL_HEADER)
    (closed,) = peer.receive(0, k.ConnectionStart(None, ("PLAIN", mechanism), ("en_US",)))
    assert isinstance(closed, Closed)
    assert closed.reason is CloseReason.AUTHENTICATION


# -------------------------------------------------------------------------------------------- redirection


def sent_away(*hosts: str) -> ServerConfig:
    return replace(SERVER, redirect=lambda user, name: hosts if user == "guest" else ())


@pytest.mark.parametrize("hosts", [("amqp:tcp:one:1",), ("one:1", "two:2", "three")])
def test_a_client_is_sent_away(hosts: tuple[str, ...]) -> None:
    pair = shaken(replace(CLIENT, insist=False), sent_away(*hosts))
    assert pair.events == [Closed(0, CloseReason.PEER, 320, f"redirected to {hosts[0]}", redirect=hosts)]
    assert pair.requests == [Closed(0, CloseReason.LOCAL, 0, f"redirected to {hosts[0]}", redirect=hosts)]


@pytest.mark.parametrize(
    ("insist", "server"), [(True, sent_away("one:1")), (False, sent_away()), (False, SERVER)], ids=str
)
def test_a_client_stays(insist: bool, server: ServerConfig) -> None:
    assert shaken(replace(CLIENT, insist=insist), server).events == [Opened(0, "guest", "/")]


def test_known_hosts_that_are_none() -> None:
    peer = ClientPeer().started()
    peer.receive(0, k.ConnectionTune())
    (closed,) = peer.receive(0, k.ConnectionRedirect("other", b"\x95\x00\x00"))
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.redirect) == (CloseReason.SYNTAX, ())

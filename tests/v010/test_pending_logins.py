"""Logins that are checked elsewhere: the client waits for the result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp.operations import Closed, CloseReason, Opened
from gateway.session import PendingLogin, Version
from gateway.v010.version import V0_10
from tests.pair import SERVER, SessionPair, only

VERSIONS = [V0_10]


def waiting(version: Version) -> tuple[SessionPair, PendingLogin]:
    """A client that has sent its login, and what decides on it."""
    pending = PendingLogin()
    pair = SessionPair(version, server=replace(SERVER, authenticate=lambda user, password: pending))
    pair.pump()
    assert (pair.requests, pair.events) == ([], [])
    return pair, pending


@pytest.mark.parametrize("version", VERSIONS)
def test_a_login_that_is_accepted_later_opens_the_connection(version: Version) -> None:
    pair, pending = waiting(version)
    pending.decide(True, pair.now)
    pair.pump()
    assert [type(event) for event in (*pair.requests, *pair.events)] == [Opened, Opened]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("unavailable", "code", "text"),
    [("", 320, "Authentication failed"), ("the broker is away", 320, "the broker is away")],
)
def test_a_login_that_is_not_accepted_ends_the_connection(
    version: Version, unavailable: str, code: int, text: str
) -> None:
    pair, pending = waiting(version)
    pending.decide(False, pair.now, unavailable)
    pair.pump()
    closed = only(pair.requests)
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.code) == (CloseReason.AUTHENTICATION, code)
    assert text in closed.text


@pytest.mark.parametrize("version", VERSIONS)
def test_a_result_for_a_client_that_has_gone_is_nothing(version: Version) -> None:
    pair, pending = waiting(version)
    pair.server.receive_eof(pair.now)
    pending.decide(True, pair.now)
    assert b"".join(pair.server.data_to_send()) == b""

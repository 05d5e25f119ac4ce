"""The server's connection: handshake, refusals, how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.operations import Blocked, Close, Closed, CloseReason, Done, OpenChannel, Opened, Unblocked
from gateway.classic import methods as m
from gateway.classic.server import SERVER_CAPABILITIES
from gateway.errors import StateError, Unsupported
from gateway.limits import Limits
from gateway.session import Version
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import ScriptedClient
from tests.pair import SERVER, only, server_session


def test_the_handshake(version: Version) -> None:
    client = ScriptedClient(version)
    assert client.shake_hands() == [Opened(0, "guest", "/")]
    assert client.session.capabilities.product == "test"
    assert client.session.capabilities.frame_max == 131_072


def test_what_clients_are_told(version: Version) -> None:
    client = ScriptedClient(version)
    assert client.receive(client.dialect.version.header) == []
    ((_, start),) = client.heard()
    assert (start.version_major, start.version_minor) == client.dialect.start_version
    assert (start.mechanisms, start.locales) == (b"PLAIN AMQPLAIN", b"en_US")
    assert start.server_properties["product"] == "test-broker"
    if version is not V0_8:
        assert start.server_properties["capabilities"] == SERVER_CAPABILITIES
    else:
        assert start.server_properties["qpid.confirmed_publish_supported"] == "true"
        assert "capabilities" not in start.server_properties


def test_capabilities_of_the_configuration_are_added() -> None:
    config = replace(SERVER, properties={"capabilities": {"direct_reply_to": True}})
    client = ScriptedClient(V0_9_1, config=config)
    client.receive(client.dialect.version.header)
    capabilities = client.heard()[0][1].server_properties["capabilities"]
    assert capabilities == {**SERVER_CAPABILITIES, "direct_reply_to": True}


@pytest.mark.parametrize("cut", [None, 1])
@pytest.mark.parametrize(
    ("header", "supported"),
    [(b"AMQP\x01\x01\x00\x0a", "0-10"), (b"AMQP\x03\x01\x00\x00", None), (b"GET / HTTP/1.1\r\n\r\n", None)],
)
def test_a_wrong_header_is_answered_with_the_right_one(
    version: Version, header: bytes, supported: str | None, cut: int | None
) -> None:
    session = server_session(version)
    events, step = [], cut or len(header)
    for at in range(0, len(header), step):
        events += session.receive_data(header[at : at + step], 0.0)
    closed = only(events)
    assert closed.reason is CloseReason.PROTOCOL_HEADER
    assert closed.supported == supported
    assert b"".join(session.data_to_send()) == ScriptedClient(version).dialect.version.header
    assert session.closed


def test_a_header_in_two_pieces(version: Version) -> None:
    client = ScriptedClient(version)
    header = client.dialect.version.header
    assert client.receive(header[:3]) == []
    assert client.heard() == []
    client.receive(header[3:])
    assert isinstance(client.heard()[0][1], m.ConnectionStart)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\x00guest\x00guest"),
        ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"),
    ],
)
def test_logins(version: Version, mechanism: str, response: bytes) -> None:
    client = ScriptedClient(version)
    client.receive(client.dialect.version.header)
    client.heard()
    client.say(m.ConnectionStartOk({}, mechanism, response), channel=0)
    assert isinstance(client.heard()[0][1], m.ConnectionTune)


def refused(client: ScriptedClient, mechanism: str = "PLAIN", response: bytes = b"\x00guest\x00wrong") -> list[Any]:
    client.receive(client.dialect.version.header)
    client.heard()
    return client.say(m.ConnectionStartOk(client.properties, mechanism, response), channel=0)


def test_a_wrong_password_is_told_by_a_close(version: Version) -> None:
    client = ScriptedClient(version)
    assert refused(client) == []
    ((_, close),) = client.heard()
    assert close.reply_code == 403
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused")
    closed = only(client.say(client.dialect.connection_close_ok(), channel=0))
    assert closed.reason is CloseReason.AUTHENTICATION


def test_a_client_that_does_not_know_is_not_waited_for() -> None:
    client = ScriptedClient(V0_9_1, {"product": "old"})
    assert only(refused(client)).reason is CloseReason.AUTHENTICATION
    assert client.heard()[0][1].reply_code == 403
    jms = ScriptedClient(V0_9_1, {"product": "qpid"})
    assert refused(jms) == []


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [("PLAIN", b"nonsense", 403), ("AMQPLAIN", b"", 403), ("AMQPLAIN", b"nonsense", 502), ("EXTERNAL", b"", 503)],
)
def test_responses_that_are_none(version: Version, mechanism: str, response: bytes, code: int) -> None:
    client = ScriptedClient(version)
    assert refused(client, mechanism, response) == []
    assert client.heard()[0][1].reply_code == code


@pytest.mark.parametrize(
    ("tune_ok", "frame_max"),
    [
        (m.ConnectionTuneOk(0, 0, 0), 131_072),
        (m.ConnectionTuneOk(10, 4_096, 0), 4_096),
        (m.ConnectionTuneOk(2_047, 131_072, 0), 131_072),
    ],
)
def test_tuning(version: Version, tune_ok: m.ConnectionTuneOk, frame_max: int) -> None:
    client = ScriptedClient(version)
    client.greet()
    assert client.heard() == [(0, m.ConnectionTune(2_047, 131_072, 60))]
    client.say(tune_ok, channel=0)
    assert client.session.frame_max == frame_max


@pytest.mark.parametrize(
    "tune_ok",
    [m.ConnectionTuneOk(0, 4_095, 0), m.ConnectionTuneOk(0, 131_073, 0), m.ConnectionTuneOk(2_048, 0, 0)],
)
def test_tuning_beyond_the_offer(version: Version, tune_ok: m.ConnectionTuneOk) -> None:
    client = ScriptedClient(version)
    client.greet()
    client.heard()
    client.say(tune_ok, channel=0)
    assert client.heard()[0][1].reply_code == 530


def test_an_unknown_virtual_host(version: Version) -> None:
    client = ScriptedClient(version)
    client.greet()
    assert client.say(m.ConnectionTuneOk(0, 0, 0), m.ConnectionOpen("nope"), channel=0) == []
    close = client.heard()[-1][1]
    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost nope not found")
    closed = only(client.say(client.dialect.connection_close_ok(), channel=0))
    assert closed.reason is CloseReason.AUTHENTICATION


def test_methods_out_of_turn(version: Version) -> None:
    for said in (m.ConnectionTuneOk(0, 0, 0), m.ConnectionOpen("/"), m.ConnectionOpenOk()):
        client = ScriptedClient(version).open()
        client.say(said, channel=0)
        assert client.heard()[0][1].reply_code == 503
    client = ScriptedClient(version)
    client.greet()
    client.heard()
    client.say(m.ChannelOpen())
    assert client.heard()[0][1].reply_code == 503


def test_the_client_closes(version: Version) -> None:
    client = ScriptedClient(version).open()
    said = client.say(client.dialect.connection_close(200, "bye"), channel=0)
    assert said == [Closed(0, CloseReason.PEER, 200, "bye")]
    assert [type(method) for _, method in client.heard()] == [client.dialect.connection_close_ok]


def test_the_server_closes(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.send(Close(0, 320, "shutting down"))
    ((_, close),) = client.heard()
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - shutting down")
    with pytest.raises(StateError, match="the connection is closing"):
        client.send(Done(1, 1, 1))
    assert client.say(client.dialect.connection_close(200, "me too"), channel=0) == []
    assert client.say(m.ConnectionTuneOk(0, 0, 0), channel=0) == []
    assert client.say(m.ChannelOpen(), channel=5) == []
    assert [type(method) for _, method in client.heard()] == [client.dialect.connection_close_ok]
    closed = only(client.say(client.dialect.connection_close_ok(), channel=0))
    assert closed == Closed(0, CloseReason.LOCAL, 320, "shutting down")


def test_blocked_only_for_those_who_can_hear() -> None:
    client = ScriptedClient(V0_9_1).open()
    client.send(Blocked(0, "low"), Unblocked(0))
    assert client.heard() == [(0, m.ConnectionBlocked("low")), (0, m.ConnectionUnblocked())]
    for deaf in (ScriptedClient(V0_9_1, {}).open(), ScriptedClient(V0_8).open()):
        deaf.send(Blocked(0, "low"), Unblocked(0))
        assert deaf.heard() == []


def test_update_secret() -> None:
    client = ScriptedClient(V0_9_1).open()
    assert client.say(m.ConnectionUpdateSecret(b"guest", "rotation"), channel=0) == []
    assert client.heard() == [(0, m.ConnectionUpdateSecretOk())]
    client.say(m.ConnectionUpdateSecret(b"wrong", "rotation"), channel=0)
    assert client.heard()[0][1].reply_code == 530
    early = ScriptedClient(V0_9_1)
    early.greet()
    early.heard()
    early.say(m.ConnectionUpdateSecret(b"guest", "rotation"), channel=0)
    assert early.heard()[0][1].reply_code == 503


def test_channels(version: Version) -> None:
    client = ScriptedClient(version, config=replace(SERVER, limits=Limits(channel_max=2)))
    client.shake_hands()
    assert client.say(m.ChannelOpen(), channel=65_535) == [OpenChannel(65_535, serial=1)]
    assert client.say(m.ChannelOpen(), channel=1) == [OpenChannel(1, serial=1)]
    client.say(m.ChannelOpen(), channel=2)
    assert client.heard()[-1][1].reply_code == 530


@pytest.mark.parametrize("method", [m.QueuePurge(0, "q", False), m.BasicAck(1)])
def test_channels_that_are_not_open(version: Version, method: m.Method) -> None:
    client = ScriptedClient(version).open()
    client.say(method, channel=9)
    ((_, close),) = client.heard()
    assert close.reply_code == 504
    assert (close.class_id_, close.method_id_) == (method.class_id, method.method_id)


def test_closed_by_both_sides_at_once(version: Version) -> None:
    client = ScriptedClient(version).open()
    assert client.say(m.ChannelCloseOk(), m.ChannelClose(200, ""), channel=9) == []
    assert client.heard() == [(9, m.ChannelCloseOk())]


def test_what_a_server_does_not_send(version: Version) -> None:
    client = ScriptedClient(version)
    with pytest.raises(StateError, match="the connection is header"):
        client.send(Close(0))
    client.open()
    with pytest.raises(Unsupported):
        client.send(Opened(0))
    with pytest.raises(Unsupported):
        client.send(OpenChannel(1))
    with pytest.raises(StateError, match="channel 3 is not open"):
        client.send(Done(3, 1, 1))

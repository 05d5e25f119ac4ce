"""The client's connection: handshake, what the server's properties teach, how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp.operations import (
    Blocked,
    ChannelClosed,
    Close,
    Closed,
    CloseReason,
    Confirmed,
    DeclareQueue,
    Failed,
    OpenChannel,
    Opened,
    Unblocked,
)
from gateway.classic import methods as m
from gateway.errors import StateError, Unsupported
from gateway.session import Confirms, Version
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import OLD_RABBITMQ, QPID, RABBITMQ, ScriptedServer
from tests.pair import CLIENT, client_session, only


def test_the_handshake(version: Version) -> None:
    server = ScriptedServer(version)
    assert server.shake_hands() == [Opened(0, "guest", "/")]
    assert not server.session.closed
    assert server.session.capabilities.frame_max == 131_072
    assert server.session.capabilities.channel_max == 2_047
    assert server.session.capabilities.heartbeat == 60


def test_what_the_server_is_told(version: Version) -> None:
    config = replace(CLIENT, connection_name="mine", client_properties={"platform": "test"}, virtual_host="v")
    server = ScriptedServer(version, config=config)
    server.session.data_to_send()
    server.say(m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"AMQPLAIN PLAIN"), channel=0)
    ((_, start_ok),) = server.heard()
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\x00guest\x00guest")
    properties = start_ok.client_properties
    assert properties["qpid.close_when_no_route"] == "false"
    assert (properties["connection_name"], properties["platform"]) == ("mine", "test")
    assert ("capabilities" in properties) is (version is not V0_8)
    server.say(m.ConnectionTune(256, 8_192, 10), channel=0)
    (_, tune_ok), (_, opening) = server.heard()
    assert tune_ok == m.ConnectionTuneOk(256, 8_192, 10)
    assert opening.virtual_host == "v"


@pytest.mark.parametrize(
    ("tune", "tune_ok"),
    [
        (m.ConnectionTune(0, 0, 0), m.ConnectionTuneOk(2_047, 131_072, 60)),
        (m.ConnectionTune(65_535, 1 << 31, 580), m.ConnectionTuneOk(2_047, 131_072, 60)),
        (m.ConnectionTune(10, 4_096, 5), m.ConnectionTuneOk(10, 4_096, 5)),
    ],
)
def test_zero_is_no_limit(version: Version, tune: m.ConnectionTune, tune_ok: m.ConnectionTuneOk) -> None:
    server = ScriptedServer(version)
    server.session.data_to_send()
    server.say(m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"PLAIN"), channel=0)
    server.heard()
    server.say(tune, channel=0)
    assert server.heard()[0] == (0, tune_ok)


def test_a_frame_max_below_the_floor(version: Version) -> None:
    server = ScriptedServer(version)
    server.session.data_to_send()
    server.say(m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"PLAIN"), channel=0)
    closed = only(server.say(m.ConnectionTune(0, 4_095, 0), channel=0))
    assert (closed.reason, closed.code) == (CloseReason.SYNTAX, 502)


@pytest.mark.parametrize(
    ("properties", "confirms", "nack", "nack_many", "absolute"),
    [
        (RABBITMQ, Confirms.NATIVE, True, True, False),
        (OLD_RABBITMQ, Confirms.TRANSACTION, False, False, False),
        (QPID, Confirms.NATIVE, True, False, True),
        ({}, Confirms.TRANSACTION, False, False, False),
    ],
)
def test_capabilities(
    version: Version, properties: dict[str, object], confirms: Confirms, nack: bool, nack_many: bool, absolute: bool
) -> None:
    session = ScriptedServer(version, properties).open().session
    known = session.capabilities
    assert (known.confirms, known.release_many, known.absolute_expiration) == (confirms, nack_many, absolute)
    assert known.native_dead_letter is (known.product != "qpid")
    assert known.query_binding is known.counts_unacked is absolute
    assert known.mechanisms == ("PLAIN", "AMQPLAIN")
    assert known.blocked_notification is known.exchange_bindings is ("basic.nack" in str(properties))
    assert known.durable_storage


def test_a_server_that_keeps_nothing_says_so(version: Version) -> None:
    for value in ("false", False):
        session = ScriptedServer(version, {"product": "x", "durable_storage": value}).open().session
        assert not session.capabilities.durable_storage


def test_the_configuration_overrides_the_dialect(version: Version) -> None:
    server = ScriptedServer(version, RABBITMQ, replace(CLIENT, dialect="qpid")).open()
    assert server.session.dialect.name == "qpid"


@pytest.mark.parametrize(
    ("answer", "supported"),
    [
        (b"AMQP\x00\x00\x09\x01", "0-9-1"),
        (b"AMQP\x01\x01\x00\x0a", "0-10"),
        (b"AMQP\x01\x01\x08\x00", "0-8"),
        (b"AMQP\x00\x01\x00\x00", None),
        (b"HTTP/1.1 400 Bad Request", None),
        (b"\x00", None),
        (b"A horse", None),
    ],
)
@pytest.mark.parametrize("cut", [None, 1])
def test_another_header_or_none(version: Version, answer: bytes, supported: str | None, cut: int | None) -> None:
    session = client_session(version)
    step, events = cut or len(answer), []
    for at in range(0, len(answer), step):
        events += session.receive_data(answer[at : at + step], 0.0)
    closed = only(events)
    assert (closed.reason, closed.supported) == (CloseReason.PROTOCOL_HEADER, supported)
    assert session.closed


def test_half_a_header_and_the_end(version: Version) -> None:
    session = client_session(version)
    assert session.receive_data(b"AMQ", 0.0) == []
    assert only(session.receive_eof(0.0)).reason is CloseReason.EOF


def test_another_version_in_start(version: Version) -> None:
    server = ScriptedServer(version)
    closed = only(server.say(m.ConnectionStart(7, 7, {}, b"PLAIN"), channel=0))
    assert closed.reason is CloseReason.PROTOCOL_HEADER


@pytest.mark.parametrize(
    ("config", "mechanisms", "text"),
    [
        (replace(CLIENT, secure=False), b"PLAIN AMQPLAIN", "none of the mechanisms offered"),
        (CLIENT, b"GSSAPI", "none of the mechanisms offered"),
        (replace(CLIENT, user="a\x00b"), b"SCRAM-SHA-256", "control"),
    ],
)
def test_no_mechanism(version: Version, config: object, mechanisms: bytes, text: str) -> None:
    server = ScriptedServer(version, config=config)  # type: ignore[arg-type]
    start = m.ConnectionStart(*server.dialect.start_version, RABBITMQ, mechanisms)
    closed = only(server.say(start, channel=0))
    assert closed.reason is CloseReason.AUTHENTICATION
    assert text in closed.text


def test_a_challenge(version: Version) -> None:
    server = ScriptedServer(version)
    server.session.data_to_send()
    server.say(m.ConnectionStart(*server.dialect.start_version, QPID, b"CRAM-MD5"), channel=0)
    ((_, start_ok),) = server.heard()
    assert (start_ok.mechanism, start_ok.response) == ("CRAM-MD5", b"")
    server.say(m.ConnectionSecure(b"<1@x>"), channel=0)
    ((_, secure_ok),) = server.heard()
    assert secure_ok.response.startswith(b"guest ")


def test_a_server_that_cannot_prove_itself(version: Version) -> None:
    for answers in ([m.ConnectionSecure(b"r=x,s=x,i=1")], [m.ConnectionTune(0, 0, 0)]):
        server = ScriptedServer(version)
        server.say(m.ConnectionStart(*server.dialect.start_version, QPID, b"SCRAM-SHA-256"), channel=0)
        assert only(server.say(*answers, channel=0)).reason is CloseReason.AUTHENTICATION


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (0, CloseReason.EOF),
        (1, CloseReason.LOGIN_CUT),
        (2, CloseReason.LOGIN_CUT),
        (3, CloseReason.EOF),
    ],
)
def test_hanging_up_means(version: Version, steps: int, reason: CloseReason) -> None:
    server = ScriptedServer(version)
    said = (
        m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"PLAIN"),
        m.ConnectionTune(0, 0, 0),
        m.ConnectionOpenOk(),
    )
    server.say(*said[:steps], channel=0)
    assert only(server.session.receive_eof(0.0)).reason is reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [(403, CloseReason.AUTHENTICATION), (530, CloseReason.AUTHENTICATION), (320, CloseReason.PEER)],
)
def test_closed_before_open(version: Version, code: int, reason: CloseReason) -> None:
    server = ScriptedServer(version)
    server.say(m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"PLAIN"), channel=0)
    server.session.data_to_send()
    closed = only(server.say(server.dialect.connection_close(code, "no"), channel=0))
    assert closed == Closed(0, reason, code, "no")
    assert [type(method) for _, method in server.heard()] == [server.dialect.connection_close_ok]


def test_methods_out_of_turn(version: Version) -> None:
    for said in (m.ConnectionTune(0, 0, 0), m.ConnectionOpenOk(), m.ConnectionSecure(b"")):
        server = ScriptedServer(version)
        assert only(server.say(said, channel=0)).code == 503
        server = ScriptedServer(version).open()
        assert only(server.say(said, channel=0)).code == 503
    server = ScriptedServer(version).open()
    assert only(server.say(server.dialect.connection_close_ok(), channel=0)).code == 503


def test_a_virtual_host_that_is_too_long(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, virtual_host="v" * 256))
    server.say(m.ConnectionStart(*server.dialect.start_version, RABBITMQ, b"PLAIN"), channel=0)
    closed = only(server.say(m.ConnectionTune(0, 0, 0), channel=0))
    assert (closed.reason, closed.code) == (CloseReason.AUTHENTICATION, 530)


@pytest.mark.parametrize("insist", [True, False])
def test_redirect_is_told(insist: bool) -> None:
    server = ScriptedServer(V0_8, config=replace(CLIENT, insist=insist))
    server.session.data_to_send()
    server.say(m.ConnectionStart(8, 0, RABBITMQ, b"PLAIN"), m.ConnectionTune(0, 0, 0), channel=0)
    assert server.heard()[-1] == (0, m.ConnectionOpen("/", "", insist))
    closed = only(server.say(m.ConnectionRedirect("other:5672", "other:5672, third  fourth:1"), channel=0))
    assert closed.redirect == ("other:5672", "other:5672", "third", "fourth:1")
    early = ScriptedServer(V0_8)
    assert only(early.say(m.ConnectionRedirect("other:5672"), channel=0)).code == 503
    assert (closed.reason, closed.text) == (CloseReason.PEER, "redirected to other:5672")


def test_blocked_and_unblocked() -> None:
    server = ScriptedServer(V0_9_1).open()
    said = server.say(m.ConnectionBlocked("low on memory"), m.ConnectionUnblocked(), channel=0)
    assert said == [Blocked(0, "low on memory"), Unblocked(0)]


def test_close(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.send(Close(0, 200, "bye")) == [1]
    ((channel, close),) = server.heard()
    assert (channel, close.reply_code) == (0, 200)
    with pytest.raises(StateError, match="the connection is closing: no DeclareQueue"):
        server.send(DeclareQueue(1, "q"))
    assert server.say(server.dialect.connection_close(320, "so do I"), channel=0) == []
    assert [type(method) for _, method in server.heard()] == [server.dialect.connection_close_ok]
    assert server.say(server.dialect.connection_close_ok(), channel=0) == [Closed(0, CloseReason.LOCAL, 200, "bye")]
    with pytest.raises(StateError):
        server.send(Close(0))


def test_a_violation_while_closing(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(Close(0))
    server.heard()
    assert only(server.receive(b"\x07" * 8)).reason is CloseReason.LOCAL
    assert server.heard() == []


def test_the_broker_closes_over_a_request(version: Version) -> None:
    server = ScriptedServer(version).open(1, 2)
    (serial,) = server.send(DeclareQueue(2, "q"))
    close = server.dialect.connection_close(541, "oops", 50, 10)
    assert server.say(close, channel=0) == [
        Failed(2, serial, serial, 541, "oops"),
        Closed(0, CloseReason.PEER, 541, "oops"),
    ]


def test_channels_that_cannot_be(version: Version) -> None:
    server = ScriptedServer(version)
    with pytest.raises(StateError, match="the connection is header: no OpenChannel"):
        server.send(OpenChannel(1))
    server.open()
    with pytest.raises(StateError, match="channel 2 is not open: no DeclareQueue"):
        server.send(DeclareQueue(2, "q"))
    for number in (0, 2_048):
        with pytest.raises(StateError, match=r"not within 1\.\.2047"):
            server.send(OpenChannel(number))
    with pytest.raises(StateError, match="channel 1 is open already"):
        server.send(OpenChannel(1))
    with pytest.raises(Unsupported, match="a client does not send Confirmed"):
        server.send(Confirmed(1, 1, 1))
    with pytest.raises(StateError, match="channel 0"):
        server.send(Close(9))


def test_methods_on_channels_that_are_not_open(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.say(m.ChannelCloseOk(), channel=9) == []  # both sides closed it at once
    assert only(server.say(m.QueueBindOk(), channel=9)).code == 504


def test_a_channel_number_is_used_again(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.say(m.ChannelClose(404, "gone")) == [ChannelClosed(1, 404, "gone")]
    assert server.send(OpenChannel(1)) == [1]

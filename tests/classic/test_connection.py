"""What both roles share: framing, heartbeats, deadlines, the end of the stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Close,
    Closed,
    CloseReason,
    Consume,
    DeclareQueue,
    Done,
    Publish,
    SelectConfirm,
)
from gateway.classic import methods as m
from gateway.classic.connection import ConnectionPhase
from gateway.classic.frames import HEARTBEAT_FRAME, content_frames, method_frame
from gateway.limits import Limits
from gateway.session import Version
from gateway.v08.dialect import RABBITMQ as RABBITMQ_08
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import QPID, RABBITMQ, ScriptedClient, ScriptedServer
from tests.pair import CLIENT, SERVER, SessionPair, only


@pytest.mark.parametrize("chunk", [None, 1, 7, 4096])
def test_the_wire_may_be_cut_anywhere(version: Version, chunk: int | None) -> None:
    pair = SessionPair(version, chunk=chunk).open()
    pair.ask(DeclareQueue(1, "q"))
    body = bytes(range(256)) * 1_000
    pair.ask(Publish(1, "ex", "key", Message(body)))
    assert only(pair.requests).message.body == body


@pytest.mark.parametrize(
    ("octets", "code", "reason"),
    [
        (b"\x01\x00\x01\xff\xff\xff\xff", 501, "is over"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x0b\x00", 501, "ends with 0x00"),
        (b"\x05\x00\x01\x00\x00\x00\x01", 501, "no frame type 5"),
        (b"\x05\x00\x01\x00\x00\x00\x00\xce", 501, "no frame type 5"),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 501, "heartbeat on channel 1"),
        (b"\x01\x00\x01\x00\x00\x00\x03\x00\x32\x00\xce", 502, "method frame of 3 octets"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x7f\xff\x00\x01\xce", 540, "no method 32767.1"),
        (b"\x01\x00\x00\x00\x00\x00\x04\x7f\xff\x00\x01\xce", 503, "no method 32767.1 on channel 0"),
        (b"\x02\x00\x01\x00\x00\x00\x0e" + bytes(14) + b"\xce", 505, "content header where a method was due"),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", 505, "body frame where a method was due"),
        (b"\x03\x00\x63\x00\x00\x00\x01x\xce", 504, "content on channel 99"),
    ],
)
def test_hostile_frames(version: Version, octets: bytes, code: int, reason: str) -> None:
    server = ScriptedServer(version).open()
    closed = only(server.receive(octets))
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.code) == (CloseReason.SYNTAX, code)
    assert reason in closed.text
    ((channel, close),) = server.heard()
    assert (channel, close.reply_code) == (0, code)
    assert type(close) is server.dialect.connection_close
    assert server.session.closed

    client = ScriptedClient(version).open()
    assert client.receive(octets) == []
    ((channel, close),) = client.heard()
    assert (channel, close.reply_code) == (0, code)
    assert client.receive(octets * 3) == []  # passed over
    client.session.receive_eof(client.now)


def test_a_method_of_the_other_role(version: Version) -> None:
    closed = only(ScriptedServer(version).open().say(m.BasicPublish(0, "", "q", False, False)))
    assert (closed.code, closed.text) == (503, "BasicPublish has no place on channel 1")
    client = ScriptedClient(version).open()
    client.say(m.BasicDeliver("tag", 1, False, "", "q"))
    ((channel, close),) = client.heard()
    assert (channel, close.reply_code) == (0, 503)
    assert "BasicDeliver has no place on channel 1" in close.reply_text


def test_a_method_of_a_class_that_nobody_serves() -> None:
    for version, text in ((V0_8, "stream.publish is not served"), (V0_9_1, "there is no method 80.40")):
        client = ScriptedClient(version).open()
        assert client.say(RABBITMQ_08.methods[80 << 16 | 40](0, "", "q", False, False)) == []
        ((channel, close),) = client.heard()
        assert (channel, close.reply_code, close.reply_text) == (0, 540, f"NOT_IMPLEMENTED - {text}")
        assert (close.class_id_, close.method_id_) == (80, 40)


def test_a_server_waits_for_the_answer_to_its_close(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.receive(b"\x01\x00\x01\x00\x00\x00\x04\x7f\xff\x00\x01\xce")
    assert not client.session.closed
    assert client.say(m.QueuePurge(0, "q", False)) == []
    assert client.say_content(m.BasicPublish(0, "", "q", False, False)) == []
    closed = only(client.say(client.dialect.connection_close_ok(), channel=0))
    assert closed.reason is CloseReason.SYNTAX
    assert client.session.closed
    assert client.receive(b"anything") == []


def test_a_frame_that_fits_exactly(version: Version) -> None:
    limits = Limits(frame_max=4_096)
    server = ScriptedServer(version, config=replace(CLIENT, limits=limits)).open()
    payload = bytes(4_088)
    assert server.session.frame_max == 4_096
    closed = only(server.receive(b"\x03\x00\x01\x00\x00\x0f\xf8" + payload + b"\xce"))
    assert "a method was due" in closed.text
    server = ScriptedServer(version, config=replace(CLIENT, limits=limits)).open()
    assert "is over 4096" in only(server.receive(b"\x03\x00\x01\x00\x00\x0f\xf9")).text


def test_heartbeats_go_out_at_half_the_interval(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, heartbeat=10.0)).open()
    session = server.session
    assert session.capabilities.heartbeat == 10
    assert session.next_timeout() == 1_005.0
    assert session.handle_timeout(1_004.0) == []
    assert server.heard() == []
    assert session.handle_timeout(1_005.0) == []
    assert b"".join(session.data_to_send()) == HEARTBEAT_FRAME
    assert session.next_timeout() == 1_010.0


def test_what_is_sent_puts_the_heartbeat_off(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, heartbeat=10.0)).open()
    server.now = 1_004.0
    server.send(DeclareQueue(1, "q"))
    server.heard()
    assert server.session.next_timeout() == 1_009.0


def test_silence_for_two_intervals_is_the_end(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, heartbeat=10.0)).open()
    session = server.session
    server.now = 1_015.0
    assert server.receive(HEARTBEAT_FRAME) == []
    for now in (1_020.0, 1_030.0, 1_034.9):
        assert session.handle_timeout(now) == []
        session.data_to_send()
    closed = only(session.handle_timeout(1_035.0))
    assert closed.reason is CloseReason.HEARTBEAT
    assert session.next_timeout() is None
    assert session.handle_timeout(1_036.0) == []


def test_no_heartbeat_no_deadline(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, heartbeat=0.0)).open()
    assert server.session.next_timeout() is None
    assert server.session.handle_timeout(9_999_999.0) == []


def test_the_handshake_has_a_deadline(version: Version) -> None:
    for script in (ScriptedServer(version), ScriptedClient(version)):
        session = script.session
        assert session.next_timeout() == 0.0  # it has not been told the time
        assert session.handle_timeout(500.0) == []
        assert session.next_timeout() == 510.0
        assert session.handle_timeout(509.0) == []
        assert only(session.handle_timeout(510.0)).reason is CloseReason.TIMEOUT
        assert session.closed


def test_a_close_has_a_deadline(version: Version) -> None:
    for script in (ScriptedServer(version).open(), ScriptedClient(version).open()):
        script.send(Close(0, 320, "going"))
        assert script.session.next_timeout() == 1_005.0
        closed = only(script.session.handle_timeout(1_005.0))
        assert (closed.reason, closed.code, closed.text) == (CloseReason.LOCAL, 320, "going")


@pytest.mark.parametrize("partial", [b"", b"\x01\x00"])
def test_the_end_of_the_stream(version: Version, partial: bytes) -> None:
    for script in (ScriptedServer(version).open(), ScriptedClient(version).open()):
        script.receive(partial)
        assert only(script.session.receive_eof(script.now)).reason is CloseReason.EOF
        assert script.session.receive_eof(script.now) == []


def test_the_end_of_the_stream_while_closing(version: Version) -> None:
    script = ScriptedServer(version).open()
    script.send(Close(0))
    assert only(script.session.receive_eof(script.now)).reason is CloseReason.LOCAL


def test_nothing_to_send(version: Version) -> None:
    assert ScriptedServer(version).open().session.data_to_send() == []


def test_any_buffer_will_do(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(SelectConfirm(1))
    data = method_frame(1, m.ConfirmSelectOk().encode())
    answers: list[Any] = [bytearray(data), memoryview(data)]
    assert server.session.receive_data(answers[0], 0.0) == [Done(1, 2, 2)]


def test_what_waits(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.session.pending == server.session.unfinished == 0
    server.send(DeclareQueue(1, "q"))
    assert server.session.pending == 1
    server.session.data_to_send()
    assert server.session.pending == 0
    data = method_frame(1, m.QueueDeclareOk("q", 0, 0).encode())
    assert server.receive(data[:9]) == []
    assert server.session.unfinished == 9
    server.receive(data[9:])
    assert server.session.unfinished == 0
    server.send(Consume(1, "q", "tag"))
    server.say(m.BasicConsumeOk("tag"))
    frames = content_frames(
        1, method_frame(1, m.BasicDeliver("tag", 1, False, "", "q").encode()), b"\0\0", b"x" * 9, 16
    )
    assert server.receive(b"".join(frames[:-1])) == []
    assert server.session.unfinished == 8
    assert only(server.receive(frames[-1])).message.body == b"x" * 9
    assert server.session.unfinished == 0


def test_two_frames_and_a_half() -> None:
    server = ScriptedServer(V0_9_1).open()
    server.send(DeclareQueue(1, "a"), DeclareQueue(1, "b"), DeclareQueue(1, "c"))
    frames = [method_frame(1, m.QueueDeclareOk(name, 0, 0).encode()) for name in "abc"]
    data = b"".join(frames)
    assert [event.queue for event in server.receive(data[:-3])] == ["a", "b"]  # type: ignore[attr-defined]
    assert [event.queue for event in server.receive(data[-3:])] == ["c"]  # type: ignore[attr-defined]


def test_phases(version: Version) -> None:
    server = ScriptedServer(version, QPID)
    assert server.session.phase is ConnectionPhase.HEADER
    server.shake_hands()
    assert server.session.phase is ConnectionPhase.OPEN
    assert RABBITMQ["product"] != server.session.capabilities.product
    assert SERVER.limits == server.session.limits


def test_what_waits_and_what_is_unfinished(version: Version) -> None:
    pair = SessionPair(version).open()
    pair.client.send(Publish(1, "", "q", Message(bytes(300_000))), pair.now)
    assert pair.client.pending > 3
    octets = b"".join(pair.client.data_to_send())
    assert (pair.client.pending, pair.server.unfinished) == (0, 0)
    pair.server.receive_data(octets[:200_000], pair.now)
    assert 199_000 < pair.server.unfinished < 200_000
    pair.server.receive_data(octets[200_000:], pair.now)
    assert pair.server.unfinished == 0

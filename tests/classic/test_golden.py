"""Transcripts of real brokers and clients: every octet of them is understood, and written again as it came."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.amqp.operations import (
    BindingFound,
    ChannelClosed,
    CloseChannel,
    Closed,
    CloseReason,
    Consume,
    Consuming,
    Declared,
    DeclareQueue,
    DeleteQueue,
    Done,
    Flow,
    Get,
    GotNothing,
    Opened,
    Publish,
    PurgeQueue,
    QueryBinding,
    Removed,
    Request,
    Settle,
)
from gateway.classic import methods as m
from gateway.classic import properties as content
from gateway.classic.frames import FRAME_HEADER
from gateway.classic.tables import QPID_TAGS, TableCodec
from gateway.errors import FrameSyntaxError, StateError
from gateway.v08.dialect import DIALECTS as DIALECTS_08
from gateway.v08.version import V0_8
from gateway.v091.dialect import DIALECTS as DIALECTS_091
from gateway.v091.version import V0_9_1
from gateway.versions import version_named
from tests import golden
from tests.classic.script import ScriptedClient, ScriptedServer
from tests.pair import CLIENT, SERVER

CLASSIC = [name for name in golden.names() if not golden.load(name).version.endswith("0-10")]
DIALECTS = {"0-8": DIALECTS_08, "0-9-1": DIALECTS_091}


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Type and payload of each frame behind the protocol header."""
    result, at = [], 8 if data.startswith(b"AMQP") else 0
    while at < len(data):
        kind, _, size = FRAME_HEADER.unpack_from(data, at)
        assert data[at + 7 + size] == 0xCE
        result.append((kind, data[at + 7 : at + 7 + size]))
        at += size + 8
    return result


@pytest.mark.parametrize("name", CLASSIC)
def test_there_and_back(name: str) -> None:
    transcript = golden.load(name)
    dialect = DIALECTS[transcript.version]["rabbitmq" if "RabbitMQ" in transcript.broker else "qpid"]
    tables = TableCodec(dialect.tags)
    kinds = set()
    for data in (transcript.from_client, transcript.from_server):
        for kind, payload in frames(data):
            if kind == 1:
                method = dialect.methods[int.from_bytes(payload[:4], "big")]
                if method is m.BasicConsume and not dialect.consume_arguments:
                    method = m.BasicConsume08
                kinds.add(method)
                message = method.decode(payload, 4, len(payload), tables)
                assert message.encode(tables) == payload, message
            elif kind == 2:
                octets = payload[12:]
                assert content.encode(content.decode(octets, tables), tables) == octets
    assert kinds


def answer(request: Request) -> Any:
    """What a broker might say to a request; None: nothing."""
    number, serial = request.channel, request.serial
    match request:
        case Publish() | Settle() | Flow():
            return None
        case CloseChannel():
            return ChannelClosed(number, 200, "")
        case Consume():
            return Consuming(number, serial, serial, request.consumer_tag or "ctag")
        case DeclareQueue():
            return Declared(number, serial, serial, request.queue or "amq.gen-1")
        case PurgeQueue() | DeleteQueue():
            return Removed(number, serial, serial, 0)
        case QueryBinding():
            return BindingFound(number, serial, serial)
        case Get():
            return GotNothing(number, serial, serial)
        case _:
            return Done(number, serial, serial)


def behind_tune_ok(data: bytes) -> tuple[m.ConnectionStartOk, bytes]:
    """The start-ok of a client, and what it sent once the limits were agreed."""
    at, start_ok = 8, None
    while True:
        _, _, size = FRAME_HEADER.unpack_from(data, at)
        payload, at = data[at + 7 : at + 7 + size], at + size + 8
        key = int.from_bytes(payload[:4], "big")
        if key == m.ConnectionStartOk.key:
            start_ok = m.ConnectionStartOk.decode(payload, 4, size, TableCodec(QPID_TAGS))
        elif key == m.ConnectionTuneOk.key:
            assert start_ok is not None
            return start_ok, data[at:]


@pytest.mark.parametrize(
    "name", [name for name in CLASSIC if not any(word in name for word in ("refused", "wrong", "unknown"))]
)
@pytest.mark.parametrize("chunk", [None, 7])
def test_a_server_understands_these_clients(name: str, chunk: int | None) -> None:
    transcript = golden.load(name)
    start_ok, data = behind_tune_ok(transcript.from_client)
    client = ScriptedClient(
        version_named(transcript.version),
        start_ok.client_properties,
        replace(SERVER, open_virtual_host=lambda user, virtual_host: True),
    )
    client.greet()
    client.say(m.ConnectionTuneOk(0, 0, 0), channel=0)
    events = []
    step = chunk or len(data)
    for at in range(0, len(data), step):
        for event in client.receive(data[at : at + step]):
            events.append(event)
            said = answer(event) if isinstance(event, Request) else None
            if said is not None and not client.session.closed:
                client.send(said)
    assert isinstance(events[0], Opened)
    assert len(events) > 2
    assert all(event.reason is CloseReason.PEER for event in events if isinstance(event, Closed))
    assert not any(isinstance(event, ChannelClosed) for event in events)
    for event in events:
        if isinstance(event, Publish):
            assert event.message.properties


@given(st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("role", ["client", "server"])
def test_damaged_octets_end_the_connection_and_nothing_else(role: str, data: st.DataObject) -> None:
    transcript = golden.load(data.draw(st.sampled_from([name for name in CLASSIC if "jms" in name])))
    version = version_named(transcript.version)
    if role == "server":
        octets = bytearray(behind_tune_ok(transcript.from_client)[1])
        script: Any = ScriptedClient(version, {"product": "qpid"})
        script.greet()
        script.say(m.ConnectionTuneOk(0, 0, 0), channel=0)
    else:
        octets = bytearray(transcript.from_server)
        script = ScriptedServer(version, config=replace(CLIENT, mechanisms=("PLAIN",)))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    for event in script.receive(bytes(octets)):
        said = answer(event) if role == "server" and isinstance(event, Request) else None
        if said is not None:
            with suppress(StateError):
                script.send(said)
        if isinstance(event, Publish):
            with suppress(FrameSyntaxError):
                assert event.message.properties is not None
    script.session.receive_eof(script.now)
    assert script.session.closed


@given(st.binary(max_size=300))
def test_any_octets_end_the_connection_and_nothing_else(octets: bytes) -> None:
    for version in (V0_8, V0_9_1):
        for script in (ScriptedServer(version).open(), ScriptedClient(version).open()):
            script.receive(octets)
            script.session.receive_eof(script.now)
            assert script.session.closed

"""What brokers make of the classes of 0-8 that they do not serve, and of a method that they do not have.

RabbitMQ has no file, stream, dtx, tunnel or test either, but it reads their methods and their content before it says
so: an independent reader of what we write.
"""

from __future__ import annotations

import os
import socket
import time

import pytest

from gateway.amqp import operations as o
from gateway.classic.frames import FRAME_END, FRAME_HEADER, HEADER, method_frame
from gateway.classic.methods import Method
from gateway.errors import MethodNotImplemented
from gateway.link import connection_error
from gateway.session import ClientConfig, Session, Version
from gateway.v08.unserved import UNSERVED
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from gateway.versions import client_session
from tests.classic.values import TABLES, sample
from tests.servers import BrokerJ, RabbitMQ310
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

PATIENCE = 20.0
"""How long a broker may take to answer, in seconds."""
METHODS = {method.title: method for method in UNSERVED.methods}
FILE_QOS, STREAM_PUBLISH = METHODS["file.qos"], METHODS["stream.publish"]
TABLE = b"\x00\x00\x00\x08\x01aS\x00\x00\x00\x01b"
PROPERTIES = {
    70: b"\xff\x80\x0atext/plain\x04gzip" + TABLE + b"\x09\x07answers\x03m-1\x0areport.txt"
    b"\x00\x00\x00\x00\x40\x00\x00\x00\x04none",
    80: b"\xf8\x00\x09audio/ogg\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05",
    110: b"\xf8\x00" + TABLE + b"\x05proxy\x050-9-1\x01\x02",
}
"""All that each class has, by its number."""


class Conversation:
    """A client session of ours with one open channel on a socket."""

    def __init__(self, version: Version, port: int, virtual_host: str, dialect: str | None = None) -> None:
        config = ClientConfig(
            virtual_host=virtual_host, secure=True, dialect=dialect, random_octets=os.urandom, wall_clock=time.time
        )
        self.session: Session = client_session(version, config)
        self.stream = socket.create_connection((HOST, port), PATIENCE)
        self.until(o.Opened)
        self.session.send(o.OpenChannel(1), time.monotonic())
        self.until(o.Done)

    def until(self, kind: type[o.Operation]) -> list[o.Operation]:
        """What the session says until it says something of a kind."""
        said: list[o.Operation] = []
        while not any(isinstance(operation, kind) for operation in said):
            self.stream.sendall(b"".join(self.session.data_to_send()))
            octets = self.stream.recv(65_536)
            now = time.monotonic()
            said += self.session.receive_data(octets, now) if octets else self.session.receive_eof(now)
        if self.session.closed:
            self.stream.close()
        return said

    def answer(self, octets: bytes) -> o.Closed:
        """How the connection ends over these octets."""
        self.stream.sendall(octets)
        (closed,) = self.until(o.Closed)
        assert isinstance(closed, o.Closed)
        return closed


def octets_of(method: Method) -> bytes:
    """A method, with an empty body where content follows."""
    frame = method_frame(1, method.encode(TABLES))
    if not method.content:
        return frame
    header = method.class_id.to_bytes(2, "big") + bytes(10) + PROPERTIES.get(method.class_id, bytes(2))
    return frame + FRAME_HEADER.pack(HEADER, 1, len(header)) + header + bytes((FRAME_END,))


@pytest.mark.parametrize("method", UNSERVED.methods, ids=lambda method: method.title)
def test_rabbitmq_reads_every_method_before_it_refuses(rabbitmq310: RabbitMQ310, method: type[Method]) -> None:
    closed = Conversation(V0_8, rabbitmq310.port, "/").answer(octets_of(sample(method)))
    assert (closed.reason, closed.code) == (o.CloseReason.PEER, 503)
    assert closed.text == "COMMAND_INVALID - unimplemented method"


def test_rabbitmq_says_otherwise_of_octets_that_are_wrong(rabbitmq310: RabbitMQ310) -> None:
    broken = FILE_QOS(1, 2, True).encode(TABLES)[:-3]
    closed = Conversation(V0_8, rabbitmq310.port, "/").answer(method_frame(1, broken))
    assert "unimplemented method" not in closed.text
    closed = Conversation(V0_8, rabbitmq310.port, "/").answer(
        octets_of(sample(STREAM_PUBLISH)).replace(b"\x00\x50" + bytes(10), b"\x00\x3c" + bytes(10))
    )
    assert (closed.code, closed.text) == (
        505,
        "UNEXPECTED_FRAME - expected content header for class 80, got one for class 60 instead",
    )


@pytest.mark.parametrize("method", [FILE_QOS, STREAM_PUBLISH], ids=lambda method: method.title)
def test_brokerj_hangs_up(brokerj: BrokerJ, method: type[Method]) -> None:
    closed = Conversation(V0_8, brokerj.port, "memory").answer(octets_of(sample(method)))
    assert closed.reason is o.CloseReason.EOF


@pytest.mark.parametrize("version", [V0_8, V0_9_1], ids=lambda version: version.value)
def test_a_540_names_the_method_that_rabbitmq_has_not(rabbitmq310: RabbitMQ310, version: Version) -> None:
    # In its own dialect the session would not have asked for a prefetch in octets.
    client = Conversation(version, rabbitmq310.port, "/", dialect="qpid")
    serial = client.session.send(o.Qos(1, prefetch_size=10), time.monotonic())
    failed, closed = client.until(o.Closed)
    assert isinstance(failed, o.Failed)
    assert (failed.first, failed.code) == (serial, 540)
    assert isinstance(closed, o.Closed)
    for text in (failed.text, closed.text):
        assert text.startswith("basic.qos: NOT_IMPLEMENTED - prefetch_size")
    assert type(connection_error(closed)) is MethodNotImplemented

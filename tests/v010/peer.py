"""A scripted far end: what a session of 0-10 sends, decoded, and what it is sent, encoded.

::

    peer = ClientPeer().opened()                # the session under test is a client; we play the broker
    peer.attach(1)
    peer.session.send(QueryQueue(1, "q"), NOW)
    assert peer.sent() == [(0, QueueQuery("q"), True)]
    peer.receive(0, ExecutionResult(0, …))      # -> the operations that the session returns
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.amqp.operations import Done, OpenChannel, Opened, Operation
from gateway.limits import Limits
from gateway.session import ClientConfig, ServerConfig
from gateway.v010 import controls as k
from gateway.v010.assembler import Assembler, Content
from gateway.v010.commands import Command, MessageTransfer, decode_command
from gateway.v010.controls import Control, decode_control
from gateway.v010.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_SEGMENT,
    HEADER,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    read_frame,
    write_segment,
)
from gateway.v010.session import ClientSession, ServerSession
from tests.pair import CLIENT, SERVER

NOW = 1_000.0
FRAME_MAX = 65_535


def encode(channel: int, what: Control | Command | tuple[Any, ...], sync: bool = False) -> bytes:
    """Frames. A message is ``(MessageTransfer, header octets, body)``."""
    if isinstance(what, Control):
        return b"".join(write_segment(what.encode(), CONTROL, CONTROL, channel, FRAME_MAX))
    if isinstance(what, Command):
        return b"".join(write_segment(what.encode(sync), COMMAND, COMMAND, channel, FRAME_MAX))
    command, header, body = what
    return b"".join(
        [
            *write_segment(command.encode(sync), COMMAND, COMMAND, channel, FRAME_MAX, FIRST_SEGMENT),
            *write_segment(header, HEADER, COMMAND, channel, FRAME_MAX, 0),
            *write_segment(body, BODY, COMMAND, channel, FRAME_MAX, LAST_SEGMENT),
        ]
    )


class Peer:
    """What both roles need."""

    session: Any

    def __init__(self) -> None:
        self._assembler = Assembler(Limits())
        self._greeted = False

    def sent(self) -> list[Any]:
        """What the session has sent since last time: (channel, control), (channel, command, sync) or (channel,
        transfer, sync, header, body); the protocol header as octets."""
        data = b"".join(self.session.data_to_send())
        found: list[Any] = []
        at = 0
        if data.startswith(b"AMQP"):
            found.append(data[:8])
            at = 8
        while (frame := read_frame(data, at, FRAME_MAX)) is not None:
            (flags, kind, track, channel, payload), at = frame
            whole = self._assembler.feed(flags, kind, track, channel, payload)
            if isinstance(whole, Content):
                command, sync = decode_command(whole.command)
                assert isinstance(command, MessageTransfer)
                found.append((channel, command, sync, whole.header, whole.body))
            elif whole is not None and track == CONTROL:
                found.append((channel, decode_control(whole)))
            elif whole is not None:
                found.append((channel, *decode_command(whole)))
        assert at == len(data)
        return found

    def receive(self, channel: int, *what: Any, sync: bool = False) -> list[Operation]:
        """Send all of it to the session at once; what it makes of it."""
        return self.octets(b"".join(encode(channel, one, sync) for one in what))

    def octets(self, data: bytes) -> list[Operation]:
        events: list[Operation] = self.session.receive_data(data, NOW)
        return events


class ClientPeer(Peer):
    """A client session, and the broker played by the test."""

    def __init__(self, config: ClientConfig = CLIENT, limits: Limits | None = None) -> None:
        super().__init__()
        self.session = ClientSession(config if limits is None else replace(config, limits=limits))

    def started(self, properties: Any = None, mechanisms: tuple[str, ...] = ("PLAIN",)) -> ClientPeer:
        """As far as start-ok."""
        assert self.sent() == [PROTOCOL_HEADER]
        assert self.octets(PROTOCOL_HEADER) == []
        assert self.receive(0, k.ConnectionStart(properties, mechanisms, ("en_US",))) == []
        return self

    def opened(self, properties: Any = None, tune: k.ConnectionTune | None = None) -> ClientPeer:
        """As far as an open connection."""
        self.started(properties)
        self.receive(0, tune or k.ConnectionTune(256, 65535, 0, 120))
        events = self.receive(0, k.ConnectionOpenOk())
        assert [type(event) for event in events] == [Opened]
        self.sent()
        return self

    def attach(self, channel: int = 1) -> ClientPeer:
        """Open a channel."""
        self.session.send(OpenChannel(channel), NOW)
        (_, attach), *_ = self.sent()
        events = self.receive(channel - 1, k.SessionAttached(attach.name), k.SessionCommandPoint(0, 0))
        assert len(events) == 1
        return self


class ServerPeer(Peer):
    """A server session, and the client played by the test."""

    def __init__(self, config: ServerConfig = SERVER, limits: Limits | None = None) -> None:
        super().__init__()
        self.session = ServerSession(config if limits is None else replace(config, limits=limits))

    def tuned(self) -> ServerPeer:
        """As far as tune."""
        assert self.octets(PROTOCOL_HEADER) == []
        assert self.receive(0, k.ConnectionStartOk(None, "PLAIN", b"\x00guest\x00guest", "en_US")) == []
        return self

    def opened(self, tune_ok: k.ConnectionTuneOk | None = None) -> ServerPeer:
        """As far as an open connection."""
        self.tuned()
        events = self.receive(0, tune_ok or k.ConnectionTuneOk(10, 65535, 0), k.ConnectionOpen("/"))
        assert events == [Opened(0, "guest", "/")]
        self.sent()
        return self

    def attach(self, channel: int = 0, name: bytes = b"s") -> ServerPeer:
        """Attach a session on a wire channel, as the broker wants it."""
        (event,) = self.receive(channel, k.SessionAttach(name))
        assert event == OpenChannel(channel + 1, serial=1)
        self.session.send(Done(channel + 1, 1, 1), NOW)
        assert self.sent() == [(channel, k.SessionAttached(name)), (channel, k.SessionCommandPoint(0, 0))]
        self.receive(channel, k.SessionCommandPoint(0, 0))
        return self

"""A session attached to a channel: what both roles do alike.

Controls of the session class are the table :data:`CONTROLS`. Commands are counted here and handed to the table of
the role; one that the role does not know ends the session with ``execution.exception``. Completions are told by
:meth:`Attached.flush`, at the end of a burst, so that many commands cost one control.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from gateway.v010.commands import EXPLICIT, Command, ExecutionException, MessageTransfer, decode_command
from gateway.v010.connection import Attachment, Connection
from gateway.v010.controls import (
    Control,
    SessionAttach,
    SessionAttached,
    SessionCommandPoint,
    SessionCompleted,
    SessionConfirmed,
    SessionDetach,
    SessionDetached,
    SessionExpected,
    SessionFlush,
    SessionGap,
    SessionKnownCompleted,
    SessionRequestTimeout,
    SessionTimeout,
)
from gateway.v010.execution import Received, unwrap_ranges
from gateway.v010.fields import Ranges
from gateway.v010.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEADER,
    HEADER_SIZE,
    LAST_FRAME,
    LAST_SEGMENT,
    pack_head,
    write_segment,
)

COMMAND_INVALID: Final = 503
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540

CACHED_MAX: Final = 256
"""How many encoded message.transfer commands a session keeps, and how many decoded ones a connection."""
JOIN_MAX: Final = 16_384
"""Bodies up to this size are joined with their frame headers into one buffer."""
_ONE: Final = FIRST_FRAME | LAST_FRAME
_LAST: Final = LAST_SEGMENT | FIRST_FRAME | LAST_FRAME

KNOWN_CLASSES: Final = frozenset(range(0x03, 0x0C))
"""execution to stream: a command of these classes that is not in the table is not implemented; one of any other
class is invalid."""


class Transfer(NamedTuple):
    """A message.transfer command, decoded. The same octets come with every message of a subscription."""

    destination: str
    explicit: bool
    sync: bool


class Attached(Attachment):
    """See the module."""

    __slots__ = ("_transfers", "failed", "name", "number", "out", "received", "sent", "session", "wire")

    commands: ClassVar[Mapping[type[Command], Callable[[Any, int, Any], None]]]
    """What the role does with a command: (channel, command id, command)."""

    def __init__(self, session: Connection[Any], wire: int, name: bytes) -> None:
        self.session = session
        self.wire = wire
        self.number = wire + 1
        """The channel in :mod:`gateway.operations`."""
        self.name = name
        self.out = session.out
        self.received = Received()
        self._transfers: dict[bytes, Transfer] = session.transfers
        self.sent = 0
        """The id of the command that is sent next."""
        self.failed = False
        """An exception came or went; what still comes is passed over, until detached."""

    # --------------------------------------------------------------------------------------------- sending

    def write(self, command: Command, sync: bool = False) -> int:
        """Queue a command without content and return its id."""
        self.out += write_segment(command.encode(sync), COMMAND, COMMAND, self.wire, self.session.frame_max)
        number = self.sent
        self.sent = number + 1
        return number

    def transfer(self, prefix: bytes, header: bytes, body: bytes) -> int:
        """Queue a message.transfer, whose first frame is ``prefix``, with its content; return its id."""
        out = self.out
        wire = self.wire
        frame_max = self.session.frame_max
        room = frame_max - HEADER_SIZE
        header_size = len(header)
        size = len(body)
        if header_size > room or size > room:
            out.append(prefix)
            out += write_segment(header, HEADER, COMMAND, wire, frame_max, 0 if body else LAST_SEGMENT)
            if body:
                out += write_segment(body, BODY, COMMAND, wire, frame_max, LAST_SEGMENT)
        elif not size:
            head = pack_head(_LAST, HEADER, header_size + HEADER_SIZE, 0, COMMAND, wire, 0)
            out.append(b"%b%b%b" % (prefix, head, header))
        else:
            head = pack_head(_ONE, HEADER, header_size + HEADER_SIZE, 0, COMMAND, wire, 0)
            foot = pack_head(_LAST, BODY, size + HEADER_SIZE, 0, COMMAND, wire, 0)
            if size <= JOIN_MAX:
                out.append(b"%b%b%b%b%b" % (prefix, head, header, foot, body))
            else:
                out.append(b"%b%b%b%b" % (prefix, head, header, foot))
                out.append(body)
        number = self.sent
        self.sent = number + 1
        return number

    def transfer_prefix(self, destination: str, accept_mode: int, acquire_mode: int) -> bytes:
        """The frame of a message.transfer command, without the sync bit."""
        segment = MessageTransfer(destination, accept_mode, acquire_mode).encode()
        return write_segment(segment, COMMAND, COMMAND, self.wire, self.session.frame_max, FIRST_SEGMENT)[0]

    def tell(self, control: Control) -> None:
        """Queue a control on this channel."""
        self.session.send_control(self.wire, control)

    def flush(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        if self.failed:
            return
        for ranges in self.received.take_due():
            self.tell(SessionCompleted(_cut(ranges)))

    def refuse(self, number: int | None, code: int, text: str, command: int = 0) -> None:
        """Send execution.exception for a command and end the session, behind what is complete."""
        self.received.due = True
        Attached.flush(self)
        self.write(
            ExecutionException(
                code,
                None if number is None else number & 0xFFFFFFFF,
                command >> 8 if command else None,
                command & 0xFF if command else None,
                description=text.encode("utf-8", "replace")[:0xFFFF].decode("utf-8", "ignore"),
            )
        )
        self.tell(SessionDetach(self.name))
        self.failed = True

    # ------------------------------------------------------------------------------------------- receiving

    def command(self, segment: bytes) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        command, sync = decode_command(segment, self.session.limits)
        received = self.received
        number = received.next
        received.next = number + 1
        self.session.touched[self.wire] = self
        if self.failed:
            return
        if sync:
            received.want(number)
        if command is None:
            known = segment[0] in KNOWN_CLASSES
            text = f"class {segment[0]} command {segment[1]} {'is not implemented' if known else 'does not exist'}"
            code = segment[0] << 8 | segment[1]
            self.broken(number, NOT_IMPLEMENTED if known else COMMAND_INVALID, text, code)
            return
        handler = self.commands.get(type(command))
        if handler is None:
            self.broken(number, NOT_ALLOWED, f"{command.spelled} is not for this end", command.code)
        else:
            handler(self, number, command)

    def content(self, command: bytes, header: bytes, body: bytes | None, size: int, limit: int) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        received = self.received
        number = received.next
        received.next = number + 1
        self.session.touched[self.wire] = self
        if self.failed:
            return
        transfer = self._transfers.get(command)
        if transfer is None:
            transfer = self._read_transfer(command)
        if transfer.sync:
            received.want(number)
        if body is None:
            self.oversized(number, transfer, header, size, limit)
        else:
            self.transferred(number, transfer, header, body)

    def _read_transfer(self, segment: bytes) -> Transfer:
        command, sync = decode_command(segment)
        assert isinstance(command, MessageTransfer), "the assembler gives content to nothing else"
        if len(self._transfers) >= CACHED_MAX:
            self._transfers.clear()
        transfer = Transfer(command.destination, command.accept_mode == EXPLICIT, sync)
        self._transfers[segment] = transfer
        return transfer

    @abstractmethod
    def transferred(self, number: int, transfer: Transfer, header: bytes, body: bytes) -> None:
        """A message came."""

    @abstractmethod
    def oversized(self, number: int, transfer: Transfer, header: bytes, size: int, limit: int) -> None:
        """A message came whose body of ``size`` octets was over ``limit`` and is gone."""

    def bare_transfer(self, number: int, command: MessageTransfer) -> None:
        """A message.transfer without header and body: an empty message."""
        self.transferred(number, Transfer(command.destination, command.accept_mode == EXPLICIT, False), b"", b"")

    def control(self, control: Control) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        CONTROLS[type(control)](self, control)

    def broken(self, number: int, code: int, text: str, command: int) -> None:
        """The peer sent a command that cannot be: the session ends."""
        self.refuse(number, code, text, command)

    def received_all(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        if self.received.due:
            self.session.dirty[self.wire] = self

    @abstractmethod
    def completed(self, ranges: list[tuple[int, int]]) -> None:
        """The peer has carried these commands out."""

    @abstractmethod
    def detached(self, code: int, asked: bool) -> None:
        """The session is over: the peer detached it (``asked``: it wants to be answered, and was)."""

    def _attached(self, control: SessionAttached) -> None:
        """The answer to an attach, for those who asked."""

    def _detach(self, control: SessionDetach) -> None:
        self.tell(SessionDetached(control.name, 0))
        self.detached(0, True)

    def _detached(self, control: SessionDetached) -> None:
        self.detached(control.detach_code, False)

    def _request_timeout(self, control: SessionRequestTimeout) -> None:
        self.tell(SessionTimeout(0))

    def _command_point(self, control: SessionCommandPoint) -> None:
        self.received.point(control.command_id)

    def _completed(self, control: SessionCompleted) -> None:
        if control.commands:
            self.session.touched[self.wire] = self
            self.completed(unwrap_ranges(control.commands, self.sent))
        if control.commands or control.timely_reply:
            self.tell(SessionKnownCompleted(control.commands))

    def _known_completed(self, control: SessionKnownCompleted) -> None:
        self.received.known(unwrap_ranges(control.commands, self.received.next))

    def _gap(self, control: SessionGap) -> None:
        self.received.gap(unwrap_ranges(control.commands, self.received.next))
        self.session.touched[self.wire] = self

    def _flush(self, control: SessionFlush) -> None:
        received = self.received
        if control.expected:
            point = received.next & 0xFFFFFFFF
            self.tell(SessionExpected(((point, point),)))
        if control.completed or control.confirmed:
            received.due = True
            self.session.touched[self.wire] = self

    def _pass(self, control: Control) -> None:
        """Nothing to do: we neither replay commands nor let sessions outlive their channel."""


def _cut(ranges: Ranges) -> Ranges:
    return tuple((first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in ranges)


def _busy(channel: Attached, control: SessionAttach) -> None:
    """session.attach where a session is attached already: transport-busy."""
    channel.tell(SessionDetached(control.name, 2))


CONTROLS: Final[Mapping[type[Control], Callable[[Any, Any], None]]] = {
    SessionAttach: _busy,
    SessionAttached: lambda channel, control: channel._attached(control),
    SessionDetach: lambda channel, control: channel._detach(control),
    SessionDetached: Attached._detached,
    SessionRequestTimeout: Attached._request_timeout,
    SessionTimeout: Attached._pass,
    SessionCommandPoint: Attached._command_point,
    SessionExpected: Attached._pass,
    SessionConfirmed: Attached._pass,
    SessionCompleted: Attached._completed,
    SessionKnownCompleted: Attached._known_completed,
    SessionFlush: Attached._flush,
    SessionGap: Attached._gap,
}
"""What to do with each control of the session class on a channel that has a session."""

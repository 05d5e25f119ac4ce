"""A session attached to a channel: what both roles do alike.

Controls of the session class are the table :data:`CONTROLS`. Commands are counted here and handed to the table of
the role; one that the role does not know ends the session with ``execution.exception``. :meth:`Attached.flush` sends
completions, at the end of a burst, so that many commands cost one control.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from gateway.amqp.operations import Detached
from gateway.errors import FrameSyntaxError
from gateway.v010.codes import reply
from gateway.v010.commands import COMMANDS, EXPLICIT, Command, ExecutionException, MessageTransfer, decode_command
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
from gateway.v010.execution import Received, unwrap, unwrap_ranges
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
from gateway.v010.replay import Replay, Sent

COMMAND_INVALID: Final = 503
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540

CACHED_MAX: Final = 256
"""How many encoded message.transfer commands a session keeps, and how many decoded ones a connection."""
JOIN_MAX: Final = 16_384
"""Bodies up to this size are joined with their frame headers into one buffer."""
_ONE: Final = FIRST_FRAME | LAST_FRAME
_LAST: Final = LAST_SEGMENT | FIRST_FRAME | LAST_FRAME

KNOWN_CLASSES: Final = frozenset(code >> 8 for code in COMMANDS)
"""execution to stream: an unknown command of these classes is not implemented; one of any other class is invalid."""


class Transfer(NamedTuple):
    """A message.transfer command, decoded. The same octets come with every message of a subscription."""

    destination: str
    explicit: bool
    sync: bool


class Attached(Attachment):
    """See the module."""

    __slots__ = (
        "_transfers", "asking", "failed", "held", "keep", "name", "number", "out", "received", "resumed", "sent",
        "session", "timeout", "wire",
    )  # fmt: skip

    command_handlers: ClassVar[Mapping[type[Command], Callable[[Any, int, Any], None]]]
    """What the role does with a command: (channel, command id, command)."""

    def __init__(self, session: Connection[Any], wire: int, name: bytes) -> None:
        self.session = session
        self.wire = wire
        self.number = wire + 1
        """The channel in :mod:`gateway.amqp.operations`."""
        self.name = name
        self.out = session.out
        self.received = Received()
        self._transfers: dict[bytes, Transfer] = session.transfers
        self.sent = 0
        """The id of the command that is sent next."""
        self.failed = False
        """An exception came or went; what still comes is passed over, until detached."""
        self.timeout = 0
        """For how many seconds the session outlives its connection."""
        self.keep: Replay | None = None
        """What may have to be sent again; None: the session ends with its connection."""
        self.asking = False
        """The peer is to say what is complete, since much is held."""
        self.held = False
        """What is sent is only kept, until the peer has said what it expects; completions wait likewise."""
        self.resumed = False
        """It was detached before."""

    # --------------------------------------------------------------------------------------------- sending

    def write(self, command: Command, sync: bool = False) -> int:
        """Queue a command without content and return its id."""
        segment = command.encode(sync)
        number = self.sent
        if self.keep is not None:
            self._keep(number, Sent(segment))
        if not self.held:
            self.out += write_segment(segment, COMMAND, COMMAND, self.wire, self.session.frame_max)
        self.sent = number + 1
        return number

    def transfer(self, prefix: bytes, header: bytes, body: bytes) -> int:
        """Queue a message.transfer, whose first frame is ``prefix``, with its content; return its id."""
        if self.keep is not None:
            self._keep(self.sent, Sent(prefix[HEADER_SIZE:], header, body))
            if self.held:
                self.sent += 1
                return self.sent - 1
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

    def _keep(self, number: int, sent: Sent) -> None:
        """Note what is sent; where it is more than may be, the session ends with its connection like any other."""
        keep = self.keep
        assert keep is not None
        asked = keep.half_full
        keep.add(number, sent)
        if keep.over:
            self.keep = None
        elif keep.half_full and not asked:
            self.asking = True
            self.session.dirty[self.wire] = self

    def move(self, session: Connection[Any], wire: int) -> None:
        """The session is attached to another channel, or about to be. What is sent is kept back for now."""
        self.session.forget(self)
        self.session = session
        self.wire = wire
        self.number = wire + 1
        self.out = session.out
        self._transfers = session.transfers
        self.held = self.resumed = True

    def part(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        if self.keep is not None and self.timeout and not self.failed:
            self.held = True
            self.session.events.append(Detached(self.number, self.timeout, self))

    def tell(self, control: Control) -> None:
        """Queue a control on this channel."""
        self.session.send_control(self.wire, control)

    def flush(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        if self.failed or self.held:
            return
        if self.asking:
            self.asking = False
            self.tell(SessionFlush(completed=True))
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
        if self.held:
            raise FrameSyntaxError("a command on a session that is attached again, before session.expected")
        if sync:
            received.want(number)
        if command is None:
            known = segment[0] in KNOWN_CLASSES
            text = f"class {segment[0]} command {segment[1]} {'is not implemented' if known else 'does not exist'}"
            code = segment[0] << 8 | segment[1]
            self.broken(number, NOT_IMPLEMENTED if known else COMMAND_INVALID, text, code)
            return
        handler = self.command_handlers.get(type(command))
        if handler is None:
            self._unserved(number, command)
        else:
            handler(self, number, command)

    def _unserved(self, number: int, command: Command) -> None:
        """A command that this end does not serve, or that is for the other end."""
        if self.session.role in command.to:
            self.broken(number, NOT_IMPLEMENTED, f"{command.spelled} is not implemented", command.code)
        else:
            self.broken(number, NOT_ALLOWED, f"{command.spelled} is not for this end", command.code)

    def content(self, command: bytes, header: bytes, body: bytes | None, size: int, limit: int) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        received = self.received
        number = received.next
        received.next = number + 1
        self.session.touched[self.wire] = self
        if self.failed:
            return
        if self.held:
            raise FrameSyntaxError("a message on a session that is attached again, before session.expected")
        transfer = self._transfers.get(command)
        if transfer is None:
            transfer = self._read_transfer(command, number)
            if transfer is None:
                return
        if transfer.sync:
            received.want(number)
        if body is None:
            self.oversized(number, transfer, header, size, limit)
        else:
            self.transferred(number, transfer, header, body)

    def _read_transfer(self, segment: bytes, number: int = 0) -> Transfer | None:
        """None: content of an unknown class."""
        command, sync = decode_command(segment)
        assert command is not None, "the assembler gives content to nothing else"
        if not isinstance(command, MessageTransfer):
            self._unserved(number, command)
            return None
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
        self.detached(control.code_, False)

    def _request_timeout(self, control: SessionRequestTimeout) -> None:
        """The peer says how long the session is to outlive its connection: as long as we have asked for, if we have."""
        self.tell(SessionTimeout(self.timeout))

    def _command_point(self, control: SessionCommandPoint) -> None:
        if self.held and unwrap(control.command_id, self.received.next) != self.received.next:
            self.unknown()  # a peer that knew the session would have asked what we expect
        else:
            self.received.point(control.command_id)

    def _expected(self, control: SessionExpected) -> None:
        """What the peer has not received. Before that nothing is sent on a session that is attached again."""
        if not self.held or self.failed:
            return
        if not control.commands:
            self.unknown()
            return
        assert self.keep is not None, "held is nothing else"
        frame_max = self.session.frame_max
        for point, commands in self.keep.runs(sorted(unwrap_ranges(control.commands, self.sent)), self.sent):
            self.tell(SessionCommandPoint(point & 0xFFFFFFFF, 0))
            for sent in commands:
                self.out += sent.frames(self.wire, frame_max)
        self.held = False
        self.received.due = self.asking = True
        self.session.dirty[self.wire] = self
        self.back()

    @abstractmethod
    def unknown(self) -> None:
        """The peer does not know the session that was to be attached again."""

    def back(self) -> None:
        """It is attached again, and what was missing was sent."""

    def _completed(self, control: SessionCompleted) -> None:
        if control.commands:
            self.session.touched[self.wire] = self
            ranges = unwrap_ranges(control.commands, self.sent)
            if self.keep is not None:
                self.keep.forget(ranges, self.sent - 1)
            self.completed(ranges)
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
            # No range at all means that this end knows nothing of the session (6.9.8).
            point = received.next & 0xFFFFFFFF
            self.tell(SessionExpected(((point, point),) if received.next or self.resumed else ()))
        if control.completed or control.confirmed:
            received.due = True
            self.session.touched[self.wire] = self

    def _timeout(self, control: SessionTimeout) -> None:
        """The answer to a session.request-timeout, for those who asked."""

    def _pass(self, control: Control) -> None:
        """session.confirmed: what is not complete is held all the same, until it is."""


def failure(exception: ExecutionException, sent: int) -> tuple[int, str]:
    """Reply code and text of an execution.exception. One that says not-implemented names the command that the peer
    does not have: the one it names, or else ``sent``, the code of the command that it answers (0: unknown)."""
    code, text = reply(exception.error_code, exception.description)
    if exception.error_code != NOT_IMPLEMENTED:
        return code, text
    if exception.class_code is not None and exception.command_code is not None:
        sent = exception.class_code << 8 | exception.command_code
    kind = COMMANDS.get(sent)
    return code, text if kind is None or kind.spelled in text else f"{kind.spelled}: {text}"


def _cut(ranges: Ranges) -> Ranges:
    return tuple((first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in ranges)


def _again(channel: Attached, control: SessionAttach) -> None:
    """session.attach where a session is attached already: the same one is, another finds the transport busy."""
    if control.name == channel.name:
        channel.tell(SessionAttached(control.name))
    else:
        channel.tell(SessionDetached(control.name, 2))


CONTROLS: Final[Mapping[type[Control], Callable[[Any, Any], None]]] = {
    SessionAttach: _again,
    SessionAttached: lambda channel, control: channel._attached(control),
    SessionDetach: lambda channel, control: channel._detach(control),
    SessionDetached: Attached._detached,
    SessionRequestTimeout: lambda channel, control: channel._request_timeout(control),
    SessionTimeout: lambda channel, control: channel._timeout(control),
    SessionCommandPoint: Attached._command_point,
    SessionExpected: Attached._expected,
    SessionConfirmed: Attached._pass,
    SessionCompleted: Attached._completed,
    SessionKnownCompleted: Attached._known_completed,
    SessionFlush: Attached._flush,
    SessionGap: Attached._gap,
}
"""What to do with each control of the session class on a channel that has a session."""

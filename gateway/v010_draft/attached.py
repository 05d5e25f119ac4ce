"""A session, as both ends have it: what comes in which frame, and how much of it is carried out.

Commands come in frames of type method, uncounted on the wire, or request, which name the id that they have anyway. The
methods of ``message`` that answer one command come in response frames: the id of a response, that of the first command
that it answers, and how many more it answers. The definition keeps 0-9's frame types and has no other way to say which
transfer is rejected.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.classic.frames import METHOD, OVERHEAD, method_frame
from gateway.classic.methods import Method
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v010_draft import methods
from gateway.v010_draft.execution import Executed
from gateway.v010_draft.fields import ReferenceTo
from gateway.v010_draft.references import References, SessionFault
from gateway.v010_draft.translate import Transfer, by_reference, inline, read_transfer, write_transfer
from gateway.v010_draft.unserved import UNSERVED

if TYPE_CHECKING:
    from gateway.v010_draft.connection import Frames

REQUEST: Final = 9
RESPONSE: Final = 10
IDS: Final = struct.Struct(">QQI")
"""What a request begins with: its id, the last response seen, a reserved number. And a response: its id, that of the
first command it answers, how many more it answers."""
RESPONSE_KIND: Final = struct.Struct(">BHI")

COMMAND_INVALID: Final = 503
NOT_IMPLEMENTED: Final = 540
MESSAGE_ENVELOPE: Final = 64
"""Octets of an append that are not the piece, at most."""

METHODS: Final[Mapping[int, type[Method]]] = {
    method.key: method for group in (methods.SHARED, methods.OWN, UNSERVED.methods) for method in group
}
"""Every method of the draft, by key."""


class Attached:
    """See the module."""

    __slots__ = (
        "_answered", "_heard", "_names", "_seen", "executed", "number", "out", "references", "sent", "session",
    )  # fmt: skip

    command_handlers: ClassVar[Mapping[int, Callable[[Any, int, Any], None]]]
    """What this end does with a command: (channel, id, method)."""
    control_handlers: ClassVar[Mapping[int, Callable[[Any, Any], None]]]
    """What it does with the methods that are no commands: (channel, method)."""
    responses: ClassVar[Mapping[int, Callable[[Any, int, int, Any], None]]]
    """What it does with responses: (channel, first id, last id, method)."""

    def __init__(self, session: Frames, number: int) -> None:
        self.session = session
        self.number = number
        self.out = session.out
        self.executed = Executed()
        self.references = References(session.limits, session.spool)
        self.sent = 0
        """The id of the command that is sent next."""
        self._answered = 0
        """How many responses were sent."""
        self._heard = 0
        """How many came."""
        self._seen = 0
        """How many frames came."""
        self._names = 0

    # --------------------------------------------------------------------------------------------- sending

    def control(self, method: Method) -> None:
        """Queue a method that is no command."""
        self.out.append(method_frame(self.number, method.encode(self.session.tables)))

    def command(self, method: Method) -> int:
        """Queue a command and return its id."""
        self.control(method)
        number = self.sent
        self.sent = number + 1
        return number

    def respond(self, method: Method, first: int, last: int) -> None:
        """Queue a response to the commands ``first`` to ``last``."""
        self._answered += 1
        payload = IDS.pack(self._answered, first, last - first) + method.encode(self.session.tables)
        head = RESPONSE_KIND.pack(RESPONSE, self.number, len(payload))
        self.out.append(b"%b%b\xce" % (head, payload))

    def transfer(
        self, destination: str, flags: int, exchange: str, routing_key: str, properties: bytes, body: bytes
    ) -> int:
        """Queue message.transfer and return its id: with its body, or behind the pieces of it where that is larger than
        a frame. Raises :class:`~gateway.errors.EncodeError` where the properties are."""
        head = write_transfer(destination, flags, exchange, routing_key, properties)
        room = self.session.frame_max - OVERHEAD
        if len(head) + MESSAGE_ENVELOPE > room:
            raise EncodeError(
                f"properties of {len(head)} octets are more than a frame of {room} holds",
                len(head) + MESSAGE_ENVELOPE + OVERHEAD,
            )
        if len(head) + 5 + len(body) <= room:
            return self._transfer(head + inline(body))
        self._names += 1
        name = b"%d" % self._names
        self.command(methods.MessageOpen(name))
        for at in range(0, len(body), room - MESSAGE_ENVELOPE):
            self.command(methods.MessageAppend(name, body[at : at + room - MESSAGE_ENVELOPE]))
        number = self._transfer(head + by_reference(name))
        self.command(methods.MessageClose(name))
        return number

    def _transfer(self, payload: bytes) -> int:
        self.out.append(method_frame(self.number, payload))
        number = self.sent
        self.sent = number + 1
        return number

    def flush(self) -> None:
        """Say what is due at the end of a burst."""
        for complete in self.executed.take_due():
            self.control(complete)

    # ------------------------------------------------------------------------------------------- receiving

    def frame(self, kind: int, ids: tuple[int, int, int], key: int, data: bytes, at: int, end: int) -> None:
        """A method came: its arguments are ``data[at:end]``. Raises :class:`~gateway.errors.FrameSyntaxError`."""
        self._seen += 1
        try:
            if kind == RESPONSE:
                self._response(ids, key, data, at, end)
            elif key in methods.RESPONSES:
                raise FrameSyntaxError(f"{METHODS[key].title} in a frame that is no response", COMMAND_INVALID)
            elif key >> 16 in methods.NO_COMMANDS:
                self._control(kind, key, data, at, end)
            else:
                self._command(kind, ids[0], key, data, at, end)
        except SessionFault as fault:
            self.fault(fault.code, str(fault))

    def _response(self, ids: tuple[int, int, int], key: int, data: bytes, at: int, end: int) -> None:
        handler = self.responses.get(key)
        if handler is None:
            raise self._misplaced(key, "in a response")
        self._heard += 1
        if ids[0] != self._heard:
            raise FrameSyntaxError(f"response {ids[0]} where {self._heard} comes next", COMMAND_INVALID)
        handler(self, ids[1], ids[1] + ids[2], METHODS[key].decode(data, at, end, self.session.tables))

    def _control(self, kind: int, key: int, data: bytes, at: int, end: int) -> None:
        handler = self.control_handlers.get(key)
        if handler is None or kind != METHOD:
            raise self._misplaced(key, f"on channel {self.number}")
        handler(self, METHODS[key].decode(data, at, end, self.session.tables))

    def _command(self, kind: int, claimed: int, key: int, data: bytes, at: int, end: int) -> None:
        executed = self.executed
        number = executed.next
        if kind == REQUEST and claimed != number:
            raise FrameSyntaxError(f"request {claimed} where {number} comes next", COMMAND_INVALID)
        executed.next = number + 1
        self.session.dirty[self.number] = self
        if key == methods.MessageTransfer.key:
            transfer = read_transfer(data, at, end)
            if isinstance(transfer.body, ReferenceTo):
                self.references.refer(number, transfer)
            else:
                self._arrived(number, transfer, transfer.body)
            return
        handler = self.command_handlers.get(key)
        if handler is None:
            raise self._misplaced(key, f"on channel {self.number}")
        handler(self, number, METHODS[key].decode(data, at, end, self.session.tables))

    def _misplaced(self, key: int, where: str) -> FrameSyntaxError:
        method = METHODS.get(key)
        if method is None:
            return FrameSyntaxError(f"there is no method {key >> 16}.{key & 0xFFFF}", NOT_IMPLEMENTED)
        if method in UNSERVED.methods:
            return FrameSyntaxError(f"{method.title} is not implemented", NOT_IMPLEMENTED)
        return FrameSyntaxError(f"{method.title} has no place {where}", COMMAND_INVALID)

    def _arrived(self, number: int, transfer: Transfer, body: bytes) -> None:
        limit = self.session.limits.message_max
        if len(body) > limit:
            self.oversized(number, transfer, len(body), limit)
        else:
            self.transferred(number, transfer, body)

    @abstractmethod
    def transferred(self, number: int, transfer: Transfer, body: bytes) -> None:
        """A message came."""

    @abstractmethod
    def oversized(self, number: int, transfer: Transfer, size: int, limit: int) -> None:
        """A message came whose body of ``size`` octets was over ``limit`` and is gone."""

    @abstractmethod
    def fault(self, code: int, text: str) -> None:
        """The peer did what ends a session."""

    def forget(self) -> None:
        """The session is over."""
        self.references.forget()

    def done(self, number: int) -> None:
        """A command is carried out."""
        self.executed.complete(number, number)

    # -------------------------------------------------------------------------------------- for both roles

    def _open(self, number: int, method: methods.MessageOpen) -> None:
        self.references.open(method.reference)
        self.done(number)

    def _append(self, number: int, method: methods.MessageAppend) -> None:
        self.references.append(method.reference, method.bytes)
        self.done(number)

    def _close(self, number: int, method: methods.MessageClose) -> None:
        arrived = self.references.close(method.reference)
        self.done(number)
        for named_by, transfer in arrived.transfers:
            if arrived.body is None:
                self.oversized(named_by, transfer, arrived.size, arrived.limit)
            else:
                self.transferred(named_by, transfer, arrived.body)

    def _checkpoint(self, number: int, method: methods.MessageCheckpoint) -> None:
        self.references.check(method.reference)
        self.done(number)

    def _resume(self, number: int, method: methods.MessageResume) -> None:
        self.references.open(method.reference)
        self.respond(methods.MessageOffset(0), number, number)
        self.done(number)

    def _flush(self, method: methods.ExecutionFlush) -> None:
        self.executed.flush()
        self.session.dirty[self.number] = self

    def _ping(self, method: methods.SessionPing) -> None:
        self.control(methods.SessionPong())

    def _solicited(self, method: Method) -> None:
        """session.solicit-ack or high-water-mark. Frames are counted from 0, like commands, from the one behind that
        which opened the session."""
        self.control(methods.SessionAck((self._seen - 1) & 0xFFFFFFFF, ()))

    def pass_over(self, method: Method) -> None:
        """Nothing to do."""


BODIES: Final[Mapping[int, Callable[[Any, int, Any], None]]] = {
    methods.MessageOpen.key: Attached._open,
    methods.MessageAppend.key: Attached._append,
    methods.MessageClose.key: Attached._close,
    methods.MessageCheckpoint.key: Attached._checkpoint,
    methods.MessageResume.key: Attached._resume,
}
"""What both ends do with the commands about references."""

CONTROLS: Final[Mapping[int, Callable[[Any, Any], None]]] = {
    methods.SessionFlowOk.key: Attached.pass_over,
    methods.SessionPing.key: Attached._ping,
    methods.SessionPong.key: Attached.pass_over,
    methods.SessionAck.key: Attached.pass_over,
    methods.SessionHighWaterMark.key: Attached._solicited,
    methods.SessionSolicitAck.key: Attached._solicited,
    methods.ExecutionFlush.key: Attached._flush,
}
"""And these, which are no methods."""

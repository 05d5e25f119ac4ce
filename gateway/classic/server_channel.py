"""A channel of a server: methods become requests, outcomes become methods.

Requests are numbered as they come. What answers a request is looked up by its serial when the outcome is sent, so the
broker may answer whenever it likes; ``nowait`` swallows the answer, but not a failure. In confirm mode the serials of
publishes are kept in order, so that an outcome for a range becomes as few acknowledgements as it can.

A channel that failed is closing: what comes on it is passed over until the client's close-ok, and then its number is
free again.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.amqp import operations
from gateway.amqp.message import Message, RawProperties
from gateway.classic import methods
from gateway.classic.connection import BaseChannel, Handler
from gateway.classic.dialect import Dialect
from gateway.classic.frames import (
    BASIC,
    CONNECTION_CODES,
    METHOD,
    OVERHEAD,
    content_frames,
    method_frame,
    reply_text,
)
from gateway.classic.server_requests import RECEIVE, Answer
from gateway.classic.splice import SEAM
from gateway.errors import EncodeError, FrameSyntaxError, StateError, Unsupported

if TYPE_CHECKING:
    from gateway.classic.server import ClassicServer

RECENT_MAX: Final = 256
"""How many requests without outcome are remembered, should one of them fail."""
TICKET: Final = 1
"""What access.request grants."""
PLACES_MAX: Final = 256
"""How many decoded basic.publish methods a session keeps, for all its channels, and how many places of deliveries."""
_DELIVER_START: Final = struct.Struct(">BHIHH").pack
"""Type, channel and size of a frame, class and method."""
_DELIVERY: Final = struct.Struct(">Q?").pack
_END: Final = b"\xce"


class UnansweredRequest(NamedTuple):
    """A request without its outcome."""

    method: methods.Method
    answer: Answer | None
    """None: ``nowait``."""


class ServerChannel(BaseChannel):
    """See the module."""

    __slots__ = (
        "_close_requested", "_confirming", "_delivery", "_places", "_publish", "_recent", "_targets", "_unconfirmed",
        "_waiting", "closing", "serial", "session",
    )  # fmt: skip

    session: ClassicServer

    def __init__(self, session: ClassicServer, number: int) -> None:
        super().__init__(session.limits, session.spool)
        self.session = session
        self.number = number
        self.attention = False
        self.serial = 0
        self.closing = False
        """channel.close was sent; only its answer counts."""
        self._close_requested = False
        self._waiting: dict[int, UnansweredRequest] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_MAX)
        self._confirming = False
        self._unconfirmed: dict[int, int] = {}
        """Serial -> number of publishes, in order."""
        self._publish = 0
        self._delivery = 0
        self._places = session.places
        self._targets = session.targets

    # ------------------------------------------------------------------------------------------- receiving

    def attend(self, key: int) -> bool:
        """See :class:`~gateway.classic.connection.BaseChannel`."""
        if not self.closing:
            if self.awaiting:
                raise FrameSyntaxError(f"a method where a content {self.awaiting} was due", 505)
            raise FrameSyntaxError(f"a method on channel {self.number} behind its channel.close", 504)
        if key == methods.ChannelClose.key:
            self.session.out.append(method_frame(self.number, methods.ChannelCloseOk().encode()))
        elif key == methods.ChannelCloseOk.key:
            self.session.forget(self)
        return True

    def header_frame(self, data: bytes, at: int, end: int) -> None:
        """A content header; of no interest while closing. A message that is too large is refused at once: nobody
        waits for 2^63 octets that may never come."""
        if self.closing:
            return
        if self.awaiting == "header" and data[at + 2 : at + 4] not in (b"\0\0", b""):  # section 4.2.6.1
            raise FrameSyntaxError("a content header whose weight is not 0", 505)
        super().header_frame(data, at, end)
        if self.awaiting and self._limit:
            self.awaiting = ""
            self.oversized(self._method, self._told, self._limit)

    def body_frame(self, data: bytes, at: int, end: int) -> None:
        """A body frame; of no interest while closing."""
        if not self.closing:
            super().body_frame(data, at, end)

    def request(self, method: methods.Method) -> None:
        """A method of :data:`RECEIVE`."""
        received = RECEIVE[type(method).meaning]
        request = received.request(self.number, method)
        self.serial = request.serial = serial = self.serial + 1  # type: ignore[misc]  # nobody else has it yet
        self._waiting[serial] = UnansweredRequest(method, None if getattr(method, "nowait", False) else received.answer)
        if type(method) is methods.ConfirmSelect:
            self._confirming = True
        self.session.emit(request)

    def publish(self, data: bytes, at: int, end: int) -> None:
        """basic.publish; content follows. Publishes to the same place have the same octets."""
        octets = data[at:end]
        place = self._places.get(octets)
        if place is None:
            method = methods.BasicPublish.decode(octets, 0, len(octets))
            place = (method.exchange, method.routing_key, method.mandatory, method.immediate)
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            self._places[octets] = place
        self.expect_content(place)

    def content(self, method: Any, octets: bytes, body: bytes) -> None:
        """See :class:`~gateway.classic.assembler.Assembler`."""
        session = self.session
        exchange, routing_key, mandatory, immediate = method
        message = Message(body, None, RawProperties(octets, session.translator.name, session.translator.decode, SEAM))
        self.serial = serial = self.serial + 1
        if self._confirming:
            self._publish += 1
            self._unconfirmed[serial] = self._publish
        else:
            self._recent.append((serial, methods.BasicPublish.key))
        session.emit(
            operations.Publish(self.number, exchange, routing_key, message, mandatory, immediate, serial=serial)
        )

    def oversized(self, method: Any, size: int, limit: int) -> None:
        """See :class:`~gateway.classic.assembler.Assembler`."""
        self.fail(311, f"{size} octets are over the limit of {limit}", methods.BasicPublish.key)

    def settle(self, settlement: operations.Settlement, tag: int, multiple: bool, key: int) -> None:
        """basic.ack, nack, reject."""
        if tag == 0 and not multiple:
            self.fail(406, "unknown delivery tag 0", key)
            return
        self.serial = serial = self.serial + 1
        self._recent.append((serial, key))
        self.session.emit(operations.Settle(self.number, settlement, 0 if multiple else tag, tag, serial=serial))

    def flow(self, method: methods.ChannelFlow) -> None:
        """channel.flow of the client, answered at once."""
        self.write(methods.ChannelFlowOk(method.active))
        self.serial = serial = self.serial + 1
        self._recent.append((serial, method.key))
        self.session.emit(operations.Flow(self.number, method.active, serial=serial))

    def access(self, method: methods.AccessRequest) -> None:
        """access.request of 0-8: everyone gets the same ticket to the only realm, and a method may bring any ticket.
        Nobody can have the realm for itself."""
        realm = method.realm
        if realm.startswith("/admin"):
            self.fail(402, f"there is no realm '{realm}'", method.key)
        elif not realm.startswith("/data"):
            raise FrameSyntaxError(f"a realm begins with /data or /admin, not {realm!r:.80}", 403)
        elif method.exclusive:
            self.fail(403, f"exclusive access to realm '{realm}'", method.key)
        else:
            self.write(methods.AccessRequestOk(TICKET))

    def close_requested(self, method: methods.ChannelClose) -> None:
        """channel.close of the client."""
        self.serial = serial = self.serial + 1
        self._close_requested = self.attention = True
        self.session.emit(operations.CloseChannel(self.number, method.reply_code, method.reply_text, serial=serial))

    # --------------------------------------------------------------------------------------------- sending

    def write(self, method: methods.Method) -> None:
        """Queue a method."""
        self.session.out.append(method_frame(self.number, method.encode(self.session.tables)))

    def send(self, operation: operations.Operation) -> int:
        """Carry out an operation of the broker's."""
        sender = SENDERS.get(type(operation))
        if sender is None:
            raise Unsupported(f"a server does not send {type(operation).__name__}")
        if self.closing:
            raise StateError(f"channel {self.number} is closing: no {type(operation).__name__}")
        return sender(self, operation)

    def outcome(self, outcome: operations.Outcome) -> int:
        """The outcome of one request or a run of them."""
        for serial in range(outcome.first, outcome.last + 1):
            waiting = self._waiting.get(serial)
            if waiting is None:
                raise StateError(f"channel {self.number}: request {serial} waits for no outcome")
            if waiting.answer is not None:
                method = waiting.answer(self, waiting.method, outcome)
                if method is not None:
                    self.write(method)
            del self._waiting[serial]
        return 0

    def confirmed(self, outcome: operations.Confirmed) -> int:
        """basic.ack of publishes."""
        for tag, multiple in self._numbers(outcome):
            self.write(methods.BasicAck(tag, multiple))
        return 0

    def refused(self, outcome: operations.Refused) -> int:
        """basic.nack of publishes."""
        for tag, multiple in self._numbers(outcome):
            self.write(methods.BasicNack(tag, multiple, False))
        return 0

    def _numbers(self, outcome: operations.Outcome) -> list[tuple[int, bool]]:
        """Take the publishes of a range out of those without an outcome: (number, multiple)."""
        unconfirmed = self._unconfirmed
        first, last = outcome.first, outcome.last
        if first == last:
            tag = unconfirmed.pop(first, 0)
            return [(tag, False)] if tag else []
        serials = [serial for serial in unconfirmed if first <= serial <= last]
        if not serials:
            return []
        many = len(serials) > 1 and next(iter(unconfirmed)) == serials[0]
        tags = [unconfirmed.pop(serial) for serial in serials]
        return [(tags[-1], True)] if many else [(tag, False) for tag in tags]

    def returned(self, outcome: operations.Returned) -> int:
        """basic.return with the message."""
        message = outcome.message or Message()
        method = methods.BasicReturn(
            outcome.code, reply_text(outcome.code, outcome.text), outcome.exchange, outcome.routing_key
        )
        self._content(method_frame(self.number, method.encode()), message)
        return 0

    def deliver(self, operation: operations.Deliver) -> int:
        """basic.deliver with the message; its delivery tag."""
        tag = self._delivery + 1
        place = operation.consumer_tag, operation.exchange, operation.routing_key
        ends = self._targets.get(place)
        if ends is None:
            ends = self._target(place)
        before, behind = ends
        frame = b"".join(
            (
                _DELIVER_START(METHOD, self.number, 13 + len(before) + len(behind), BASIC, 60),
                before,
                _DELIVERY(tag, operation.redelivered),
                behind,
                _END,
            )
        )
        self._content(frame, operation.message)
        self._delivery = tag
        return tag

    def _target(self, place: tuple[str, str, str]) -> tuple[bytes, bytes]:
        """The octets of a basic.deliver before its number and behind its flag, which repeat."""
        octets = methods.BasicDeliver(place[0], 0, False, place[1], place[2]).encode()
        stop = 5 + octets[4]
        if len(self._targets) >= PLACES_MAX:
            self._targets.clear()
        ends = self._targets[place] = octets[4:stop], octets[stop + 9 :]
        return ends

    def got(self, outcome: operations.Got) -> int:
        """basic.get-ok with the message; its delivery tag."""
        if outcome.first not in self._waiting:
            raise StateError(f"channel {self.number}: request {outcome.first} waits for no outcome")
        tag = self._delivery + 1
        method = methods.BasicGetOk(
            tag, outcome.redelivered, outcome.exchange, outcome.routing_key, outcome.message_count or 0
        )
        self._content(method_frame(self.number, method.encode()), outcome.message)
        del self._waiting[outcome.first]
        self._delivery = tag
        return tag

    def _content(self, frame: bytes, message: Message) -> None:
        """Queue a message behind the frame of its method."""
        session = self.session
        octets = session.translator.encode(message)
        frame_size = len(octets) + 12 + OVERHEAD
        if frame_size > session.frame_max:
            raise EncodeError(
                f"properties: a content header of {len(octets) + 12} octets does not fit the client's"
                f" frame_max of {session.frame_max}",
                frame_size,
            )
        session.out += content_frames(self.number, frame, octets, message.body, session.frame_max)

    def ask_flow(self, operation: operations.Flow) -> int:
        """channel.flow of the server."""
        self.write(methods.ChannelFlow(operation.active))
        return 0

    def alert(self, operation: operations.Alert) -> int:
        """channel.alert, to a client of 0-8."""
        if methods.ChannelAlert in self.session.dialect.methods.values():
            self.write(
                methods.ChannelAlert(operation.code, reply_text(operation.code, operation.text), operation.details)
            )
        return 0

    def cancelled(self, operation: operations.Cancelled) -> int:
        """basic.cancel, to a client that can hear it. Qpid's gets a basic.cancel-ok that it did not ask for:
        it waits for that at the end of a browser."""
        if self.session.capabilities.consumer_cancel_notify:
            self.write(methods.BasicCancel(operation.consumer_tag, True))
        elif self.session.dialect.browse:
            self.write(methods.BasicCancelOk(operation.consumer_tag))
        return 0

    def failed(self, outcome: operations.Failed) -> int:
        """The request failed: channel.close, or connection.close where the code asks for that."""
        key = self._key_of(outcome.first)
        if outcome.code in CONNECTION_CODES:
            self.session.close_failed(outcome.code, outcome.text, key)
        else:
            self._close(outcome.code, outcome.text, key)
        return 0

    def close(self, operation: operations.CloseChannel) -> int:
        """channel.close of the server."""
        self._close(operation.code, operation.text, self._key_of(operation.failed))
        return 0

    def closed(self, operation: operations.ChannelClosed) -> int:
        """The answer to the client's channel.close."""
        if not self._close_requested:
            raise StateError(f"channel {self.number}: the client has not asked to close it")
        self.write(methods.ChannelCloseOk())
        self.session.forget(self)
        return 0

    def fail(self, code: int, text: str, key: int) -> None:
        """The session itself closes the channel over something the client did."""
        self._close(code, text, key)
        self.session.emit(operations.ChannelClosed(self.number, code, text, by_peer=False))

    def _close(self, code: int, text: str, key: int) -> None:
        if self._close_requested:
            # The client wants it closed, and need not hear why we do.
            self.write(methods.ChannelCloseOk())
            self.session.forget(self)
            return
        self.write(methods.ChannelClose(code, reply_text(code, text), key >> 16, key & 0xFFFF))
        self.forget()
        self.awaiting = ""
        self.closing = self.attention = True
        self._waiting.clear()
        self._unconfirmed.clear()

    def _key_of(self, serial: int) -> int:
        waiting = self._waiting.get(serial)
        if waiting is not None:
            return waiting.method.key
        if serial in self._unconfirmed:
            return methods.BasicPublish.key
        return next((key for recent, key in self._recent if recent == serial), 0)


SENDERS: Final[Mapping[type[operations.Operation], Callable[[ServerChannel, Any], int]]] = {
    **dict.fromkeys(
        (
            operations.Done,
            operations.ExchangeFound,
            operations.Declared,
            operations.BindingFound,
            operations.Removed,
            operations.Consuming,
            operations.GotNothing,
        ),
        ServerChannel.outcome,
    ),
    operations.Deliver: ServerChannel.deliver,
    operations.Confirmed: ServerChannel.confirmed,
    operations.Refused: ServerChannel.refused,
    operations.Returned: ServerChannel.returned,
    operations.Got: ServerChannel.got,
    operations.Flow: ServerChannel.ask_flow,
    operations.Alert: ServerChannel.alert,
    operations.Cancelled: ServerChannel.cancelled,
    operations.Failed: ServerChannel.failed,
    operations.CloseChannel: ServerChannel.close,
    operations.ChannelClosed: ServerChannel.closed,
}


def _decoded(method: type[methods.Method], handle: Callable[[ServerChannel, Any], None]) -> Handler:
    decode = method.decode

    def handler(channel: ServerChannel, data: bytes, at: int, end: int) -> None:
        handle(channel, decode(data, at, end, channel.session.tables))

    return handler


_ACK_ARGUMENTS = struct.Struct(">QB")


def _ack(channel: ServerChannel, data: bytes, at: int, end: int) -> None:
    if end - at != 9:
        raise FrameSyntaxError(f"basic.ack of {end - at} octets, not 9", 502)
    tag, bits = _ACK_ARGUMENTS.unpack_from(data, at)
    channel.settle(operations.Settlement.ACCEPT, tag, bits & 1 != 0, methods.BasicAck.key)


def _nack(channel: ServerChannel, method: methods.BasicNack) -> None:
    channel.settle(_refusal(method.requeue), method.delivery_tag, method.multiple, method.key)


def _reject(channel: ServerChannel, method: methods.BasicReject) -> None:
    channel.settle(_refusal(method.requeue), method.delivery_tag, False, method.key)


def _refusal(requeue: bool) -> operations.Settlement:
    return operations.Settlement.RELEASE if requeue else operations.Settlement.REJECT


def _opened_twice(channel: ServerChannel, method: methods.ChannelOpen) -> None:
    raise FrameSyntaxError(f"channel {channel.number} is open already", 504)


def _consume(channel: ServerChannel, data: bytes, at: int, end: int) -> None:
    """basic.consume, in 0-8 with or without arguments: whether octets are left tells."""
    shape: type[methods.Method] = methods.BasicConsume
    if channel.session.dialect.bare_consume:
        stop = at + 2
        for _ in range(2):
            stop += 1 + data[stop] if stop < end else 0
        shape = methods.BasicConsume08 if stop + 1 >= end else methods.BasicConsume
    channel.request(shape.decode(data, at, end, channel.session.tables))


@cache
def handlers(dialect: Dialect) -> Mapping[int, Handler]:
    """What may come on a channel of this dialect, by key."""
    taken = (method for method in dialect.methods.values() if method.meaning in HANDLERS or method in UNDECODED)
    return {
        method.key: UNDECODED.get(method) or _decoded(method, HANDLERS[method.meaning]) for method in taken
    }  # fmt: skip


HANDLERS: Final[Mapping[type[methods.Method], Callable[[ServerChannel, Any], None]]] = {
    **dict.fromkeys(RECEIVE, ServerChannel.request),
    methods.ChannelOpen: _opened_twice,
    methods.BasicNack: _nack,
    methods.BasicReject: _reject,
    methods.ChannelFlow: ServerChannel.flow,
    methods.ChannelFlowOk: lambda channel, method: None,
    methods.BasicCancelOk: lambda channel, method: None,
    methods.AccessRequest: ServerChannel.access,
    methods.ChannelClose: ServerChannel.close_requested,
}
"""What may come on a channel, by its meaning; a session takes the methods of its dialect."""
UNDECODED: Final[Mapping[type[methods.Method], Handler]] = {
    methods.BasicConsume: _consume,
    methods.BasicPublish: ServerChannel.publish,
    methods.BasicAck: _ack,
}
"""What is read without an object for each, or by the shape that it turns out to have."""

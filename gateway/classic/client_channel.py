"""A channel of a client: operations become methods, methods become outcomes.

What a request becomes, which method answers it and what the answer means is the table :data:`ASK`. Answers come in
the order of the requests, so a queue of those under way is nearly all there is to matching. Publishes, deliveries and
settlements, which happen per message, have code of their own.

Where the broker confirms nothing, ``SelectConfirm`` makes the channel transacted: what is written is held back until
:meth:`ClientChannel.flush`, which adds a tx.commit, and nothing more goes out until commit-ok (RabbitMQ ends a
connection that goes on). The commit-ok confirms what the transaction held.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.amqp import operations
from gateway.amqp.message import Message, RawProperties
from gateway.classic import methods
from gateway.classic.assembler import SMALL_HEADER
from gateway.classic.client_requests import ASK, Asked, done, need
from gateway.classic.confirms import ConfirmWindow, Pending, Remembered
from gateway.classic.connection import BaseChannel, Handler
from gateway.classic.dialect import Dialect, refused_method
from gateway.classic.frames import BASIC, BODY, FRAME_END, HEADER, METHOD, OVERHEAD, content_frames, method_frame
from gateway.classic.splice import SEAM
from gateway.errors import EncodeError, FrameSyntaxError, StateError, Unsupported
from gateway.session import Confirms

if TYPE_CHECKING:
    from gateway.classic.client import ClassicClient

PLACES_MAX: Final = 256
"""How many places and tags of deliveries a channel keeps decoded."""
PREFIXES_MAX: Final = 64
"""How many encoded basic.publish methods a channel keeps."""

NOT_ROUTED: Final = frozenset({312, 313})
"""Codes of basic.return that mean: no queue, or no consumer, for it."""

_ACK_FRAME = struct.Struct(">BHIHHQBB").pack
_ACK_LENGTH: Final = 13
_DELIVERY = struct.Struct(">QB")
_HEADER_FRAME = struct.Struct(">BHIHHQ").unpack_from
_BODY_FRAME = struct.Struct(">BBHI").unpack_from
"""The end of a content header frame, and the start of the body frame behind it."""


class ChannelState(Enum):
    """Where a channel stands."""

    OPEN = "open"
    """open was sent; what follows may be sent behind it."""
    COMMITTING = "committing"
    """The user's own tx.commit or rollback is under way: nothing may be sent."""
    CLOSING = "closing"


class Mode(Enum):
    """How publishes get their outcome."""

    NONE = "none"
    CONFIRM = "confirm"
    EMULATED = "emulated"
    """By transactions of the session's own."""
    TRANSACTED = "transacted"
    """By transactions of the user's."""


class _Got(NamedTuple):
    """A get-ok whose content is to come."""

    asked: Asked
    method: methods.BasicGetOk


class OwnCommits:
    """The commits with which a session confirms publishes where the broker has no confirms (:attr:`Mode.EMULATED`)."""

    __slots__ = ("close_frame", "is_needed", "is_under_way", "tag")

    def __init__(self) -> None:
        self.is_needed = False
        """For what is held."""
        self.is_under_way = False
        """For the publishes up to ``tag``."""
        self.tag = 0
        self.close_frame: bytes | None = None
        """A channel.close that waits for the last commit."""


class ClientChannel(BaseChannel):
    """See the module."""

    __slots__ = (
        "_body_small", "_header_small", "_places", "_prefixes", "_remembered", "_texts", "commits", "consumers",
        "dirty", "flowing", "held", "mode", "nacked_at", "newest", "out", "outstanding", "requests", "serial",
        "session", "state", "ticket", "undecided", "window",
    )  # fmt: skip

    large_headers = True
    session: ClassicClient

    def __init__(self, session: ClassicClient, number: int) -> None:
        limits = session.limits
        super().__init__(limits, session.spool)
        payload_max = session.frame_max - OVERHEAD
        self._header_small = min(SMALL_HEADER + 12, limits.header_max + 12, payload_max)
        self._body_small = min(limits.message_max, payload_max)
        """The largest content header and body of a delivery that is taken at once."""
        self.session = session
        self.number = number
        self.attention = False
        self.serial = 0
        self.state = ChannelState.OPEN
        self.mode = Mode.NONE
        self.ticket = 0
        self.requests: list[Asked] = []
        self.consumers: dict[str, bool] = {}
        """Consumer tag -> no_ack."""
        self.outstanding: dict[int, None] = {}
        """Delivery tags that are not settled, in order."""
        self.undecided: list[int] = []
        """Delivery tags that were settled in the user's transaction."""
        self.newest = 0
        """The delivery tag that came last."""
        self.window = ConfirmWindow()
        self._remembered: Remembered | None = None
        """Made for the first publish that needs it."""
        self._places: dict[bytes, tuple[str, str]] = {}
        """Octets of exchange and routing key -> the two, of deliveries."""
        self._texts: dict[bytes, str] = {}
        """Octets of a consumer tag -> the tag."""
        self._prefixes: dict[tuple[str, str, bool, bool], bytes] = {}
        self.out = session.out
        """Where buffers go: the session's list, or ``held``."""
        self.held: list[bytes] = []
        self.dirty = False
        """The session's flush will come."""
        self.commits = OwnCommits()
        self.nacked_at = 0.0
        self.flowing = True
        """Deliveries were asked for last, not told to stop (channel.flow)."""

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: operations.Operation) -> int:
        """Carry out an operation of the user's; its serial."""
        if self.state is not ChannelState.OPEN:
            raise StateError(f"channel {self.number} is {self.state.value}: no {type(operation).__name__}")
        sender = SENDERS.get(type(operation))
        if sender is None:
            raise Unsupported(f"a client does not send {type(operation).__name__}")
        return sender(self, operation)

    def write(self, method: methods.Method) -> None:
        """Queue a method."""
        self.out.append(method_frame(self.number, method.encode(self.session.tables)))
        if self.out is self.held:
            self.touch()

    def react(self, method: methods.Method) -> None:
        """Queue a method over something that came, unless the channel is closing: RabbitMQ forgets a channel when it
        has our close, and ends the whole connection over what comes behind it (504)."""
        if self.state is ChannelState.OPEN:
            self.write(method)

    def touch(self) -> None:
        """Something is held: flush will come for it."""
        if not self.dirty:
            self.dirty = True
            self.session.dirty_channels.append(self)

    def ask(self, request: Any) -> int:
        """Send a request of :data:`ASK`."""
        ask = ASK[type(request)]
        method = ask.build(self, request)
        self.write(method)
        self.serial = serial = self.serial + 1
        self.requests.append(Asked(serial, request, method.key, ask.answers, ask.finish))
        return serial

    def open_twice(self, operation: operations.OpenChannel) -> int:
        """A channel opens once."""
        raise StateError(f"channel {self.number} is open already")

    def publish(self, operation: operations.Publish) -> int:
        """basic.publish with its content."""
        session = self.session
        message = operation.message
        octets = session.translator.encode(message)
        if len(octets) + 12 + OVERHEAD > session.frame_max:
            raise EncodeError(
                f"properties: a content header of {len(octets) + 12} octets does not fit the broker's"
                f" frame_max of {session.frame_max}"
            )
        place = (operation.exchange, operation.routing_key, operation.mandatory, operation.immediate)
        method = self._prefixes.get(place)
        if method is None:
            method = self._publish_method(place)
        buffers = content_frames(self.number, method, octets, message.body, session.frame_max)
        self.serial = serial = self.serial + 1
        mode = self.mode
        if mode is Mode.CONFIRM:
            self.window.add(Pending(serial, operation, octets))
        elif mode is Mode.EMULATED:
            self.window.add(Pending(serial, operation, octets))
            self.commits.is_needed = True
            self.touch()
        elif operation.mandatory or operation.immediate:
            if self._remembered is None:
                self._remembered = Remembered()
            self._remembered.add(serial, operation, octets)
        self.out += buffers
        return serial

    def _publish_method(self, place: tuple[str, str, bool, bool]) -> bytes:
        exchange, routing_key, mandatory, immediate = place
        if immediate and not self.session.dialect.immediate:
            raise Unsupported("immediate: this broker closes the connection over it (540)")
        method = methods.BasicPublish(self.ticket, exchange, routing_key, mandatory, immediate)
        if len(self._prefixes) >= PREFIXES_MAX:
            self._prefixes.clear()
        frame = self._prefixes[place] = method_frame(self.number, method.encode())
        return frame

    def settle(self, operation: operations.Settle) -> int:
        """basic.ack, nack or reject of what is outstanding in the range."""
        first, last, outstanding = operation.first, operation.last, self.outstanding
        settlement = operation.settlement
        if first == last and first in outstanding:
            del outstanding[first]
            if self.mode is Mode.TRANSACTED:
                self.undecided.append(first)
            if settlement is operations.Settlement.ACCEPT:
                self.out.append(_ACK_FRAME(METHOD, self.number, _ACK_LENGTH, 60, 80, first, 0, FRAME_END))
            else:
                self.write(self._refusal(first, False, settlement))
            if self.mode is Mode.EMULATED:
                self.commits.is_needed = True
                self.touch()
            self.serial += 1
            return self.serial
        tags = []
        for tag in outstanding:  # they are in order
            if tag > last > 0:
                break
            if tag >= first:
                tags.append(tag)
        if not tags:
            raise StateError(f"channel {self.number}: no delivery within {first}..{last} is outstanding")
        many = len(tags) > 1 and next(iter(outstanding)) == tags[0]
        if settlement is not operations.Settlement.ACCEPT:
            many = many and self.session.may_nack_many
        if many:
            top = tags[-1]
            accepted = settlement is operations.Settlement.ACCEPT
            self.write(methods.BasicAck(top, True) if accepted else self._refusal(top, True, settlement))
        elif settlement is operations.Settlement.ACCEPT:
            self.out += [_ACK_FRAME(METHOD, self.number, _ACK_LENGTH, 60, 80, tag, 0, FRAME_END) for tag in tags]
            if self.out is self.held:
                self.touch()
        else:
            for tag in tags:
                self.write(self._refusal(tag, False, settlement))
        for tag in tags:
            del outstanding[tag]
        if self.mode is Mode.TRANSACTED:
            self.undecided += tags
        self.commits.is_needed = True
        self.serial += 1
        return self.serial

    def _refusal(self, tag: int, multiple: bool, settlement: operations.Settlement) -> methods.Method:
        requeue = settlement is operations.Settlement.RELEASE
        if multiple or self.session.may_nack:
            return methods.BasicNack(tag, multiple, requeue)
        return methods.BasicReject(tag, requeue)

    def flow(self, operation: operations.Flow) -> int:
        """channel.flow; it has no outcome, so its answer is passed over."""
        if not self.session.dialect.flow_from_client:
            raise Unsupported("channel.flow: this broker closes the connection over it (540)")
        self.flowing = operation.active
        self.write(methods.ChannelFlow(operation.active))
        self.serial = serial = self.serial + 1
        self.requests.append(Asked(0, operation, methods.ChannelFlow.key, (methods.ChannelFlowOk,), _nothing))
        return serial

    def recover(self, operation: operations.Recover) -> int:
        """basic.recover. What it gives back must be told from what comes again: Broker-J sends that before recover-ok,
        and not every recover has an answer. So where it may be, the channel is stopped before: what came until flow-ok
        is given back, and nothing comes then until recover is done."""
        dialect = self.session.dialect
        answered = not operation.asynchronous and dialect.recover_ok is not None
        if not dialect.flow_from_client:
            need(answered, "basic.recover that is not answered, where a client may not stop the channel")
            return self.ask(operation)
        stop = methods.ChannelFlow(False)
        self.write(stop)
        self.requests.append(Asked(0, operation, stop.key, (methods.ChannelFlowOk,), _stopped))
        if answered:
            serial = self.ask(operation)
        else:
            self.serial = serial = self.serial + 1
            self.write(methods.BasicRecoverAsync(operation.requeue))
        go_on = methods.ChannelFlow(self.flowing)
        self.write(go_on)
        self.requests.append(
            Asked(0, operation, go_on.key, (methods.ChannelFlowOk,), _nothing)
            if answered
            else Asked(serial, operation, methods.BasicRecoverAsync.key, (methods.ChannelFlowOk,), done)
        )
        return serial

    def consume(self, operation: operations.Consume) -> int:
        """basic.consume; a tag names one consumer of the channel."""
        tag = operation.consumer_tag
        if tag in self.consumers:
            raise StateError(f"channel {self.number}: the consumer tag {tag!r:.80} is in use")
        serial = self.ask(operation)
        if tag:
            self.consumers[tag] = operation.no_ack
        return serial

    def select(self, operation: Any) -> int:
        """SelectConfirm and TxSelect: each but once, and not both."""
        if self.mode is not Mode.NONE:
            raise StateError(f"channel {self.number} is in mode {self.mode.value} already")
        if type(operation) is operations.TxSelect:
            serial = self.ask(operation)
            self.mode = Mode.TRANSACTED
        elif self.session.capabilities.confirms is Confirms.NATIVE:
            serial = self.ask(operation)
            self.mode = Mode.CONFIRM
        else:
            self.write(methods.TxSelect())
            self.serial = serial = self.serial + 1
            self.requests.append(Asked(serial, operation, methods.TxSelect.key, (methods.TxSelectOk,), done))
            self.mode = Mode.EMULATED
            self.out = self.held
        return serial

    def transact(self, operation: Any) -> int:
        """TxCommit and TxRollback of the user's own."""
        if self.mode is not Mode.TRANSACTED:
            raise StateError(f"channel {self.number} is in mode {self.mode.value}, not transacted")
        serial = self.ask(operation)
        self.state = ChannelState.COMMITTING
        return serial

    def close(self, operation: operations.CloseChannel) -> int:
        """channel.close; behind the last commit where the session keeps transactions."""
        frame = method_frame(self.number, methods.ChannelClose(operation.code, operation.text).encode())
        if self.out is self.held:
            self.commits.close_frame = frame
            self.touch()
        else:
            self.out.append(frame)
        self.serial += 1
        self.state = ChannelState.CLOSING
        return self.serial

    def flush(self) -> None:
        """Write what is held, with a commit behind it where it needs one, unless one is under way."""
        self.dirty = False
        if self.commits.is_under_way:
            return
        out = self.session.out
        if self.held:
            out += self.held
            self.held.clear()
            if self.commits.is_needed:
                out.append(method_frame(self.number, methods.TxCommit().encode()))
                self.requests.append(Asked(0, None, methods.TxCommit.key, (methods.TxCommitOk,), _committed))
                self.commits.is_needed = False
                self.commits.is_under_way = True
                self.commits.tag = self.window.last
                return
        if self.commits.close_frame is not None:
            out.append(self.commits.close_frame)
            self.commits.close_frame = None

    # ------------------------------------------------------------------------------------------- receiving

    def attend(self, key: int) -> bool:
        """See :class:`~gateway.classic.connection.BaseChannel`."""
        if self.awaiting:
            raise FrameSyntaxError(f"a method where a content {self.awaiting} was due", 505)
        if key != methods.BasicReturn.key:
            self.refuse_nacked()
        return False

    def answer(self, method: methods.Method) -> None:
        """The answer to a request under way."""
        asked = self._answered(method)
        asked.finish(self, asked.serial, asked.request, method)

    def _answered(self, method: methods.Method) -> Asked:
        """Take out the request that ``method`` answers: the oldest that waits for such an answer. That is not
        always the oldest of all: RabbitMQ's consume-ok and cancel-ok take the way through the queue, and what
        was asked behind them may be answered before."""
        requests, kind = self.requests, type(method).meaning
        tag = getattr(method, "consumer_tag", None)
        for position, asked in enumerate(requests):
            if kind in asked.answers and (tag is None or asked.request.consumer_tag in ("", tag)):
                del requests[position]
                return asked
        raise FrameSyntaxError(f"channel {self.number}: {method.name} answers nothing that was asked", 503)

    def acknowledged(self, tag: int, multiple: bool) -> None:
        """basic.ack of the broker: publishes are safe."""
        entries = self.window.settle(tag, multiple)
        if entries:
            self.session.emit(operations.Confirmed(self.number, entries[0].serial, entries[-1].serial))

    def negative(self, method: methods.BasicNack) -> None:
        """basic.nack of the broker: publishes are refused, or about to be returned."""
        entries = self.window.settle(method.delivery_tag, method.multiple)
        if self.session.dialect.nack_before_return:
            held = [entry for entry in entries if entry.publish.mandatory or entry.publish.immediate]
            if held:
                self.window.nacked += held
                self.attention = True
                self.nacked_at = self.session.now or 0.0
                self.session.nacked_channels[self.number] = self
            entries = [entry for entry in entries if not (entry.publish.mandatory or entry.publish.immediate)]
        self._refuse(entries)

    def refuse_nacked(self) -> None:
        """What was refused was not returned."""
        entries, self.window.nacked = self.window.nacked, []
        self.attention = False
        self.session.nacked_channels.pop(self.number, None)
        self._refuse(entries)

    def _refuse(self, entries: list[Pending]) -> None:
        for entry in entries:
            self.session.emit(operations.Refused(self.number, entry.serial, entry.serial, 0, ""))

    def delivered(self, data: bytes, at: int, end: int) -> int | None:
        """basic.deliver: content follows. Consumer tags and places repeat, and are decoded once. Nearly always the
        content came with it, in one frame each: then it is taken at once, and the answer is where it ends."""
        try:
            stop = at + 1 + data[at]
            delivery, bits = _DELIVERY.unpack_from(data, stop)
            consumer_tag = self._texts[data[at:stop]]
            exchange, routing_key = self._places[data[stop + 9 : end]]
        except (KeyError, IndexError, struct.error):
            method = methods.BasicDeliver.decode(data, at, end)
            consumer_tag, delivery, bits = method.consumer_tag, method.delivery_tag, int(method.redelivered)
            exchange, routing_key = method.exchange, method.routing_key
            if len(self._places) >= PLACES_MAX or len(self._texts) >= PLACES_MAX:
                self._places.clear()
                self._texts.clear()
            stop = at + 1 + data[at]
            self._texts[data[at:stop]] = consumer_tag
            self._places[data[stop + 9 : end]] = (exchange, routing_key)
        if delivery <= self.newest:
            raise self._out_of_order(delivery)
        self.newest = delivery
        if not self.consumers.get(consumer_tag, False):
            self.outstanding[delivery] = None
        try:
            kind, number, length, class_id, _, size = _HEADER_FRAME(data, end + 1)
            stop = end + 8 + length
            mark, body_kind, body_number, body_size = _BODY_FRAME(data, stop)
            body = stop + 8
            after: int = body + body_size
            if (
                kind == HEADER
                and body_kind == BODY
                and number == body_number == self.number
                and class_id == BASIC
                and 14 <= length <= self._header_small
                and 0 < size == body_size <= self._body_small
                and mark == data[after] == FRAME_END
                and self.state is not ChannelState.CLOSING
            ):
                session = self.session
                translator = session.translator
                raw = RawProperties(data[end + 20 : stop], translator.name, translator.decode, SEAM)
                message = Message(data[body:after], None, raw)
                session.emit(
                    operations.Deliver(
                        self.number, consumer_tag, delivery, bits & 1 != 0, exchange, routing_key, message
                    )
                )
                return after + 1
        except (struct.error, IndexError):
            pass  # not all of it has come, or it is not what it should be, which is told frame by frame
        self._method = (consumer_tag, delivery, bits & 1 != 0, exchange, routing_key)
        self.awaiting = "header"
        return None

    def got(self, method: methods.BasicGetOk) -> None:
        """basic.get-ok: content follows."""
        asked = self._answered(method)
        if method.delivery_tag <= self.newest:
            raise self._out_of_order(method.delivery_tag)
        self.newest = method.delivery_tag
        if not asked.request.no_ack:
            self.outstanding[method.delivery_tag] = None
        self.expect_content(_Got(asked, method))

    def _out_of_order(self, tag: int) -> FrameSyntaxError:
        """Tags grow (0-9-1 section 1.8.3.13); were one used twice, an ack would settle we know not which."""
        return FrameSyntaxError(f"delivery tag {tag} on channel {self.number} behind {self.newest}", 503)

    def content(self, method: Any, octets: bytes, body: bytes) -> None:
        """See :class:`~gateway.classic.assembler.Assembler`."""
        session = self.session
        translator = session.translator
        message = Message(body, None, RawProperties(octets, translator.name, translator.decode, SEAM))
        if type(method) is tuple:
            if self.state is not ChannelState.CLOSING:
                consumer_tag, delivery, redelivered, exchange, routing_key = method
                session.emit(
                    operations.Deliver(self.number, consumer_tag, delivery, redelivered, exchange, routing_key, message)
                )
        elif type(method) is methods.BasicReturn:
            self._return(method, octets, message)
        else:
            asked, answer = method
            session.emit(
                operations.Got(
                    self.number, asked.serial, asked.serial, answer.delivery_tag, answer.redelivered, answer.exchange,
                    answer.routing_key, message, answer.message_count,
                )
            )  # fmt: skip

    def oversized(self, method: Any, size: int, limit: int) -> None:
        """See :class:`~gateway.classic.assembler.Assembler`."""
        if type(method) is tuple:
            if self.state is not ChannelState.CLOSING:
                consumer_tag, delivery, redelivered, exchange, routing_key = method
                self.session.emit(
                    operations.DeliveryTooLarge(
                        self.number, consumer_tag, delivery, size, limit, redelivered, exchange, routing_key
                    )
                )
        elif type(method) is methods.BasicReturn:
            # Ours to begin with: only the limits of this side have changed since.
            self._return(method, b"", Message())
        else:
            asked, answer = method
            self.session.emit(
                operations.DeliveryTooLarge(
                    self.number, "", answer.delivery_tag, size, limit, answer.redelivered, answer.exchange,
                    answer.routing_key,
                )
            )  # fmt: skip
            self.session.emit(operations.GotNothing(self.number, asked.serial, asked.serial))

    def _return(self, method: methods.BasicReturn, octets: bytes, message: Message) -> None:
        where = (method.exchange, method.routing_key, octets, message.body)
        if self.mode in (Mode.CONFIRM, Mode.EMULATED):
            entry = self.window.returned(*where)
            if not self.window.nacked:
                self.refuse_nacked()
            if entry is None:
                return
            serial = entry.serial
            if method.reply_code not in NOT_ROUTED:
                # Broker-J returns what a full queue refuses (506): it was routed, and not taken.
                text = method.reply_text
                self.session.emit(operations.Refused(self.number, serial, serial, method.reply_code, text))
                return
        else:
            serial = 0 if self._remembered is None else self._remembered.returned(*where)
        self.session.emit(
            operations.Returned(
                self.number, serial, serial, method.reply_code, method.reply_text, method.exchange,
                method.routing_key, message,
            )
        )  # fmt: skip

    def flow_answered(self, method: methods.ChannelFlowOk) -> None:
        """channel.flow-ok; one that answers nothing is let be, as ever."""
        if any(methods.ChannelFlowOk in asked.answers for asked in self.requests):
            self.answer(method)

    def alerted(self, method: methods.ChannelAlert) -> None:
        """channel.alert of the broker."""
        self.session.emit(operations.Alert(self.number, method.reply_code, method.reply_text, method.details))

    def asked_to_stop(self, method: methods.ChannelFlow) -> None:
        """channel.flow of the broker."""
        self.react(methods.ChannelFlowOk(method.active))
        self.session.emit(operations.Flow(self.number, method.active))

    def cancelled(self, method: methods.BasicCancel) -> None:
        """basic.cancel of the broker: the consumer's queue is gone, or it has held messages for too long."""
        known = self.consumers.pop(method.consumer_tag, None) is not None
        if not method.nowait or (known and self.session.answers_cancels):
            self.react(methods.BasicCancelOk(method.consumer_tag))
        elif known:
            # RabbitMQ 4.3.6 keeps the tag of a consumer that has held messages for too long, and ends the connection of
            # who uses it again. No broker minds the cancel of a tag that it does not know.
            self.react(methods.BasicCancel(method.consumer_tag, True))
        self.session.emit(operations.Cancelled(self.number, method.consumer_tag))

    def closed_by_peer(self, method: methods.ChannelClose) -> None:
        """channel.close of the broker."""
        self.session.out.append(method_frame(self.number, methods.ChannelCloseOk().encode()))
        key = method.class_id_ << 16 | method.method_id_
        text = refused_method(self.session.dialect, method.reply_code, method.reply_text, key)
        self.fail_request(key, method.reply_code, text)
        self.session.forget(self)
        self.session.emit(operations.ChannelClosed(self.number, method.reply_code, text))

    def closed_by_us(self, method: methods.ChannelCloseOk) -> None:
        """channel.close-ok."""
        if self.state is not ChannelState.CLOSING:
            raise FrameSyntaxError(f"channel {self.number}: close-ok where no close was sent", 503)
        self.session.forget(self)
        self.session.emit(operations.ChannelClosed(self.number, 200, "", by_peer=False))

    def asked_with(self, key: int) -> Asked | None:
        """The oldest of the user's requests under way that was sent as the method of that key."""
        return next((asked for asked in self.requests if asked.key == key and asked.serial), None)

    def fail_request(self, key: int, code: int, text: str) -> None:
        """The method of that key failed: that is the outcome of the request it was sent for."""
        asked = self.asked_with(key)
        if asked is not None:
            self.requests.remove(asked)
            self.session.emit(operations.Failed(self.number, asked.serial, asked.serial, code, text))

    def transaction_over(self, committed: bool) -> None:
        """tx.commit-ok or rollback-ok: the channel may be used again. What was settled in a transaction that was rolled
        back is outstanding again, with its old tags (RabbitMQ; 0-9-1 section 1.9)."""
        self.state = ChannelState.OPEN
        undecided, self.undecided = self.undecided, []
        if undecided and not committed:
            self.outstanding = dict.fromkeys(sorted((*self.outstanding, *undecided)))


def _committed(channel: ClientChannel, serial: int, request: None, method: methods.Method) -> None:
    channel.commits.is_under_way = False
    if channel.commits.tag:
        entries = channel.window.settle(channel.commits.tag, True)
        if entries:
            channel.session.emit(operations.Confirmed(channel.number, entries[0].serial, entries[-1].serial))
    if channel.held or channel.commits.close_frame is not None:
        channel.touch()


def _nothing(channel: ClientChannel, serial: int, request: Any, method: methods.Method) -> None:
    """Flow has no outcome."""


def _stopped(channel: ClientChannel, serial: int, request: operations.Recover, method: methods.Method) -> None:
    channel.outstanding.clear()


SENDERS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], int]]] = {
    **dict.fromkeys(ASK, ClientChannel.ask),
    operations.OpenChannel: ClientChannel.open_twice,
    operations.Publish: ClientChannel.publish,
    operations.Settle: ClientChannel.settle,
    operations.Flow: ClientChannel.flow,
    operations.Recover: ClientChannel.recover,
    operations.Consume: ClientChannel.consume,
    operations.SelectConfirm: ClientChannel.select,
    operations.TxSelect: ClientChannel.select,
    operations.TxCommit: ClientChannel.transact,
    operations.TxRollback: ClientChannel.transact,
    operations.CloseChannel: ClientChannel.close,
}


def _decoded(method: type[methods.Method], handle: Callable[[ClientChannel, Any], None]) -> Handler:
    decode = method.decode

    def handler(channel: ClientChannel, data: bytes, at: int, end: int) -> None:
        handle(channel, decode(data, at, end, channel.session.tables))

    return handler


_ACK_ARGUMENTS = struct.Struct(">QB")


def _ack(channel: ClientChannel, data: bytes, at: int, end: int) -> None:
    if end - at != 9:
        raise FrameSyntaxError(f"basic.ack of {end - at} octets, not 9", 502)
    tag, bits = _ACK_ARGUMENTS.unpack_from(data, at)
    channel.acknowledged(tag, bits & 1 != 0)


@cache
def handlers(dialect: Dialect) -> Mapping[int, Handler]:
    """What may come on a channel of this dialect, by key."""
    taken = (method for method in dialect.methods.values() if method.meaning in HANDLERS or method in UNDECODED)
    return {
        method.key: UNDECODED.get(method) or _decoded(method, HANDLERS[method.meaning]) for method in taken
    }  # fmt: skip


HANDLERS: Final[Mapping[type[methods.Method], Callable[[ClientChannel, Any], None]]] = {
    **{answer: ClientChannel.answer for ask in ASK.values() for answer in ask.answers},
    methods.BasicNack: ClientChannel.negative,
    methods.BasicReturn: ClientChannel.expect_content,
    methods.BasicGetOk: ClientChannel.got,
    methods.BasicCancel: ClientChannel.cancelled,
    methods.AccessRequestOk: ClientChannel.answer,
    methods.ChannelFlow: ClientChannel.asked_to_stop,
    methods.ChannelFlowOk: ClientChannel.flow_answered,
    methods.ChannelAlert: ClientChannel.alerted,
    methods.ChannelClose: ClientChannel.closed_by_peer,
    methods.ChannelCloseOk: ClientChannel.closed_by_us,
}
"""What may come on a channel, by its meaning; a session takes the methods of its dialect."""
UNDECODED: Final[Mapping[type[methods.Method], Handler]] = {
    methods.BasicAck: _ack,
    methods.BasicDeliver: ClientChannel.delivered,
}
"""What comes per message, and is read without an object for each."""

"""A session that a client has opened: operations become commands, completions and responses become outcomes.

Everything that was sent and has an outcome is in :attr:`ClientChannel.pending`, by command id: a publish as its serial,
anything else as a :class:`Step`. A publish is confirmed by completion. A delivery is accepted by ``message.ok``, given
back by a ``message.reject`` that says "could not be delivered" (1) and refused by one that says nothing more (0): the
draft has no other words. All that comes is complete at once; completion is not settlement. A delivery's number is its
command id plus one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.amqp import operations
from gateway.classic.frames import REPLY_CODES
from gateway.classic.methods import Method
from gateway.errors import FrameSyntaxError, StateError, Unsupported
from gateway.v010.execution import RangeSet, unwrap, unwrap_ranges, within
from gateway.v010_draft import methods
from gateway.v010_draft.attached import BODIES, CONTROLS, Attached
from gateway.v010_draft.client_requests import CHECKS, REQUESTS, Step, consuming
from gateway.v010_draft.translate import (
    IMMEDIATE,
    REDELIVERED,
    REJECT_UNROUTABLE,
    Transfer,
    read_message,
    write_properties,
)

if TYPE_CHECKING:
    from gateway.v010_draft.client import ClientSession

OK: Final = 200
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
GENERIC: Final = 0
NOT_DELIVERED: Final = 1
"""The two codes of message.reject."""


class Consumer:
    """A destination of this session."""

    __slots__ = ("get", "no_ack", "starting", "tag")

    def __init__(self, tag: str, no_ack: bool) -> None:
        self.tag = tag
        self.no_ack = no_ack
        self.starting: Step | None = None
        """message.consume is not complete."""
        self.get: Step | None = None
        """It is that of a message.get which is not answered."""


class ClientChannel(Attached):
    """See the module."""

    __slots__ = (
        "_asking", "_tags", "closing", "committing", "confirming", "consumers", "emit", "opening", "outstanding",
        "pending", "prefetch", "serial", "session", "transacted", "undecided",
    )  # fmt: skip

    session: ClientSession

    def __init__(self, session: ClientSession, number: int) -> None:
        super().__init__(session, number)
        self.emit: Callable[[operations.Operation], None] = session.say
        self.serial = 1
        self.opening = True
        self.closing = False
        self.confirming = False
        self.transacted = False
        self.committing = False
        """A commit or rollback is under way: nothing may be sent."""
        self.pending: dict[int, int | Step] = {}
        self.prefetch = methods.MessageQos(0, 0, False)
        """What was asked for last."""
        self.consumers: dict[str, Consumer] = {}
        self.outstanding: dict[int, None] = {}
        """Deliveries that are not settled, in order."""
        self.undecided: list[int] = []
        """What was settled in the transaction."""
        self._asking = False
        """Something was sent of which the completion is awaited, and not asked for."""
        self._tags = 0
        self.control(methods.SessionOpen(0))

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, operation: operations.Operation) -> int:
        """Carry out an operation of the user's; its serial."""
        kind = type(operation)
        if kind is operations.OpenChannel:
            raise StateError(f"channel {self.number} is open")
        if self.closing or self.committing:
            raise StateError(
                f"channel {self.number} is {'closing' if self.closing else 'committing'}: no {kind.__name__}"
            )
        serial = self.serial + 1
        sender = SENDERS.get(kind)
        if sender is not None:
            sender(self, operation)
        else:
            request = REQUESTS.get(kind)
            if request is None:
                raise Unsupported(f"a client of 0-10's transitional draft does not send {kind.__name__}")
            check = CHECKS.get(kind)
            if check is not None:
                check(self, operation)
            request(self, operation, serial)
        self.serial = serial
        return serial

    def ask(self, method: Method, step: Step) -> None:
        """Queue a command whose completion or answer is awaited."""
        self._await(self.command(method), step)

    def _await(self, number: int, step: int | Step) -> None:
        self.pending[number] = step
        self._asking = True
        self.session.dirty[self.number] = self

    def publish(self, operation: operations.Publish) -> None:
        """message.transfer."""
        flags = (REJECT_UNROUTABLE if operation.mandatory else 0) | (IMMEDIATE if operation.immediate else 0)
        message = operation.message
        properties = write_properties(message, self.session.login)
        number = self.transfer(operation.exchange, flags, "", operation.routing_key, properties, message.body)
        self._await(number, self.serial + 1)

    def flush(self) -> None:
        """See :class:`~gateway.v010_draft.attached.Attached`: ask, and tell."""
        if self._asking and not self.closing:
            self._asking = False
            self.control(methods.ExecutionFlush())
        super().flush()

    def settle(self, operation: operations.Settle) -> None:
        """message.ok or reject of what is outstanding in the range."""
        first, last = operation.first, operation.last or self.executed.next
        outstanding = self.outstanding
        if last - first < len(outstanding):
            numbers = [number for number in range(first, last + 1) if number in outstanding]
        else:
            numbers = [number for number in outstanding if first <= number <= last]
        if not numbers:
            raise StateError(f"channel {self.number}: no delivery within {first}..{last} is outstanding")
        settled = RangeSet()
        for number in numbers:
            del outstanding[number]
            settled.add(number - 1, number - 1)
        if self.transacted:
            self.undecided += numbers
        method = SETTLEMENTS[operation.settlement]
        for start, stop in settled:
            self.respond(method, start, stop)

    def flow(self, operation: operations.Flow) -> None:
        """session.flow."""
        self.control(methods.SessionFlow(operation.active))

    def close(self, operation: operations.CloseChannel) -> None:
        """session.close."""
        self.flush()
        self.control(methods.SessionClose())
        self.closing = True

    def add_consumer(self, tag: str, no_ack: bool) -> Consumer:
        """A destination more."""
        consumer = self.consumers[tag] = Consumer(tag, no_ack)
        return consumer

    def fresh_tag(self, stem: str = "consumer") -> str:
        """A destination that is not in use."""
        while True:
            self._tags += 1
            tag = f"{stem}-{self._tags}"
            if tag not in self.consumers:
                return tag

    # -------------------------------------------------------------------------------------------- receiving

    def transferred(self, number: int, transfer: Transfer, body: bytes) -> None:
        """A delivery."""
        consumer = self._take(number, transfer)
        if consumer is None:
            return
        redelivered = transfer.flags & REDELIVERED != 0
        exchange, routing_key, message = transfer.exchange, transfer.routing_key, read_message(transfer, body)
        step = consumer.get
        number += 1
        if step is None:
            self.emit(
                operations.Deliver(self.number, consumer.tag, number, redelivered, exchange, routing_key, message)
            )
        else:
            consumer.get = None
            serial = step.serial
            self.emit(operations.Got(self.number, serial, serial, number, redelivered, exchange, routing_key, message))

    def oversized(self, number: int, transfer: Transfer, size: int, limit: int) -> None:
        """A delivery that is outstanding like any other, but has no body."""
        consumer = self._take(number, transfer)
        if consumer is None:
            return
        redelivered = transfer.flags & REDELIVERED != 0
        tag = consumer.tag if consumer.get is None else ""
        exchange, routing_key = transfer.exchange, transfer.routing_key
        self.emit(
            operations.DeliveryTooLarge(self.number, tag, number + 1, size, limit, redelivered, exchange, routing_key)
        )

    def _take(self, number: int, transfer: Transfer) -> Consumer | None:
        """Note a delivery; whose it is, None where nobody waits for it any more."""
        self.done(number)
        if self.closing:
            return None
        consumer = self.consumers.get(transfer.destination)
        if consumer is None:
            raise FrameSyntaxError(f"a transfer to {transfer.destination!r:.80}, where nothing consumes", 503)
        if consumer.starting is not None:
            consuming(self, consumer.starting)
        if not consumer.no_ack:
            self.outstanding[number + 1] = None
        return consumer

    def fault(self, code: int, text: str) -> None:
        """A server that breaks the rules of a session has lost the connection."""
        raise FrameSyntaxError(text, 503)

    def _under_way(self, first: int, last: int) -> list[int]:
        return within(self.pending, [(first, last)], self.sent - 1)

    def completed(self, method: methods.ExecutionComplete) -> None:
        """execution.complete: publishes are safe, requests are done."""
        mark = unwrap(method.cumulative_execution_mark, self.sent)
        ranges = [(0, mark), *unwrap_ranges(method.ranged_execution_set, self.sent)]
        start = end = 0
        for number in within(self.pending, ranges, self.sent - 1):
            step = self.pending[number]
            if isinstance(step, int):
                del self.pending[number]
                if step != end + 1:
                    self._confirm(start, end)
                    start = step
                end = step
            elif step.complete is not None:
                del self.pending[number]
                self._confirm(start, end)
                start = end = 0
                step.complete(self, step)
        self._confirm(start, end)

    def _confirm(self, first: int, last: int) -> None:
        if first and self.confirming:
            self.emit(operations.Confirmed(self.number, first, last))

    def accepted(self, first: int, last: int, method: methods.MessageOk) -> None:
        """message.ok: of publishes, which are safe; or of a get, behind its message."""
        for number in self._under_way(first, last):
            step = self.pending.pop(number)
            if isinstance(step, int):
                self._confirm(step, step)
            elif step.get is None:
                raise FrameSyntaxError("message.ok for what is neither a transfer nor a get", 503)
            else:
                self._got(step)

    def emptied(self, first: int, last: int, method: methods.MessageEmpty) -> None:
        """message.empty: there was nothing to get."""
        for number in self._under_way(first, last):
            step = self.pending.pop(number)
            if isinstance(step, int) or step.get is None:
                raise FrameSyntaxError("message.empty for what is no get", 503)
            self._got(step)

    def _got(self, step: Step) -> None:
        """A get is over: if nothing came by now, nothing is there, or it was too large."""
        assert step.get is not None
        consumer = self.consumers.pop(step.get)
        if consumer.get is not None:
            self.emit(operations.GotNothing(self.number, step.serial, step.serial))

    def rejected(self, first: int, last: int, method: methods.MessageReject) -> None:
        """message.reject of publishes. The code does not tell unroutable from refused; the text of our servers does."""
        for number in self._under_way(first, last):
            step = self.pending[number]
            if not isinstance(step, int):
                raise FrameSyntaxError("message.reject for what is no transfer", 503)
            del self.pending[number]
            code = _code_of(method)
            if code in (NO_ROUTE, NO_CONSUMERS):
                self.emit(operations.Returned(self.number, step, step, code, method.text))
            elif self.confirming:
                self.emit(operations.Refused(self.number, step, step, code, method.text))

    def replied(self, number: int, method: Method) -> None:
        """A synchronous answer: to the oldest request that waits for it."""
        self.done(number)
        for asked, step in self.pending.items():
            if isinstance(step, Step) and step.reply is type(method):
                del self.pending[asked]
                assert step.replied is not None
                step.replied(self, step, method)
                return
        if not self.closing:
            raise FrameSyntaxError(f"{method.title} to no request", 503)

    # ------------------------------------------------------------------------------------------ the session

    def _attached(self, method: methods.SessionAttached) -> None:
        if not self.opening:
            raise FrameSyntaxError(f"{method.title} on channel {self.number}, which has a session", 503)
        self.opening = False
        self._seen = 0
        self.emit(operations.Done(self.number, 1, 1))

    def _flowed(self, method: methods.SessionFlow) -> None:
        self.control(methods.SessionFlowOk(method.active))
        self.emit(operations.Flow(self.number, method.active))

    def _close_asked(self, method: methods.SessionClose) -> None:
        """The server wants to end it."""
        self.control(methods.SessionClosed(OK, ""))
        self._over(OK, "closed by the server", True)

    def _closed(self, method: methods.SessionClosed) -> None:
        code, text = method.reply_code, method.reply_text
        if not (self.closing and code == OK):
            oldest = next(iter(self.pending.values()), None)
            if self.opening:
                self.emit(operations.Failed(self.number, 1, 1, code, text))
            elif isinstance(oldest, Step):
                # What was complete was said before: it is the first of the others.
                self.emit(operations.Failed(self.number, oldest.serial, oldest.serial, code, text))
        self._over(code, text, not self.closing)

    def _detached(self, method: methods.SessionDetached) -> None:
        self._over(OK, "the server detached the session", True)

    def _over(self, code: int, text: str, by_peer: bool) -> None:
        self.session.detach(self)
        self.emit(operations.ChannelClosed(self.number, code, text, by_peer))

    def asked_with(self, key: int) -> Step | None:
        """The oldest of the user's requests under way that was sent as the method of that key."""
        steps = (step for step in self.pending.values() if isinstance(step, Step))
        return next((step for step in steps if step.key == key), None)

    def fail_request(self, key: int, code: int, text: str) -> None:
        """The method of that key failed, and the connection with it: that is the outcome of the request."""
        step = self.asked_with(key)
        assert step is not None
        self.emit(operations.Failed(self.number, step.serial, step.serial, code, text))

    command_handlers: ClassVar[Mapping[int, Callable[[Any, int, Any], None]]] = {
        **BODIES,
        **dict.fromkeys(
            (
                methods.ExchangeQueryOk.key,
                methods.QueueDeclareOk.key,
                methods.QueuePurgeOk.key,
                methods.QueueDeleteOk.key,
                methods.BindingQueryOk.key,
            ),
            replied,
        ),
    }
    control_handlers: ClassVar[Mapping[int, Callable[[Any, Any], None]]] = {
        **CONTROLS,
        methods.ExecutionComplete.key: completed,
        methods.SessionAttached.key: _attached,
        methods.SessionFlow.key: _flowed,
        methods.SessionClose.key: _close_asked,
        methods.SessionClosed.key: _closed,
        methods.SessionDetached.key: _detached,
    }
    responses: ClassVar[Mapping[int, Callable[[Any, int, int, Any], None]]] = {
        methods.MessageOk.key: accepted,
        methods.MessageEmpty.key: emptied,
        methods.MessageReject.key: rejected,
    }


def _code_of(method: methods.MessageReject) -> int:
    """The reply code that a rejection of a publish stands for. What is generic and names no other code is unroutable:
    that is what a broker was asked to say."""
    if method.code == NOT_DELIVERED:
        return NO_CONSUMERS
    named = (code for code, name in REPLY_CODES.items() if method.text.startswith(name))
    return next(named, NO_ROUTE)


SETTLEMENTS: Final[Mapping[operations.Settlement, Method]] = {
    operations.Settlement.ACCEPT: methods.MessageOk(),
    operations.Settlement.RELEASE: methods.MessageReject(NOT_DELIVERED, "released"),
    operations.Settlement.REJECT: methods.MessageReject(GENERIC, "rejected"),
}
"""What a settlement becomes."""

SENDERS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], None]]] = {
    operations.Publish: ClientChannel.publish,
    operations.Settle: ClientChannel.settle,
    operations.Flow: ClientChannel.flow,
    operations.CloseChannel: ClientChannel.close,
}
"""What is no command with an outcome of its own."""

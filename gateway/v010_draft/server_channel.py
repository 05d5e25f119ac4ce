"""A session that a client has opened, as the server sees it: commands become operations, outcomes become completion.

The operations that a client sends get serials here; :attr:`ServerChannel.publishes` and :attr:`ServerChannel.asked` say
which command each is, until its outcome comes. In a transaction, publishes are complete when that ends.

A client may open a session by ``session.open`` or, as in the versions before, by ``channel.open``; :data:`WAYS` is what
it is answered, and told at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from uuid import UUID

from gateway.amqp import operations
from gateway.classic.frames import reply_text
from gateway.classic.methods import AccessRequest, AccessRequestOk, Method
from gateway.errors import FrameSyntaxError, StateError, Unsupported
from gateway.v010_draft import methods
from gateway.v010_draft.attached import BODIES, CONTROLS, Attached
from gateway.v010_draft.server_requests import NOT_FOUND, REPLIES, REQUESTS
from gateway.v010_draft.translate import (
    IMMEDIATE,
    REDELIVERED,
    REJECT_UNROUTABLE,
    Transfer,
    read_message,
    write_properties,
)

if TYPE_CHECKING:
    from gateway.v010_draft.server import ServerSession

OPEN_SERIAL: Final = 1
OK: Final = 200
NO_CONSUMERS: Final = 313
RESOURCE_ERROR: Final = 506
GENERIC: Final = 0
NOT_DELIVERED: Final = 1
TICKET: Final = 1
"""What access.request is answered: every ticket gives every right."""


class Way(NamedTuple):
    """How a session was opened."""

    opened: Callable[[UUID], Method]
    closed: Callable[[int, str], Method]
    """Code, text -> what ends it unasked."""
    close_ok: Callable[[], Method]
    """The answer to the client's close."""


WAYS: Final[Mapping[int, Way]] = {
    methods.SessionOpen.key: Way(
        lambda name: methods.SessionAttached(name, 0), methods.SessionClosed, lambda: methods.SessionClosed(OK, "")
    ),
    methods.ChannelOpen.key: Way(
        lambda name: methods.ChannelOpenOk(),
        lambda code, text: methods.ChannelClose(code, text, 0, 0),
        methods.ChannelCloseOk,
    ),
}


class ServerChannel(Attached):
    """See the module."""

    __slots__ = (
        "_close_ok", "asked", "consumers", "publishes", "serial", "session", "transacted", "transaction", "way",
    )  # fmt: skip

    session: ServerSession

    def __init__(self, session: ServerSession, number: int, way: Way) -> None:
        super().__init__(session, number)
        self.way = way
        self.serial = OPEN_SERIAL
        self.publishes: dict[int, int] = {}
        """Serial -> command id of those without an outcome."""
        self.asked: dict[int, tuple[int, Method]] = {}
        """The same for other requests, with the command."""
        self.consumers: set[str] = set()
        """Destinations that there may be transfers to."""
        self.transacted = False
        self.transaction: dict[int, int] = {}
        """Publishes that are noted, and complete when the transaction ends."""
        self._close_ok: Method | None = None
        """The client wants to close it, and waits for that."""
        self.emit(operations.OpenChannel(number, serial=OPEN_SERIAL))

    def emit(self, operation: operations.Operation) -> None:
        """Return an operation from ``receive_data``."""
        self.session.emit(operation)

    # ------------------------------------------------------------------------------------------- receiving

    def _next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def transferred(self, number: int, transfer: Transfer, body: bytes) -> None:
        """A publish."""
        serial = self._next_serial()
        self.publishes[serial] = number
        self.emit(
            operations.Publish(
                self.number,
                transfer.destination,
                transfer.routing_key,
                read_message(transfer, body),
                transfer.flags & REJECT_UNROUTABLE != 0,
                transfer.flags & IMMEDIATE != 0,
                serial=serial,
            )
        )

    def oversized(self, number: int, transfer: Transfer, size: int, limit: int) -> None:
        """A publish that is refused."""
        text = reply_text(RESOURCE_ERROR, f"a message of {size} octets is over the limit of {limit}")
        self.respond(methods.MessageReject(GENERIC, text), number, number)
        self.done(number)

    def request(self, number: int, method: Method) -> None:
        """A command of :data:`~gateway.v010_draft.server_requests.REQUESTS`."""
        operation: Any = REQUESTS[method.key](self.number, method)
        operation.serial = serial = self._next_serial()
        self.asked[serial] = (number, method)
        self.emit(operation)

    def consume(self, number: int, method: methods.MessageConsume) -> None:
        """message.consume."""
        self.consumers.add(method.destination)
        self.request(number, method)

    def tx_select(self, number: int, method: methods.TxSelect) -> None:
        """tx.select: what follows belongs to a transaction."""
        self.transacted = True
        self.request(number, method)

    def access(self, number: int, method: AccessRequest) -> None:
        """access.request."""
        self.command(AccessRequestOk(TICKET))
        self.done(number)

    def settle(self, first: int, last: int, method: Method) -> None:
        """message.ok and reject of deliveries."""
        settlement = operations.Settlement.ACCEPT
        if isinstance(method, methods.MessageReject):
            if method.code not in REJECTIONS:
                raise FrameSyntaxError(f"message.reject with code {method.code}, which is neither 0 nor 1", 502)
            settlement = REJECTIONS[method.code]
        last = min(last, self.sent - 1)
        if first <= last:
            self.emit(operations.Settle(self.number, settlement, first + 1, last + 1, serial=self._next_serial()))

    def flow(self, method: methods.SessionFlow | methods.ChannelFlow) -> None:
        """session.flow, channel.flow."""
        reply = methods.SessionFlowOk if isinstance(method, methods.SessionFlow) else methods.ChannelFlowOk
        self.control(reply(method.active))
        self.emit(operations.Flow(self.number, method.active, serial=self._next_serial()))

    def close_asked(self, method: Method) -> None:
        """session.close, session.suspend, which asks for more than there is, and channel.close."""
        self._close_ok = (
            methods.SessionDetached() if isinstance(method, methods.SessionSuspend) else self.way.close_ok()
        )
        self.emit(operations.CloseChannel(self.number, serial=self._next_serial()))

    def closed_by_client(self, method: methods.SessionClosed) -> None:
        """session.closed: the server sent something wrong."""
        self.session.detach(self)
        self.emit(operations.ChannelClosed(self.number, method.reply_code, method.reply_text))

    def fault(self, code: int, text: str) -> None:
        """See :class:`~gateway.v010_draft.attached.Attached`."""
        self._end(code, text)
        self.emit(operations.ChannelClosed(self.number, code, text, False))

    command_handlers: ClassVar[Mapping[int, Callable[[Any, int, Any], None]]] = {
        **BODIES,
        **dict.fromkeys(REQUESTS, request),
        methods.MessageConsume.key: consume,
        methods.TxSelect.key: tx_select,
        AccessRequest.key: access,
    }
    control_handlers: ClassVar[Mapping[int, Callable[[Any, Any], None]]] = {
        **CONTROLS,
        methods.ExecutionComplete.key: Attached.pass_over,
        methods.SessionFlow.key: flow,
        methods.SessionClose.key: close_asked,
        methods.SessionSuspend.key: close_asked,
        methods.SessionClosed.key: closed_by_client,
        methods.ChannelFlow.key: flow,
        methods.ChannelFlowOk.key: Attached.pass_over,
        methods.ChannelClose.key: close_asked,
    }
    responses: ClassVar[Mapping[int, Callable[[Any, int, int, Any], None]]] = {
        methods.MessageOk.key: settle,
        methods.MessageReject.key: settle,
        methods.MessageOffset.key: lambda channel, first, last, method: None,
    }

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: operations.Operation) -> int:
        """Put an outcome or a delivery on the wire."""
        sender = SENDERS.get(type(operation))
        if sender is None:
            raise Unsupported(f"a server of 0-10's transitional draft does not send {type(operation).__name__}")
        self.session.dirty[self.number] = self
        return sender(self, operation) or 0

    def _send_message(self, operation: operations.Deliver | operations.Got, destination: str) -> int:
        """message.transfer; the delivery's number."""
        message = operation.message
        flags = REDELIVERED if operation.redelivered else 0
        properties = write_properties(message, None)
        number = self.transfer(destination, flags, operation.exchange, operation.routing_key, properties, message.body)
        return number + 1

    def deliver(self, operation: operations.Deliver) -> int:
        """A message for a consumer."""
        if operation.consumer_tag not in self.consumers:
            raise StateError(f"channel {self.number}: there is no destination {operation.consumer_tag!r:.80}")
        return self._send_message(operation, operation.consumer_tag)

    def got(self, operation: operations.Got) -> int:
        """A message for a get, and message.ok."""
        number, method = self._asked(operation.first, methods.MessageGet)
        delivery = self._send_message(operation, method.destination)
        del self.asked[operation.first]
        self.respond(methods.MessageOk(), number, number)
        self.done(number)
        return delivery

    def got_nothing(self, operation: operations.GotNothing) -> None:
        """message.empty."""
        number, _ = self._asked(operation.first, methods.MessageGet)
        del self.asked[operation.first]
        self.respond(methods.MessageEmpty(), number, number)
        self.done(number)

    def _asked(self, serial: int, kind: type[Method] = Method) -> tuple[int, Any]:
        entry = self.asked.get(serial)
        if entry is None or not isinstance(entry[1], kind):
            raise StateError(f"channel {self.number}: request {serial} is not waiting for that")
        return entry

    def outcome(self, operation: operations.Outcome) -> None:
        """Done, Consuming, Removed and what else ends requests."""
        opened = operation.first == OPEN_SERIAL and type(operation) is operations.Done
        serials = range(operation.first + opened, operation.last + 1)
        replies = {serial: self._reply_to(serial, operation) for serial in serials}
        if opened:
            self.control(self.way.opened(self.session.fresh_name()))
        for serial, reply in replies.items():
            number, method = self.asked.pop(serial)
            if reply is not None:
                self.command(reply)
            self._carried_out(number, method)

    def _reply_to(self, serial: int, operation: operations.Outcome) -> Method | None:
        """The method that an outcome is for a request, None where its completion says all."""
        _, method = self._asked(serial)
        build = REPLIES.get((type(method), type(operation)))
        return None if build is None or getattr(method, "nowait", False) else build(operation)

    def _carried_out(self, number: int, method: Method) -> None:
        self.done(number)
        if isinstance(method, methods.TxCommit | methods.TxRollback):
            for published in self.transaction.values():
                self.done(published)
            self.transaction.clear()
        elif isinstance(method, methods.MessageCancel):
            self.consumers.discard(method.destination)
        elif isinstance(method, methods.MessageRecover):
            # What follows is delivered anew; what came before is not out any more.
            self.executed.due = True
            self.flush()

    def _publishes(self, first: int, last: int) -> list[int]:
        if last - first > 2 * len(self.publishes):
            return [serial for serial in self.publishes if first <= serial <= last]
        return [serial for serial in range(first, last + 1) if serial in self.publishes]

    def confirm(self, operation: operations.Confirmed) -> None:
        """Publishes are safe; in a transaction, noted."""
        for serial in self._publishes(operation.first, operation.last):
            number = self.publishes.pop(serial)
            if self.transacted:
                self.transaction[serial] = number
            else:
                self.done(number)

    def refused(self, operation: operations.Refused) -> None:
        """Publishes are refused."""
        text = reply_text(operation.code or RESOURCE_ERROR, operation.text)
        for serial in [*self._publishes(operation.first, operation.last), *self._noted(operation)]:
            number = self.publishes.pop(serial, None)
            if number is None:
                number = self.transaction.pop(serial)
            self.respond(methods.MessageReject(GENERIC, text), number, number)
            self.done(number)

    def _noted(self, operation: operations.Outcome) -> list[int]:
        return [serial for serial in self.transaction if operation.first <= serial <= operation.last]

    def returned(self, operation: operations.Returned) -> None:
        """Publishes were not routed. Confirmed, or the end of the transaction, completes them."""
        code = NOT_DELIVERED if operation.code == NO_CONSUMERS else GENERIC
        text = reply_text(operation.code, operation.text)
        for serial in [*self._publishes(operation.first, operation.last), *self._noted(operation)]:
            number = self.publishes.get(serial, self.transaction.get(serial, 0))
            self.respond(methods.MessageReject(code, text), number, number)

    def failed(self, operation: operations.Failed) -> None:
        """The session ends; but exchange.query for what is not there has an answer."""
        entry = self.asked.get(operation.first)
        if entry is not None and isinstance(entry[1], methods.ExchangeQuery) and operation.code == NOT_FOUND:
            del self.asked[operation.first]
            self.command(methods.ExchangeQueryOk("", False, True, {}))
            self.done(entry[0])
        else:
            self._end(operation.code, operation.text)

    def close(self, operation: operations.CloseChannel) -> None:
        """The server ends the session."""
        self._end(operation.code, operation.text)

    def _end(self, code: int, text: str) -> None:
        """Behind what is complete."""
        self.executed.due = True
        self.flush()
        self.control(self.way.closed(code, reply_text(code, text)))
        self.session.detach(self)

    def close_done(self, operation: operations.ChannelClosed) -> None:
        """The outcome of the client's close."""
        if self._close_ok is None:
            raise StateError(f"channel {self.number}: the client has not asked to close it")
        self.flush()
        self.control(self._close_ok)
        self.session.detach(self, by_client=True)

    def peer_flow(self, operation: operations.Flow) -> None:
        """session.flow, channel.flow."""
        flow = methods.SessionFlow if self.way is WAYS[methods.SessionOpen.key] else methods.ChannelFlow
        self.control(flow(operation.active))

    def unheard(self, operation: operations.Cancelled) -> None:
        """The draft has no word for it."""
        self.consumers.discard(operation.consumer_tag)


REJECTIONS: Final[Mapping[int, operations.Settlement]] = {
    GENERIC: operations.Settlement.REJECT,
    NOT_DELIVERED: operations.Settlement.RELEASE,
}
"""What a rejection of a delivery says, by its code."""

SENDERS: Final[Mapping[type[operations.Operation], Callable[[ServerChannel, Any], int | None]]] = {
    operations.Deliver: ServerChannel.deliver,
    operations.Got: ServerChannel.got,
    operations.GotNothing: ServerChannel.got_nothing,
    operations.Confirmed: ServerChannel.confirm,
    operations.Refused: ServerChannel.refused,
    operations.Returned: ServerChannel.returned,
    operations.Failed: ServerChannel.failed,
    operations.Flow: ServerChannel.peer_flow,
    operations.Cancelled: ServerChannel.unheard,
    operations.CloseChannel: ServerChannel.close,
    operations.ChannelClosed: ServerChannel.close_done,
    **dict.fromkeys(
        (
            operations.Done,
            operations.Declared,
            operations.ExchangeFound,
            operations.BindingFound,
            operations.Removed,
            operations.Consuming,
        ),
        ServerChannel.outcome,
    ),
}
"""Operation -> how it goes to the client."""

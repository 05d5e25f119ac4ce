"""A session that a client has attached, as the server sees it: commands become operations, outcomes completion.

The operations that a client sends get serials here; :attr:`ServerChannel.publishes` and :attr:`ServerChannel.asked`
say which command each serial is, until its outcome comes. Completions are queued at the end of a burst, behind the
deliveries that the burst caused, so a message.flush is complete behind what it brought.

Window flow is turned into plain credit: when the client completes deliveries of a subscription in window mode, the
session returns a further :class:`~gateway.amqp.operations.Credit` for the same number of messages and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.amqp import operations
from gateway.errors import LocalError, StateError, Unsupported
from gateway.v010 import commands
from gateway.v010.attached import Attached, Transfer, failure
from gateway.v010.codes import NO_CONSUMERS, error_code
from gateway.v010.controls import (
    SessionAttached,
    SessionCommandPoint,
    SessionDetach,
    SessionDetached,
    SessionFlush,
    SessionRequestTimeout,
    SessionTimeout,
)
from gateway.v010.execution import RangeSet, unwrap_ranges, within
from gateway.v010.fields import Ranges
from gateway.v010.replay import Replay
from gateway.v010.server_requests import MISSING, REQUESTS, RESULTS, SETTLEMENTS
from gateway.v010.translate import DISCARD_UNROUTABLE, IMMEDIATE, REDELIVERED, read_delivery, read_message, write_header

if TYPE_CHECKING:
    from gateway.v010.server import ServerSession

ATTACH_SERIAL: Final = 1
REMEMBERED_MAX: Final = 1_024
"""How many requests without an outcome are remembered, in case one fails all the same."""
WINDOW_MAX: Final = 1 << 16
"""Most deliveries of a session that may be incomplete where credit comes back by completion. A client that asks for
more loses the session."""
GONE_MAX: Final = 1_024
"""How many subscriptions are remembered that the server has ended and the client has not."""
RESOURCE_LIMIT: Final = 506
UNLIMITED_FLOW: Final = 0x7FFFFFFF
SESSION_BUSY: Final = 1
UNKNOWN_IDS: Final = 4
"""Codes of session.detached."""
KEPT_MAX: Final = 8
"""How many sessions of a connection may outlive it; together they hold no more than it may spool."""
CHANNEL_AT: Final = 6
"""Where the channel lies in a frame."""


class Destination:
    """A subscription of the client."""

    __slots__ = ("gone", "limited", "prefix", "window")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        """The frame of message.transfer to it."""
        self.limited = False
        """Its credit had a limit at some time."""
        self.gone = False
        """Ended by the server; the client does not know."""
        self.window = True
        """Qpid begins in window mode."""


class ServerChannel(Attached):
    """See the module."""

    __slots__ = (
        "_cancelling", "_detaching", "_gone", "_left", "_remembered", "_silent", "_stopped", "_windows", "asked",
        "destinations", "emit", "publishes", "serial", "session", "transacted", "transaction", "windowed",
    )  # fmt: skip

    session: ServerSession

    def __init__(self, session: ServerSession, wire: int, name: bytes) -> None:
        super().__init__(session, wire, name)
        self.emit = session.events.append
        self.serial = ATTACH_SERIAL
        self.publishes: dict[int, int] = {}
        """Serial -> command id of those without an outcome."""
        self.asked: dict[int, tuple[int, commands.Command]] = {}
        """The same for other requests, with the command."""
        self.destinations: dict[str, Destination] = {}
        self.windowed: dict[int, tuple[str, int]] = {}
        """Delivered in window mode and not complete: command id -> destination and octets."""
        self._windows: dict[str, dict[int, None]] = {}
        """Destination -> its part of them."""
        self.transacted = False
        self.transaction: dict[int, int] = {}
        """The publishes of the transaction: they may be returned at its end, long complete."""
        self._silent: set[int] = set()
        """Serials of publishes in accept-mode none: they get no answer."""
        self._remembered: dict[int, tuple[int, int]] = {}
        self._detaching: bytes | None = None
        """The client wants to detach, and waits."""
        self._cancelling: dict[int, Destination] = {}
        """What each message.cancel without an outcome ends: until then it delivers."""
        self._gone: dict[str, Destination] = {}
        """The latest subscriptions that are gone."""
        self._stopped = False
        self._left: list[ServerSession] = []
        """The connections that it was on before."""
        self.emit(operations.OpenChannel(self.number, state=self, name=name, serial=ATTACH_SERIAL))

    # ----------------------------------------------------------------------------- outliving the connection

    def _request_timeout(self, control: SessionRequestTimeout) -> None:
        most = self.session.config.session_timeout
        timeout = most if control.timeout is None else min(control.timeout, most)
        if timeout and self.keep is None:
            if self.sent or self.session.kept() >= KEPT_MAX:
                timeout = 0
            else:
                self.keep = Replay(self.session.limits.spool_max // KEPT_MAX)
        if not timeout:
            self.keep = None
        self.timeout = timeout
        self.tell(SessionTimeout(timeout))

    def part(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        super().part()
        if self.held:
            self.session.parted[self.number] = self
            self._left.append(self.session)

    def release(self) -> None:
        """Another connection wants the session."""
        self.leave(SESSION_BUSY)

    def leave(self, code: int) -> None:
        """Detach it, and keep it."""
        self.flush()
        self.tell(SessionDetached(self.name, code))
        self.part()
        self.session.detach(self.wire)

    def reattach(self, session: ServerSession, wire: int) -> None:
        """Go on with it on another channel, once the client has said what it has not received."""
        self.move(session, wire)
        self.emit = session.events.append
        channel = wire.to_bytes(2, "big")
        for destination in {*self.destinations.values(), *self._cancelling.values()}:
            prefix = destination.prefix
            destination.prefix = prefix[:CHANNEL_AT] + channel + prefix[CHANNEL_AT + 2 :]
        self.tell(SessionAttached(self.name))
        self.tell(SessionFlush(expected=True))

    def back(self) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        for session in self._left:
            session.parted = {number: each for number, each in session.parted.items() if each is not self}
        self._left.clear()
        self.emit(operations.OpenChannel(self.number, state=self, name=self.name, resumed=True))

    def unknown(self) -> None:
        """See :class:`~gateway.v010.attached.Attached`: it is not the client that had the session."""
        self.tell(SessionDetached(self.name, UNKNOWN_IDS))
        self.session.detach(self.wire)

    # ------------------------------------------------------------------------------------------- receiving

    def _next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def transferred(self, number: int, transfer: Transfer, header: bytes, body: bytes) -> None:
        """A publish."""
        flags, _, routing_key = read_delivery(header)
        self.serial = serial = self.serial + 1
        self.publishes[serial] = number
        if not transfer.explicit:
            self._silent.add(serial)
        elif self.transacted:
            self.transaction[serial] = number
        if self.transacted:
            self.received.complete(number, number)
        self.emit(
            operations.Publish(
                self.number,
                transfer.destination,
                routing_key,
                read_message(header, body),
                not flags & DISCARD_UNROUTABLE,
                flags & IMMEDIATE != 0,
                serial=serial,
            )
        )

    def oversized(self, number: int, transfer: Transfer, header: bytes, size: int, limit: int) -> None:
        """A publish that is refused."""
        text = f"a message of {size} octets is over the limit of {limit}"
        if transfer.explicit:
            self.write(commands.MessageReject(_one(number), commands.UNSPECIFIED, text))
            self.received.complete(number, number)
        else:
            self.broken(number, RESOURCE_LIMIT, text, commands.TRANSFER)

    def request(self, number: int, command: commands.Command) -> None:
        """A command of :data:`~gateway.v010.server_requests.REQUESTS`."""
        operation: Any = REQUESTS[type(command)](self.number, command)
        self.ask(number, command, operation)

    def ask(self, number: int, command: commands.Command, operation: Any) -> None:
        """Return an operation whose outcome completes the command."""
        operation.serial = serial = self._next_serial()
        self.asked[serial] = (number, command)
        self.emit(operation)

    def say(self, number: int, command: commands.Command, operation: Any) -> None:
        """Return an operation that has no outcome; the command is complete."""
        operation.serial = serial = self._next_serial()
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[serial] = (number, command.code)
        self.received.complete(number, number)
        self.emit(operation)

    def subscribe(self, number: int, command: commands.MessageSubscribe) -> None:
        """message.subscribe."""
        explicit = command.accept_mode == commands.EXPLICIT
        prefix = self.transfer_prefix(command.destination, command.accept_mode, command.acquire_mode)
        self.destinations[command.destination] = Destination(prefix)
        consume = operations.Consume(
            self.number,
            command.queue,
            command.destination,
            no_ack=not explicit,
            exclusive=command.exclusive,
            arguments=command.arguments or {},
            acquired=command.acquire_mode == commands.PRE_ACQUIRED,
            credit=True,
        )
        self.ask(number, command, consume)

    def cancel(self, number: int, command: commands.MessageCancel) -> None:
        """message.cancel."""
        destination = self.destinations.get(command.destination)
        if destination is not None:
            self._cancelling[self.serial + 1] = destination
        self._forget_window(command.destination)
        self.request(number, command)

    def settle(
        self, number: int, command: commands.MessageAccept | commands.MessageRelease | commands.MessageReject
    ) -> None:
        """message.accept, release and reject."""
        settlement = SETTLEMENTS[type(command)]
        received = self.received
        received.complete(number, number)
        for first, last in self._transferred(command.transfers):
            self.emit(operations.Settle(self.number, settlement, first, last, serial=self._next_serial()))

    def acquire(self, number: int, command: commands.MessageAcquire) -> None:
        """message.acquire: the client wants what it was only shown."""
        self.ask(number, command, operations.Acquire(self.number, self._transferred(command.transfers)))

    def _transferred(self, ranges: Ranges) -> Ranges:
        """The deliveries that a sequence-set names, as disjoint ranges: a client may name one a thousand times."""
        merged = RangeSet()
        for first, last in sorted(unwrap_ranges(ranges, self.sent)):
            first, last = max(first, 0), min(last, self.sent - 1)
            if first <= last:
                merged.add(first + 1, last + 1)
        return tuple(merged)

    def tx_select(self, number: int, command: commands.TxSelect) -> None:
        """tx.select: what follows belongs to a transaction."""
        self.transacted = True
        self.request(number, command)

    def _destination(self, number: int, command: Any) -> Destination | None:
        destination = self.destinations.get(command.destination)
        if destination is None:
            text = f"there is no subscription with the destination '{command.destination}'"
            self.broken(number, error_code(404), text, command.code)
        elif destination.gone:
            self.received.complete(number, number)
            return None
        return destination

    def flow_mode(self, number: int, command: commands.MessageSetFlowMode) -> None:
        """message.set-flow-mode."""
        if (destination := self._destination(number, command)) is not None:
            destination.window = command.flow_mode == commands.WINDOW
            self.received.complete(number, number)

    def flow(self, number: int, command: commands.MessageFlow) -> None:
        """message.flow."""
        if (destination := self._destination(number, command)) is None:
            return
        amount = None if command.value == commands.UNLIMITED else command.value
        destination.limited = destination.limited or amount is not None
        messages, octets = (amount, 0) if command.unit == commands.MESSAGES else (0, amount)
        self.say(
            number, command, operations.Credit(self.number, command.destination, messages, octets, destination.window)
        )

    def stop(self, number: int, command: commands.MessageStop) -> None:
        """message.stop. What is out in window mode gives no credit back."""
        if (destination := self._destination(number, command)) is None:
            return
        self._forget_window(command.destination)
        self.say(
            number,
            command,
            operations.Credit(self.number, command.destination, window=destination.window, stopped=True),
        )

    def flush_credit(self, number: int, command: commands.MessageFlush) -> None:
        """message.flush."""
        if (destination := self._destination(number, command)) is None:
            return
        self._forget_window(command.destination)
        self.ask(
            number, command, operations.Credit(self.number, command.destination, window=destination.window, flush=True)
        )

    def sync(self, number: int, command: commands.ExecutionSync) -> None:
        """execution.sync: complete when everything before it is."""
        self.received.barrier(number)

    def result(self, number: int, command: commands.ExecutionResult) -> None:
        """Nothing was asked of the client."""
        self.received.complete(number, number)

    def exception(self, number: int, command: commands.ExecutionException) -> None:
        """The client could not carry out a command of the server; the session is over."""
        code, text = failure(command, 0)
        self.tell(SessionDetach(self.name))
        self.failed = True
        self.emit(operations.ChannelClosed(self.number, code, text))

    def _forget_window(self, destination: str) -> None:
        for number in self._windows.pop(destination, ()):
            del self.windowed[number]

    def completed(self, ranges: list[tuple[int, int]]) -> None:
        """See :class:`~gateway.v010.attached.Attached`: credit comes back in window mode."""
        windowed = self.windowed
        if not windowed or self.failed:
            return
        credit: dict[str, tuple[int, int]] = {}
        for number in within(windowed, ranges, self.sent - 1):
            destination, size = windowed.pop(number)
            window = self._windows[destination]
            del window[number]
            if not window:
                del self._windows[destination]
            messages, octets = credit.get(destination, (0, 0))
            credit[destination] = (messages + 1, octets + size)
        for destination, (messages, octets) in credit.items():
            self.emit(operations.Credit(self.number, destination, messages, octets, True, serial=self._next_serial()))

    def _detach(self, control: SessionDetach) -> None:
        if self.failed:
            self.tell(SessionDetached(control.name, 0))
            self.session.detach(self.wire)
            return
        if self.timeout and self.keep is not None:
            self.leave(0)
            return
        self._detaching = control.name
        self.emit(operations.CloseChannel(self.number, serial=self._next_serial()))

    def detached(self, code: int, asked: bool) -> None:
        """See :class:`~gateway.v010.attached.Attached`: the answer to our detach, or one that nobody asked for."""
        self.session.detach(self.wire)
        if not self.failed:
            self.emit(operations.ChannelClosed(self.number, 200, "detached"))

    def broken(self, number: int, code: int, text: str, command: int) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        super().broken(number, code, text, command)
        self.emit(operations.ChannelClosed(self.number, code, text, False))

    command_handlers: ClassVar[Mapping[type[commands.Command], Callable[[Any, int, Any], None]]] = {
        **dict.fromkeys(REQUESTS, request),
        **dict.fromkeys(SETTLEMENTS, settle),
        commands.TxSelect: tx_select,
        commands.ExecutionSync: sync,
        commands.ExecutionResult: result,
        commands.ExecutionException: exception,
        commands.MessageTransfer: Attached.bare_transfer,
        commands.MessageAcquire: acquire,
        commands.MessageSubscribe: subscribe,
        commands.MessageCancel: cancel,
        commands.MessageSetFlowMode: flow_mode,
        commands.MessageFlow: flow,
        commands.MessageFlush: flush_credit,
        commands.MessageStop: stop,
    }

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: operations.Operation) -> int:
        """Put an outcome or a delivery on the wire."""
        kind = type(operation)
        if self.failed:
            raise StateError(f"channel {self.number} has failed: no {kind.__name__}")
        sender = SENDERS.get(kind)
        if sender is None:
            raise Unsupported(f"a server of 0-10 does not send {kind.__name__}")
        self.session.dirty[self.wire] = self
        return sender(self, operation) or 0

    def deliver(self, operation: operations.Deliver) -> int:
        """message.transfer with its content; the delivery's number."""
        destination = self.destinations.get(operation.consumer_tag)
        if destination is None or destination.gone:
            raise StateError(f"channel {self.number}: there is no subscription {operation.consumer_tag!r:.80}")
        if len(self.windowed) >= WINDOW_MAX:
            raise LocalError(f"{WINDOW_MAX} deliveries are not complete")
        message = operation.message
        flags = REDELIVERED if operation.redelivered else 0
        header = write_header(message, operation.routing_key, flags, operation.exchange, None)
        number = self.transfer(destination.prefix, header, message.body)
        if destination.window and destination.limited:
            self.windowed[number] = (operation.consumer_tag, len(message.body))
            self._windows.setdefault(operation.consumer_tag, {})[number] = None
        return number + 1

    def outcome(self, operation: operations.Outcome) -> None:
        """Done, Consuming, Removed and what else ends requests."""
        attached = operation.first == ATTACH_SERIAL and type(operation) is operations.Done
        serials = range(operation.first + attached, operation.last + 1)
        results = {serial: self._result_of(serial, operation) for serial in serials}
        if attached:
            self.tell(SessionAttached(self.name))
            self.tell(SessionCommandPoint(0, 0))
        for serial, result in results.items():
            number, command = self.asked.pop(serial)
            if result is not None:
                self.write(commands.ExecutionResult(number & 0xFFFFFFFF, result))
            elif isinstance(command, commands.MessageCancel):
                self._cancelled(serial, command.destination)
            elif isinstance(command, commands.TxCommit | commands.TxRollback):
                self.transaction.clear()
            self.received.complete(number, number)

    def _cancelled(self, serial: int, name: str) -> None:
        """The subscription is gone, unless the client has made another of that name since."""
        destination = self._cancelling.pop(serial, None)
        if destination is not None and self.destinations.get(name) is destination:
            del self.destinations[name]

    def _result_of(self, serial: int, operation: operations.Outcome) -> bytes | None:
        """The result that an outcome is for a request, None where its completion says all."""
        entry = self.asked.get(serial)
        if entry is None:
            raise StateError(f"channel {self.number}: request {serial} is not waiting for an outcome")
        build = RESULTS.get((type(entry[1]), type(operation)))
        return None if build is None else build(operation).encode()

    def _publishes(self, first: int, last: int) -> list[int]:
        if last - first > 2 * len(self.publishes):
            return [serial for serial in self.publishes if first <= serial <= last]
        return [serial for serial in range(first, last + 1) if serial in self.publishes]

    def confirm(self, operation: operations.Confirmed) -> None:
        """Publishes are safe: their commands are complete."""
        publishes = self.publishes
        complete = self.received.complete
        silent = self._silent
        start, end = -1, -2
        for serial in self._publishes(operation.first, operation.last):
            number = publishes.pop(serial)
            if silent:
                silent.discard(serial)
            if number != end + 1:
                if start >= 0:
                    complete(start, end)
                start = number
            end = number
        if start >= 0:
            complete(start, end)

    def refused(self, operation: operations.Refused) -> None:
        """Publishes are refused: message.reject, where the client asked to be told; else the session ends."""
        for serial in self._publishes(operation.first, operation.last):
            number = self.publishes.pop(serial)
            self.transaction.pop(serial, None)
            text = operation.text or "refused"
            if serial in self._silent:
                self.broken(number, error_code(operation.code or RESOURCE_LIMIT), text, commands.TRANSFER)
                return
            self.write(commands.MessageReject(_one(number), commands.UNSPECIFIED, _short(text)))
            self.received.complete(number, number)

    def returned(self, operation: operations.Returned) -> None:
        """A publish was not routed: message.reject, where the client asked to be told. Confirmed completes it."""
        code = commands.IMMEDIATE if operation.code == NO_CONSUMERS else commands.UNROUTABLE
        for serial in range(operation.first, operation.last + 1):
            number = self.publishes.get(serial, self.transaction.get(serial))
            if number is not None and serial not in self._silent:
                self.write(commands.MessageReject(_one(number), code, _short(operation.text)))

    def failed_request(self, operation: operations.Failed) -> None:
        """execution.exception, and the session ends; but a query for what is not there has a result."""
        serial = operation.first
        number, code = self._remembered.get(serial, (self.publishes.get(serial), 0))
        if (entry := self.asked.pop(serial, None)) is not None:
            number, command = entry
            code = command.code
            missing = MISSING.get(type(command))
            if missing is not None and operation.code == 404:
                self.write(commands.ExecutionResult(number & 0xFFFFFFFF, missing.encode()))
                self.received.complete(number, number)
                return
        self.refuse(number, error_code(operation.code), operation.text, code)

    def close(self, operation: operations.CloseChannel) -> None:
        """The server ends the session."""
        if operation.code == 200:
            self.tell(SessionDetach(self.name))
            self.failed = True
        else:
            number = self.asked.get(operation.failed, (self.publishes.get(operation.failed),))[0]
            self.refuse(number, error_code(operation.code), operation.text)

    def close_done(self, operation: operations.ChannelClosed) -> None:
        """The outcome of the client's detach."""
        if self._detaching is None:
            raise StateError(f"channel {self.number}: the client has not asked to close it")
        self.flush()
        self.tell(SessionDetached(self._detaching, 0))
        self.session.detach(self.wire)

    def peer_flow(self, operation: operations.Flow) -> None:
        """message.stop and message.flow for all that the client publishes, as Broker-J says it."""
        if operation.active is not self._stopped:
            return
        self._stopped = not operation.active
        if operation.active:
            self.write(commands.MessageFlow("", commands.MESSAGES, UNLIMITED_FLOW))
        else:
            self.write(commands.MessageSetFlowMode("", commands.CREDIT))
            self.write(commands.MessageStop(""))

    def unheard(self, operation: operations.Cancelled) -> None:
        """0-10 has no word for it. What the client still says of the subscription is taken in silence."""
        name = operation.consumer_tag
        destination = self.destinations.get(name)
        if destination is None:
            return
        destination.gone = True
        gone = self._gone
        gone.pop(name, None)
        gone[name] = destination
        if len(gone) > GONE_MAX:
            oldest, destination = next(iter(gone.items()))
            del gone[oldest]
            if self.destinations.get(oldest) is destination:
                del self.destinations[oldest]


def _one(number: int) -> tuple[tuple[int, int], ...]:
    number &= 0xFFFFFFFF
    return ((number, number),)


def _short(text: str) -> str:
    """As much of a text as a str8 holds."""
    return text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


SENDERS: Final[Mapping[type[operations.Operation], Callable[[ServerChannel, Any], int | None]]] = {
    operations.Deliver: ServerChannel.deliver,
    operations.Confirmed: ServerChannel.confirm,
    operations.Refused: ServerChannel.refused,
    operations.Returned: ServerChannel.returned,
    operations.Failed: ServerChannel.failed_request,
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
            operations.Acquired,
            operations.Resumed,
            operations.XaResult,
            operations.RecoverResult,
            operations.GetTimeoutResult,
        ),
        ServerChannel.outcome,
    ),
}
"""Operation -> how it goes to the client."""

"""A session that a client has attached: operations become commands, commands and completions become outcomes.

Everything that was sent and says something when it completes is in :attr:`ClientChannel.pending`, by command id: a
publish as its serial, anything else as a :class:`~gateway.v010.client_requests.Step`. Completions are looked at when
all octets that came together are handled, so that a message.reject in the same burst has its say first whichever
way the broker orders the two.

Broker-J says of a message.transfer that it is complete when it has thrown it away: its virtual host is stopped, and it
closes the connection as soon as it has read what it was sent, yet carries on with the commands until then. What it is
sent after such a completion it does not read any more. So there a publish is confirmed when an execution.sync that
followed its completion is complete, too (:meth:`ClientChannel._prove`); in a branch the prepare that follows says as
much.

Deliveries are completed in the order in which they come, at once: completion is not settlement. A delivery's number
is its command id plus one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.amqp import operations
from gateway.errors import EncodeError, FrameSyntaxError, StateError, Unsupported
from gateway.v010 import commands
from gateway.v010.attached import CACHED_MAX, Attached, Transfer, failure
from gateway.v010.client_dtx import CHECKS_DTX
from gateway.v010.client_requests import REQUESTS, Step, consuming
from gateway.v010.codes import DETACH_REPLY_CODES, NO_CONSUMERS, NO_ROUTE
from gateway.v010.controls import (
    DETACH_CODES,
    SessionAttach,
    SessionAttached,
    SessionCommandPoint,
    SessionDetach,
    SessionFlush,
    SessionRequestTimeout,
    SessionTimeout,
)
from gateway.v010.execution import RangeSet, unwrap, unwrap_ranges, within
from gateway.v010.frames import HEADER_SIZE
from gateway.v010.replay import Replay
from gateway.v010.subscription import Subscription
from gateway.v010.translate import DISCARD_UNROUTABLE, IMMEDIATE, REDELIVERED, read_delivery, read_message, write_header

if TYPE_CHECKING:
    from gateway.v010.client import ClientSession

SYNC_AT: Final = HEADER_SIZE + 3
"""Where in a command's first frame the octet with the sync bit lies."""

_REJECT_CODES: Final = {commands.UNROUTABLE: (NO_ROUTE, "unroutable"), commands.IMMEDIATE: (NO_CONSUMERS, "immediate")}


class SessionStay:
    """How a session comes to a channel, stays when its connection goes, and leaves the channel."""

    __slots__ = ("asked", "granted", "is_attached", "is_detaching", "serial")

    def __init__(self, asked: int) -> None:
        self.asked = asked
        """For how many seconds the session is to stay without a connection."""
        self.granted: int | None = None
        """What the broker made of it; None: it has not said."""
        self.serial = 1
        """The OpenChannel that is under way."""
        self.is_attached = False
        """The broker has said so."""
        self.is_detaching = False
        """The session was asked to leave its channel, and stay."""


class ClientChannel(Attached):
    """See the module."""

    __slots__ = (
        "_completions", "_failure", "_has_settled", "_prefixes", "_settled", "_settling", "_stay", "_sync", "_tags",
        "_topping", "_unproven", "attaching", "closing", "committing", "confirming", "distributed", "emit",
        "outstanding", "peer_credit", "peer_mode", "pending", "prefetch", "serial", "session", "sizes", "stopped",
        "subscriptions", "transacted", "undecided",
    )  # fmt: skip

    session: ClientSession

    def __init__(self, session: ClientSession, wire: int, name: bytes, timeout: int = 0) -> None:
        super().__init__(session, wire, name)
        self._stay = SessionStay(timeout)
        if timeout:
            self.keep = Replay(session.limits.spool_max)
        self.emit = session.events.append
        self.serial = 1
        self.attaching = True
        self.closing = False
        self.confirming = False
        self.transacted = False
        self.distributed = False
        """Behind dtx.select."""
        self.committing = False
        """A commit or rollback is under way: nothing may be sent."""
        self.pending: dict[int, int | Step] = {}
        self.prefetch = (0, 0)
        """Messages and octets, for subscriptions from now on."""
        self.subscriptions: dict[str, Subscription] = {}
        self.outstanding: dict[int, Subscription] = {}
        """Deliveries that are not settled, in order."""
        self.sizes: dict[int, int] = {}
        """Their octets, where a limit in octets wants to know."""
        self.undecided: list[tuple[int, Subscription]] = []
        """What was settled in the transaction."""
        self.stopped = False
        """The broker takes no messages for now."""
        self.peer_mode = commands.WINDOW
        self.peer_credit: int | None = None
        """How many messages the broker still takes; None: no limit was set."""
        self._failure: tuple[int, str] | None = None
        self._completions: list[tuple[int, int]] = []
        self._unproven: list[tuple[int, int]] = []
        """Publishes, by their first and last serial, that are complete, and not confirmed yet."""
        self._prefixes: dict[str, bytes] = {}
        self._settling = operations.Settlement.ACCEPT
        self._settled = RangeSet()
        """What ``_settling`` will be said of."""
        self._has_settled = False
        """Settlements were written."""
        self._topping: dict[Subscription, None] = {}
        self._sync: int | None = None
        """Where in ``out`` the last publish begins."""
        self._tags = count(1)
        self.tell(SessionAttach(name))
        self.tell(SessionRequestTimeout(timeout))
        self.tell(SessionCommandPoint(0, 0))

    # ----------------------------------------------------------------------------- outliving the connection

    @property
    def attached(self) -> bool:
        """To a connection that is not over."""
        return self.session.channels.get(self.wire) is self

    def reattach(self, session: ClientSession, wire: int) -> int:
        """Go on with the session on another channel; the serial of that. By force: the broker may not know yet that
        the old connection is gone."""
        self.move(session, wire)
        self.emit = session.events.append
        self.attaching = True
        self._sync = None
        self._prefixes.clear()
        self.serial = self._stay.serial = self.serial + 1
        self.tell(SessionAttach(self.name, True))
        return self.serial

    def part(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        if not self.closing and (self.resumed or not self.attaching):
            super().part()

    def forgo(self) -> None:
        """The session is to end with its channel."""
        if self.timeout:
            self.timeout = 0
            self.tell(SessionRequestTimeout(0))

    def detach(self, operation: operations.Detach) -> None:
        """session.detach, behind what is to be said; deliveries that are on their way still come."""
        if not self.timeout:
            raise StateError(f"channel {self.number} was opened without a timeout: its session ends with it")
        self.flush()
        self.tell(SessionDetach(self.name))
        self.committing = self._stay.is_detaching = True

    def unknown(self) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        text = "not-found: the broker does not know the session any more"
        self.timeout = 0
        self._give_up(404, text)

    def _give_up(self, code: int, text: str) -> None:
        """The session cannot be used; it ends."""
        self.attaching = False
        self._failure = (code, text)
        self.emit(operations.Failed(self.number, self._stay.serial, self._stay.serial, code, text))
        self.tell(SessionRequestTimeout(0))
        self.tell(SessionDetach(self.name))
        self.failed = True

    def back(self) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        self._ready()

    def _ready(self) -> None:
        self.attaching = False
        self.emit(operations.Done(self.number, self._stay.serial, self._stay.serial))

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, operation: operations.Operation) -> int:
        """Carry out an operation of the user's; its serial."""
        kind = type(operation)
        if kind is operations.Publish:
            return self.publish(operation)  # type: ignore[arg-type]
        self._check_state(kind)
        serial = self.serial + 1
        sender = SENDERS.get(kind)
        if sender is not None:
            sender(self, operation)
            self.serial = serial
            return serial
        request = REQUESTS.get(kind)  # type: ignore[arg-type]
        if request is None:
            raise Unsupported(f"a client of 0-10 does not send {kind.__name__}")
        check = CHECKS.get(kind)
        if check is not None:
            check(self, operation)
        if self._settled:
            self._write_settled()
        # All that may not fit is in the first command of a request, so nothing goes out of one that does not.
        request(self, operation, serial)
        self.serial = serial
        return serial

    def _check_state(self, kind: type) -> None:
        if self.closing or self.failed or self.committing:
            waiting = "detaching" if self._stay.is_detaching else "committing"
            state = "closing" if self.closing else "failed" if self.failed else waiting
            raise StateError(f"channel {self.number} is {state}: no {kind.__name__}")

    def write(self, command: commands.Command, sync: bool = False) -> int:
        """Queue a command, behind the settlements that were asked for before it."""
        if self._settled:
            self._write_settled()
        return super().write(command, sync)

    def ask(self, command: commands.Command, step: Step, sync: bool = True) -> None:
        """Queue a command whose completion or result is awaited."""
        step.code = command.code
        self.pending[self.write(command, sync)] = step

    def publish(self, operation: operations.Publish) -> int:
        """message.transfer with its content."""
        if self.closing or self.failed or self.committing:
            self._check_state(operations.Publish)
        if self._settled:
            self._write_settled()
        session = self.session
        message = operation.message
        flags = (0 if operation.mandatory else DISCARD_UNROUTABLE) | (IMMEDIATE if operation.immediate else 0)
        qpid = session.qpid
        # Broker-J delivers a message with the exchange that its publisher named, and with none otherwise.
        exchange = operation.exchange if qpid else None
        header = write_header(message, operation.routing_key, flags, exchange or None, session.user, qpid)
        prefix = self._prefixes.get(operation.exchange) or self._prefix(operation.exchange)
        keep = self.keep
        if keep is not None and keep.full:
            raise StateError(f"channel {self.number}: {len(keep)} commands are not complete, of {keep.octets} octets")
        if self.peer_credit is not None:
            self._spend()
        if not self.held:
            self._sync = len(self.out)
        number = self.transfer(prefix, header, message.body)
        self.serial = serial = self.serial + 1
        self.pending[number] = serial
        session.dirty[self.wire] = self
        return serial

    def _prefix(self, exchange: str) -> bytes:
        if len(self._prefixes) >= CACHED_MAX:
            self._prefixes.clear()
        prefix = self._prefixes[exchange] = self.transfer_prefix(exchange, commands.EXPLICIT, commands.PRE_ACQUIRED)
        return prefix

    def _spend(self) -> None:
        """A publish takes one of the credits that the broker gave."""
        if not self.peer_credit:
            if self.peer_mode == commands.CREDIT and not self.stopped:
                self._stop(True)
            raise StateError(f"channel {self.number}: the broker has given no credit for another message")
        self.peer_credit -= 1

    def flush(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`: the sync bit, settlements, credit, completions."""
        at = self._sync
        if at is not None:
            buffer = self.out[at]
            self.out[at] = b"%b\x01%b" % (buffer[:SYNC_AT], buffer[SYNC_AT + 1 :])
            self._sync = None
        if self.failed or self.closing:
            return
        if self._settled:
            self._write_settled()
        if self._topping:
            for subscription in self._topping:
                grant = subscription.top_up()
                if grant:
                    super().write(commands.MessageFlow(subscription.destination, commands.MESSAGES, grant))
            self._topping.clear()
        super().flush()

    # ----------------------------------------------------------------------------------------- settlements

    def settle(self, operation: operations.Settle) -> None:
        """message.accept, release or reject of what is outstanding in the range."""
        first, last = operation.first, operation.last or self.received.next
        if self._settling is not operation.settlement:
            if self._settled:
                self._write_settled()
            self._settling = operation.settlement
        outstanding = self.outstanding
        if first == last:
            if first not in outstanding:
                raise StateError(f"channel {self.number}: delivery {first} is not outstanding")
            self._settle_one(first)
        else:
            if last - first < len(outstanding):
                numbers = [number for number in range(first, last + 1) if number in outstanding]
            else:
                numbers = [number for number in outstanding if first <= number <= last]
            if not numbers:
                raise StateError(f"channel {self.number}: no delivery within {first}..{last} is outstanding")
            for number in numbers:
                self._settle_one(number)
        self.session.dirty[self.wire] = self

    def settle_all(self, settlement: operations.Settlement) -> None:
        """The same for everything that is outstanding."""
        self.settle(operations.Settle(self.number, settlement, 0, 0))

    def _settle_one(self, number: int) -> None:
        subscription = self.outstanding.pop(number)
        self._settled.add(number - 1, number - 1)
        subscription.settled(self.sizes.pop(number, 0))
        if not (subscription.unlimited or subscription.ended):
            self._topping[subscription] = None
        if self.transacted:
            self.undecided.append((number, subscription))

    def _write_settled(self) -> None:
        build = SETTLEMENTS[self._settling]
        for ranges in self._settled.chunks():
            super().write(build(tuple((first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in ranges)))
        self._settled.clear()
        self._has_settled = True

    def unsettle(self) -> None:
        """tx.rollback: what the transaction settled is outstanding again."""
        for number, subscription in self.undecided:
            self.outstanding[number] = subscription
            subscription.out += 1
        self.outstanding = dict(sorted(self.outstanding.items()))

    # ---------------------------------------------------------------------------------- subscriptions, flow

    def fresh_tag(self, stem: str = "consumer") -> str:
        """A destination that is not in use."""
        while True:
            tag = f"{stem}-{next(self._tags)}"
            if tag not in self.subscriptions:
                return tag

    def fresh_name(self) -> str:
        """A name for a queue."""
        return f"gw.{self.name.decode()}.{next(self._tags)}"

    def grant(self, subscription: Subscription) -> None:
        """The first credit of a subscription."""
        self.write(commands.MessageFlow(subscription.destination, commands.OCTETS, commands.UNLIMITED))
        credit = commands.UNLIMITED if subscription.unlimited else subscription.first_grant()
        if credit:
            self.write(commands.MessageFlow(subscription.destination, commands.MESSAGES, credit))

    def flow(self, operation: operations.Flow) -> None:
        """Stop the subscriptions of the channel, or let them go on."""
        for subscription in self.subscriptions.values():
            if subscription.ended or subscription.stopped is not operation.active:
                continue
            subscription.stopped = not operation.active
            if operation.active:
                self.grant(subscription)
            else:
                self.write(commands.MessageStop(subscription.destination))

    def close(self, operation: operations.CloseChannel) -> None:
        """session.detach, behind the completion of what was settled: what Broker-J has not carried out when a session
        goes stays in its queue, and nobody gets it nor can purge it."""
        if self._settled:
            self._write_settled()
        self.forgo()
        if self._has_settled:
            self.ask(commands.ExecutionSync(), Step(0, operation, _detach_now))
        else:
            self.tell(SessionDetach(self.name))
        self.closing = True

    # -------------------------------------------------------------------------------------------- receiving

    def transferred(self, number: int, transfer: Transfer, header: bytes, body: bytes) -> None:
        """A delivery."""
        if self.closing:
            return
        number += 1
        subscription = self._take(number, transfer.destination, len(body))
        flags, exchange, routing_key = read_delivery(header)
        redelivered = flags & REDELIVERED != 0
        message = read_message(header, body, self.session.qpid)
        step = subscription.get
        if step is None:
            self.emit(
                operations.Deliver(
                    self.number, subscription.destination, number, redelivered, exchange, routing_key, message
                )
            )
        else:
            serial = step.serial
            subscription.get = None
            self.emit(operations.Got(self.number, serial, serial, number, redelivered, exchange, routing_key, message))

    def oversized(self, number: int, transfer: Transfer, header: bytes, size: int, limit: int) -> None:
        """A delivery that is outstanding like any other, but has no body."""
        if self.closing:
            return
        number += 1
        subscription = self._take(number, transfer.destination, size)
        flags, exchange, routing_key = read_delivery(header)
        tag = "" if subscription.get is not None else transfer.destination
        redelivered = flags & REDELIVERED != 0
        self.emit(
            operations.DeliveryTooLarge(self.number, tag, number, size, limit, redelivered, exchange, routing_key)
        )

    def _take(self, number: int, destination: str, size: int) -> Subscription:
        """Note a delivery; whose it is."""
        subscription = self.subscriptions.get(destination)
        if subscription is None:
            raise FrameSyntaxError(f"a transfer to {destination!r:.80}, to which nothing is subscribed")
        if subscription.starting is not None:
            consuming(self, subscription.starting)
        if not subscription.no_ack:
            self.outstanding[number] = subscription
            subscription.credit -= 1
            subscription.out += 1
            if subscription.size_max:
                subscription.measured(size)
                self.sizes[number] = size
                self._topping[subscription] = None
                self.session.dirty[self.wire] = self
            elif subscription.credit == 0 and subscription.owed:  # nothing may be settled that would give it back
                self._topping[subscription] = None
                self.session.dirty[self.wire] = self
        return subscription

    def received_all(self) -> None:
        """See :class:`~gateway.v010.connection.Attachment`."""
        received = self.received
        if received.low < received.next:
            received.complete(received.low, received.next - 1)
        if self._completions:
            self._complete()
        super().received_all()

    def completed(self, ranges: list[tuple[int, int]]) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        self._completions += ranges

    def _under_way(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        """The ids within the ranges that are pending, in order, each once. The ranges may be lies."""
        return within(self.pending, ranges, self.sent - 1)

    def _complete(self) -> None:
        ranges, self._completions = self._completions, []
        pending = self.pending
        start = end = 0
        for number in self._under_way(ranges):
            step = pending.pop(number)
            if type(step) is int:
                if step != end + 1:
                    self._confirm(start, end)
                    start = step
                end = step
            elif step.complete is not None:  # type: ignore[union-attr]
                self._confirm(start, end)
                start = end = 0
                step.complete(self, step)  # type: ignore[union-attr,arg-type]
            elif step.result is not None:  # type: ignore[union-attr]
                raise FrameSyntaxError(f"command {number & 0xFFFFFFFF} is complete, and its result never came")
        self._confirm(start, end)
        if self._unproven:
            self._prove()

    def _confirm(self, first: int, last: int) -> None:
        if not first or not self.confirming:
            return
        if self.session.qpid and not self.distributed:
            self._unproven.append((first, last))
        else:
            self.emit(operations.Confirmed(self.number, first, last))

    def _prove(self) -> None:
        """Ask for a sign of life behind completions. Where nothing can be asked any more, what became of the publishes
        is not known."""
        ranges, self._unproven = self._unproven, []
        if not self.closing and not self.failed:
            self.ask(commands.ExecutionSync(), Step(0, ranges, _proven))

    def rejected(self, number: int, command: commands.MessageReject) -> None:
        """message.reject of publishes."""
        code, text = _REJECT_CODES.get(command.code_, (0, ""))
        for publish in self._under_way(unwrap_ranges(command.transfers, self.sent)):
            serial = self.pending[publish]
            if not isinstance(serial, int):
                continue
            del self.pending[publish]
            if code:
                self.emit(operations.Returned(self.number, serial, serial, code, command.text or text))
            elif self.confirming:
                self.emit(operations.Refused(self.number, serial, serial, 0, command.text or "rejected"))

    def accepted(self, number: int, command: commands.MessageAccept) -> None:
        """message.accept of publishes: the broker has them."""
        self._completions += unwrap_ranges(command.transfers, self.sent)

    def result(self, number: int, command: commands.ExecutionResult) -> None:
        """The result of a query."""
        step = self.pending.get(unwrap(command.command_id, self.sent))
        if isinstance(step, Step) and step.result is not None:
            result, step.result = step.result, None
            result(self, step, command.value)

    def exception(self, number: int, command: commands.ExecutionException) -> None:
        """A command failed, and the session with it."""
        if self._completions:
            self._complete()
        step = None if command.command_id is None else self.pending.get(unwrap(command.command_id, self.sent))
        sent = 0 if step is None else commands.TRANSFER if isinstance(step, int) else step.code
        code, text = self._failure = failure(command, sent)
        self.failed = True
        if step is not None:
            serial = step if isinstance(step, int) else step.serial
            self.emit(operations.Failed(self.number, serial, serial, code, text))

    def sync(self, number: int, command: commands.ExecutionSync) -> None:
        """Everything is complete as it comes, so this is too."""
        self.received.want(number)

    def peer_stop(self, number: int, command: commands.MessageStop) -> None:
        """The broker takes no more messages."""
        if self.peer_mode == commands.CREDIT:
            self.peer_credit = 0
        self._stop(True)

    def peer_flow(self, number: int, command: commands.MessageFlow) -> None:
        """The broker takes messages again, or more of them."""
        if command.unit == commands.MESSAGES and command.value:
            if command.value >= 0x7FFFFFFF:
                self.peer_credit = None
            elif self.peer_credit is not None:
                self.peer_credit += command.value
            self._stop(False)

    def peer_flow_mode(self, number: int, command: commands.MessageSetFlowMode) -> None:
        """How the broker counts what it takes. It says what it takes next."""
        self.peer_mode = command.flow_mode

    def _stop(self, stopped: bool) -> None:
        if stopped is not self.stopped:
            self.stopped = stopped
            self.emit(operations.Flow(self.number, not stopped))

    # ------------------------------------------------------------------------------------------ the session

    def _attached(self, control: SessionAttached) -> None:
        if not self.attaching:
            return
        if self.resumed:
            self.tell(SessionRequestTimeout(self._stay.asked))
            self.tell(SessionFlush(expected=True, completed=True))
        elif not self._stay.asked:
            self._ready()
        else:
            self._stay.is_attached = True
            self._open_for_long()

    def _timeout(self, control: SessionTimeout) -> None:
        """How long the broker keeps the session."""
        if not self._stay.asked or self.closing or self.failed:
            return
        asked = self._stay.asked
        self.timeout = self._stay.granted = asked if control.timeout is None else min(control.timeout, asked)
        if self.attaching and not self.resumed:
            self._open_for_long()

    def _open_for_long(self) -> None:
        """Both answers are needed: that the session is attached, and that it is kept."""
        if not self._stay.is_attached or self._stay.granted is None:
            return
        if self._stay.granted:
            self._ready()
        else:
            self._give_up(540, "not-implemented: session.request-timeout: the broker keeps no session that is detached")

    def detached(self, code: int, asked: bool) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        if self._completions:
            self._complete()
        self.session.detach(self.wire)
        if self._stay.is_detaching and code == 0 and self.timeout:
            self._stay.is_detaching = self.committing = False
            self.part()
        elif self._failure is not None:
            self.emit(operations.ChannelClosed(self.number, *self._failure))
        elif self.closing:
            self.emit(operations.ChannelClosed(self.number, 200, "", False))
        else:
            name = DETACH_CODES.get(code, f"code {code}")
            text = f"the broker detached the session: {name}"
            self.emit(operations.ChannelClosed(self.number, DETACH_REPLY_CODES.get(code, 541), text))

    def broken(self, number: int, code: int, text: str, command: int) -> None:
        """See :class:`~gateway.v010.attached.Attached`."""
        super().broken(number, code, text, command)
        self._failure = (code, text)

    command_handlers: ClassVar[Mapping[type[commands.Command], Callable[[Any, int, Any], None]]] = {
        commands.ExecutionSync: sync,
        commands.ExecutionResult: result,
        commands.ExecutionException: exception,
        commands.MessageTransfer: Attached.bare_transfer,
        commands.MessageAccept: accepted,
        commands.MessageReject: rejected,
        commands.MessageStop: peer_stop,
        commands.MessageFlow: peer_flow,
        commands.MessageSetFlowMode: peer_flow_mode,
    }


SETTLEMENTS: Final[Mapping[operations.Settlement, Callable[[Any], commands.Command]]] = {
    operations.Settlement.ACCEPT: commands.MessageAccept,
    operations.Settlement.RELEASE: lambda ranges: commands.MessageRelease(ranges, True),
    operations.Settlement.REJECT: commands.MessageReject,
}
"""What a settlement becomes."""

SENDERS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], None]]] = {
    operations.Settle: ClientChannel.settle,
    operations.Flow: ClientChannel.flow,
    operations.CloseChannel: ClientChannel.close,
    operations.Detach: ClientChannel.detach,
}
"""What has no command of its own to wait for."""


def _check_consume(channel: ClientChannel, request: operations.Consume) -> None:
    if request.consumer_tag in channel.subscriptions:
        raise StateError(f"channel {channel.number}: the consumer tag {request.consumer_tag!r:.80} is in use")


def _check_cancel(channel: ClientChannel, request: operations.Cancel) -> None:
    subscription = channel.subscriptions.get(request.consumer_tag)
    if subscription is None or subscription.ended:
        raise StateError(f"channel {channel.number}: there is no consumer {request.consumer_tag!r:.80}")


def _proven(channel: ClientChannel, step: Step) -> None:
    for first, last in step.request:
        channel.emit(operations.Confirmed(channel.number, first, last))


def _detach_now(channel: ClientChannel, step: Step) -> None:
    channel.tell(SessionDetach(channel.name))


def _check_select(channel: ClientChannel, request: operations.Request) -> None:
    distributed = channel.distributed and type(request) is operations.TxSelect
    if channel.confirming or channel.transacted or distributed:
        mode = "confirm" if channel.confirming else "dtx" if distributed else "transacted"
        raise StateError(f"channel {channel.number} is in mode {mode} already")
    if type(request) is operations.SelectConfirm:
        channel.confirming = True


def _check_transaction(channel: ClientChannel, request: operations.Request) -> None:
    if not channel.transacted:
        raise StateError(f"channel {channel.number} is not transacted")


def _note_prefetch(channel: ClientChannel, request: operations.Qos) -> None:
    for name in ("prefetch_count", "prefetch_size"):
        value = getattr(request, name)
        if not isinstance(value, int) or not 0 <= value < commands.UNLIMITED:
            raise EncodeError(f"{name} does not fit an uint32: {value!r:.80}")
    channel.prefetch = (request.prefetch_count, request.prefetch_size)


CHECKS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], None]]] = {
    operations.Consume: _check_consume,
    operations.Cancel: _check_cancel,
    operations.SelectConfirm: _check_select,
    operations.TxSelect: _check_select,
    operations.TxCommit: _check_transaction,
    operations.TxRollback: _check_transaction,
    operations.Qos: _note_prefetch,
    **CHECKS_DTX,
}
"""What must hold, or is to be noted, before a request is sent."""

"""One channel of a client and its upstream channel: requests go one way, outcomes and deliveries the other.

The upstream numbers what it is sent in its own way. ``sent`` has, by the upstream's serial, every request that has no
outcome yet, publishes included; each knows its serial at the client. When the upstream is lost the channel is attached
to another upstream channel: consumers begin again, and ``sent`` is sent again in its order, publishes marked as
possible duplicates. So a publish is confirmed to the client when the upstream has confirmed it, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.amqp import operations
from gateway.amqp.operations import Settlement
from gateway.errors import BrokerUnavailable, FrameSyntaxError, LimitExceeded, LocalError, RemoteError, StateError
from gateway.front import rights
from gateway.front.channels import (
    consuming,
    credit,
    deliveries,
    publishing,
    recovery,
    requests,
    settling,
    treatment,
    windows,
)
from gateway.front.channels.consumers import FrontConsumer, Outstanding
from gateway.front.channels.refusals import refusal_of, refused

if TYPE_CHECKING:
    from gateway.front.client import FrontClient, PublishLane


class UpstreamChannel(Protocol):
    """A channel of the upstream connection, as a front uses it."""

    @property
    def number(self) -> int: ...

    def send(self, operation: operations.Operation) -> int:
        """Queue an operation, return its serial. Raises ``LocalError``; nothing was queued then."""

    def accept(self, number: int) -> None:
        """Accept a delivery with the next write, ahead of what is sent after it."""

    def detach(self) -> None:
        """The front's channel has no more to do with it: close it."""


class FrontChannel:
    """See the module."""

    __slots__ = (
        "asking", "client", "closing", "committing", "confirms", "confirms_upstream", "consumers", "flushing",
        "given_back", "in_transaction", "is_giving_back", "is_transacted", "known_exchanges", "last_queue", "later",
        "limit", "newest", "number", "outstanding", "over", "own", "prefetch", "recorded", "reserved", "restarts",
        "sent", "stopped", "strikes", "subscription", "takes_publishes", "transaction", "unconfirmed",
        "unconfirmed_bytes", "undecided", "up", "upstream_prefetch", "void",
    )  # fmt: skip

    def __init__(self, client: FrontClient, number: int) -> None:
        self.client = client
        self.number = number
        self.up: UpstreamChannel | None = None
        """None: it has none yet, or it was lost."""
        self.over = False
        self.closing: operations.CloseChannel | None = None
        """The client's wish to close it."""
        self.sent: dict[int, operations.Request] = {}
        """See the module."""
        self.own: dict[int, Callable[[operations.Outcome], None]] = {}
        """Requests of the front's own, by upstream serial: what to do with the outcome."""
        self.asking: operations.Operation | None = None
        """A request for which the front asks the broker something first. The next one waits for the answer."""
        self.recorded: dict[int, bytes] = {}
        """Publishes that have a timeline: the client's serial -> id."""
        self.unconfirmed = 0
        self.unconfirmed_bytes = 0
        self.confirms = client.rules.always_confirms
        """The client wants to hear of its publishes."""
        self.confirms_upstream = False
        self.is_transacted = False
        self.in_transaction = False
        """Something was published or settled since the last commit."""
        self.committing = False
        self.given_back: list[tuple[Settlement, int, int]] = []
        """What the client gives back in a transaction, and the upstream hears of at its end."""
        self.is_giving_back = False
        """The upstream is about to hear of it, behind a rollback."""
        self.transaction: dict[int, int] = {}
        """Publishes of the transaction: upstream serial -> the client's."""
        self.undecided: list[tuple[int, Outstanding, Settlement]] = []
        """What was settled in the transaction, and how."""
        self.takes_publishes = True
        """The upstream has not asked to stop publishing on this channel."""
        self.stopped = False
        """The client wants no deliveries for now (channel.flow)."""
        self.consumers: dict[str, FrontConsumer] = {}
        self.outstanding: dict[int, Outstanding] = {}
        """By the client's number, in order."""
        self.newest = 0
        """The latest of the client's delivery numbers."""
        self.void = 0
        """Up to this number deliveries may be of an upstream connection that was lost."""
        self.prefetch = 0
        """Of consumers to come; 0: no limit."""
        self.limit = 0
        """Of the whole channel; 0: no limit."""
        self.upstream_prefetch = -1
        self.last_queue = ""
        self.subscription = ""
        """The queue of which the client has just asked whether it is that of a subscription."""
        self.known_exchanges: set[str] = set()
        self.reserved: dict[int, str] = {}
        """Declarations of exclusive queues without an outcome."""
        self.flushing: dict[str, int] = {}
        """Consumer tag -> serial of a message.flush that has no outcome."""
        self.later: list[tuple[Settlement, int]] = []
        """What the front settles when the commit or the transaction is over."""
        self.restarts = False
        """The upstream has ended its channel over something that was to be restored."""
        self.strikes = 0

    def may_take(self, operation: operations.Operation) -> bool:
        """Whether the next request of the client need not wait."""
        if self.committing or self.asking is not None or self.is_giving_back:
            return False
        kind = type(operation)
        if kind in LOCAL:
            return True
        link, lane = self.client.link, self.client.lane
        if not link.is_up:
            return lane is not None and self._may_store(operation, lane)
        if lane is not None and isinstance(operation, operations.Publish) and lane.takes(self, operation):
            return self.client.may_publish(self) and lane.may_store(self, operation)
        if not link.writable:
            return False
        if kind is operations.Publish:
            if lane is not None and not lane.may_pass(self.client):
                return False  # what is stored goes first
            return self.takes_publishes and link.blocked is None and self.client.may_publish(self)
        if kind is operations.Credit:
            # A flush takes what credit is left, and none of what the client gives behind it.
            return operation.consumer_tag not in self.flushing  # type: ignore[attr-defined]  # the kind has one
        if kind is operations.Cancel:
            # RabbitMQ's channel dies of a cancel that comes before its consume-ok, and the connection with it.
            consumer = self.consumers.get(operation.consumer_tag)  # type: ignore[attr-defined]  # as above
            if operation.consumer_tag in self.flushing:  # type: ignore[attr-defined]  # as above
                return False
            return consumer is None or consumer.is_running or consumer.waiting is not None
        return kind not in BEHIND or all(type(request) is operations.Publish for request in self.sent.values())

    def _may_store(self, operation: Any, lane: PublishLane) -> bool:
        """Whether a request can be carried out without an upstream, by a front that stores publishes."""
        if self.up is not None:
            return False  # the loss is not dealt with yet
        if type(operation) is operations.Publish:
            return self.client.may_publish(self) and lane.may_store(self, operation)
        if type(operation) is operations.SelectConfirm:
            return not self.is_transacted and not self.sent
        return type(operation) is operations.Settle and not self.is_transacted

    def take(self, operation: Any, *, is_again: bool = False) -> None:
        """Carry out a request of the client. ``is_again``: it was tried before."""
        if self.over or self.closing is not None:
            return
        try:
            HANDLERS[type(operation)](self, operation)
        except RemoteError as error:
            self.refuse(operation, error)
        except StateError as error:
            if is_again:
                self.refuse(operation, refusal_of(error, operation))
                return
            # The upstream may have ended the channel: what says so, and why, came together with what is handled now.
            self.asking = operation
            self.client.host.soon(lambda: self._take_again(operation))
        except (LocalError, FrameSyntaxError, LimitExceeded) as error:
            self.refuse(operation, refusal_of(error, operation))
        except BrokerUnavailable as error:
            self.refuse(operation, refused(506, str(error)))

    def _take_again(self, operation: operations.Operation) -> None:
        if self.asking is operation and self.client.link.is_up:
            self.asking = None
            self.take(operation, is_again=True)
        self.client.rouse()

    def refuse(self, request: operations.Request, error: RemoteError) -> None:
        """The request is refused, which costs the channel, or more."""
        client = self.client
        client.counts.refused(type(request).__name__, error.reply_code)
        text = error.reply_text
        if type(request) in QUERIES and client.rules.queries_survive and error.reply_code == 404:
            client.tell(operations.Failed(self.number, request.serial, request.serial, 404, text))
            return
        failed = operations.Failed(self.number, request.serial, request.serial, error.reply_code, text)
        if error.reply_code in client.rules.connection_codes:
            client.end_with(failed)
            return
        client.tell(failed)
        self.end()

    def fail(self, code: int, text: str, failed: int = 0) -> None:
        """Close the client's channel, without one request that is to blame."""
        if not self.over:
            if code in self.client.rules.connection_codes:
                self.client.end_with(operations.Close(0, code, text))
                return
            self.client.tell(operations.CloseChannel(self.number, code, text, failed))
            self.end()

    def end(self) -> None:
        """The channel is over; its upstream channel goes, and what the client held goes back."""
        if self.over:
            return
        self.over = True
        up, self.up = self.up, None
        self.client.forget(self)
        if self.recorded:
            for request in self.sent.values():
                if type(request) is operations.Publish:
                    publishing.record(self, request, "unknown", 0, "the channel has ended without the broker's answer")
        for consumer in self.consumers.values():
            self.client.held.add(-consumer.held_bytes)
            windows.release(self, consumer)
        self.client.count_unconfirmed(-self.unconfirmed_bytes)
        settling.record_lost(self)
        self.sent.clear()
        self.consumers.clear()
        self.outstanding.clear()
        for name in self.reserved.values():
            self.client.release_queue(name)
        if up is not None:
            up.detach()
        self.client.rouse()  # requests of this channel may be first in the backlog

    def send(self, request: operations.Request) -> int:
        """Send a request upstream and remember it until its outcome. Raises ``LocalError``."""
        if type(request) is operations.Get and request.no_ack and not self.is_transacted:
            serial = self.say(replace(request, no_ack=False))
        else:
            serial = self.say(request)
        self.sent[serial] = request
        return serial

    def say(self, operation: operations.Operation) -> int:
        """Send what has no outcome."""
        up = self.up
        if up is None:
            self.client.link.attach(self)
            up = self.up
            assert up is not None
        operation.channel = up.number  # type: ignore[misc]  # nobody else has it
        return up.send(operation)

    def ask(
        self, request: operations.Request, then: Callable[[operations.Outcome], None] = lambda outcome: None
    ) -> None:
        """Send a request of the front's own; ``then`` is called with its outcome. It is not sent, and not called, while
        the upstream is being lost: what was asked just before it ends with the loss, too."""
        if self.client.link.is_up:
            self.own[self.say(request)] = then

    def _close(self, request: operations.CloseChannel) -> None:
        self.closing = request
        self.close_when_safe()

    def close_when_safe(self) -> None:
        """Close the upstream's channel once it has confirmed what was published there."""
        if self.closing is None or self.unconfirmed or self.over:
            return
        up = self.up
        if up is not None and not self.client.link.is_up:
            return  # it is lost, and this is asked again when that is dealt with
        if up is None:
            self._closed()
            return
        up.send(operations.CloseChannel(up.number))

    def _closed(self) -> None:
        self.up = None
        self.client.tell(operations.ChannelClosed(self.number, 200, ""))
        self.end()

    def check(self, request: operations.Request) -> None:
        """Raise a RemoteError for what the upstream cannot do, or the client may not."""
        client = self.client
        treatment.check(request, client.link.target)
        access = client.access
        rights.check(request, access.principal, access.broker, client.exclusive)
        queue = getattr(request, "queue", "")
        if queue:
            owner = client.link.owners.get(queue, client)
            if owner is not client:
                raise refused(
                    405,
                    f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{access.virtual_host}'. It "
                    "could be originally declared on another connection or the exclusive property value does not "
                    "match that of the original declaration.",
                )

    def name_queue(self, request: Any) -> bool:
        """An empty name stands for the queue that was declared last: put that in. Whether it was empty."""
        if request.queue:
            return False
        if not self.last_queue:
            raise refused(404, "no previously declared queue")
        request.queue = self.last_queue
        return True

    def rewritten(self, request: Any) -> Any:
        """The request as the upstream takes it."""
        for rule in self.client.link.rules.get(type(request), ()):
            if rule.applies(request, self.client.link.target, self.client.rules):
                request = rule.rewrite(request, self.client.transient_expires)
                self.client.counts.rewritten(rule.name, self.client)
        return request

    def settle_own(self, settlement: Settlement, number: int) -> None:
        """Settle what is the front's to settle; behind a commit that is under way. What the client's rollback would
        keep from going back goes at the end of the transaction."""
        waits = settlement is not Settlement.ACCEPT and settling.undoes_release(self)
        if self.committing or self.is_giving_back or waits:
            self.later.append((settlement, number))
        elif self.up is not None and self.client.link.is_up:
            if settlement is Settlement.ACCEPT and not self.is_transacted:
                self.up.accept(number)
            else:
                self.say(operations.Settle(self.number, settlement, number, number))

    def done(self, request: operations.Request) -> None:
        """The front has done it."""
        self.client.tell(operations.Done(self.number, request.serial, request.serial))

    def received(self, operation: Any) -> None:
        """Something came on the upstream channel."""
        if self.over:
            return
        handler = RECEIVED.get(type(operation))
        if handler is not None:
            handler(self, operation)
        elif isinstance(operation, operations.Outcome):
            self._outcome(operation)

    def _outcome(self, outcome: operations.Outcome) -> None:
        own = self.own.pop(outcome.first, None)
        if own is not None:
            own(outcome)
            return
        request = self.sent.pop(outcome.first, None)
        if request is None:
            return
        finish = FINISH.get(type(request))
        if finish is not None:
            finish(self, request, outcome)
        if request.serial:
            self.answer(outcome, request)

    def answer(self, outcome: Any, request: operations.Request) -> None:
        """Tell the client the outcome of its request."""
        outcome.channel = self.number
        outcome.first = outcome.last = request.serial
        self.client.tell(outcome)

    def _failed(self, outcome: operations.Failed) -> None:
        own = self.own.pop(outcome.first, None)
        if own is not None:
            own(outcome)
            return
        request = self.sent.pop(outcome.first, None)
        if request is None:
            return
        if not request.serial:
            recovery.restart(self, request, outcome)
            return
        requests.unreserve(self, request)
        self.refuse(request, RemoteError(outcome.code, outcome.text))

    def _channel_closed(self, operation: operations.ChannelClosed) -> None:
        self.up = None
        if self.restarts:
            self.restarts = False
            recovery.lost(self, False)
            recovery.restore(self)
            return
        if self.closing is not None and not operation.by_peer:
            self._closed()
            return
        suspect = next((request.serial for request in self.sent.values() if request.serial), 0)
        if self.closing is not None:
            self.client.tell(operations.ChannelClosed(self.number, 200, ""))
            self.end()
        else:
            self.client.counts.refused("channel", operation.code)
            self.fail(operation.code, operation.text, suspect)


QUERIES: Final = frozenset({operations.QueryExchange, operations.QueryQueue, operations.QueryBinding})
"""What may be asked on another channel."""
BEHIND: Final = QUERIES | {operations.SelectConfirm}
"""What is not asked on the channel's own upstream channel, and so waits for what was asked before it."""
LOCAL: Final = frozenset(
    {operations.OpenChannel, operations.CloseChannel, operations.Flow, operations.Qos}
)  # fmt: skip
"""What needs no upstream."""

HANDLERS: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any], None]]] = {
    **dict.fromkeys(treatment.TREATMENTS, requests.refuse_always),
    operations.CloseChannel: FrontChannel._close,
    operations.Flow: requests.flow,
    **dict.fromkeys(
        (
            operations.DeclareExchange, operations.DeleteExchange, operations.BindExchange, operations.UnbindExchange,
        ),
        requests.pass_on,
    ),
    operations.QueryBinding: requests.query_binding,
    operations.DeclareQueue: requests.declare_queue,
    **dict.fromkeys(
        (operations.BindQueue, operations.UnbindQueue, operations.PurgeQueue, operations.DeleteQueue),
        requests.named,
    ),
    **dict.fromkeys((operations.QueryExchange, operations.QueryQueue), requests.query),
    operations.SelectConfirm: requests.select_confirms,
    operations.Publish: publishing.publish,
    operations.Qos: requests.qos,
    operations.Consume: consuming.consume,
    operations.Credit: credit.credit,
    operations.Cancel: consuming.cancel,
    operations.Get: deliveries.get,
    operations.Settle: settling.settle,
    operations.Recover: settling.recover,
    operations.TxSelect: requests.tx_select,
    operations.TxCommit: requests.tx_end,
    operations.TxRollback: requests.tx_end,
}  # fmt: skip
"""How each operation of a client is carried out."""

RECEIVED: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any], None]]] = {
    operations.Deliver: deliveries.deliver,
    operations.DeliveryTooLarge: deliveries.too_large,
    operations.Got: deliveries.got,
    operations.Confirmed: publishing.confirmed,
    operations.Returned: publishing.returned,
    operations.Refused: publishing.refused_upstream,
    operations.Failed: FrontChannel._failed,
    operations.ChannelClosed: FrontChannel._channel_closed,
    operations.Cancelled: consuming.cancelled,
    operations.Flow: publishing.upstream_flow,
    operations.Alert: publishing.alert,
}
"""What the upstream says, beside the outcomes of requests."""

FINISH: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any, operations.Outcome], None]]] = {
    **dict.fromkeys(
        (
            operations.DeclareExchange, operations.BindExchange, operations.UnbindExchange, operations.BindQueue,
            operations.UnbindQueue,
        ),
        requests.noted,
    ),
    operations.DeclareQueue: requests.declared,
    operations.DeleteQueue: requests.deleted_queue,
    operations.DeleteExchange: requests.deleted_exchange,
    operations.Consume: consuming.begun,
    operations.Cancel: consuming.gone,
    operations.Recover: settling.recovered,
    operations.TxCommit: requests.transaction_over,
    operations.TxRollback: requests.transaction_over,
}  # fmt: skip
"""What else follows from the outcome of a request."""

"""One channel of a client and its upstream channel: requests go one way, outcomes and deliveries the other.

The upstream numbers what it is sent in its own way. ``sent`` has, by the upstream's serial, every request that has no
outcome yet, publishes included; each knows its serial at the client. When the upstream is lost the channel is attached
to another upstream channel: consumers begin again, and ``sent`` is sent again in its order, publishes marked as
possible duplicates. So a publish is confirmed to the client when the upstream has confirmed it, and not before.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway import operations
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    FrameSyntaxError,
    LimitExceeded,
    LocalError,
    RemoteError,
    StateError,
)
from gateway.front import rights, treatment
from gateway.front.consuming import FrontConsumer, Outstanding
from gateway.front.messages import checked, marked, restored
from gateway.front.refusals import refusal_of, refused
from gateway.operations import Settlement

if TYPE_CHECKING:
    from gateway.front.client import FrontClient

STRIKES_MAX: Final = 2
"""How often the upstream may end the whole connection over something while the same requests of a channel are under
way. Then that channel is closed, for its neighbors' sake."""
START_AFTER: Final = 0.01
"""For how long it is waited what a consumer with credit wants, in seconds."""
_FRESH: Final = "front.gen-"
_TAG: Final = "amq.ctag-"
_NAME_OCTETS: Final = 12
_NAMED: Final = frozenset(
    {operations.BindQueue, operations.UnbindQueue, operations.PurgeQueue, operations.DeleteQueue, operations.Consume,
     operations.Get}
)  # fmt: skip
"""Requests in which an empty name stands for the queue declared last."""


class UpstreamChannel(Protocol):
    """A channel of the upstream connection, as a front uses it."""

    @property
    def number(self) -> int: ...

    def send(self, operation: operations.Operation) -> int:
        """Queue an operation, return its serial. Raises ``LocalError``; nothing was queued then."""

    def detach(self) -> None:
        """The front's channel has no more to do with it: close it."""


class FrontChannel:
    """See the module."""

    __slots__ = (
        "_asking", "_flushing", "_later", "_own", "_reserved", "_restarts", "_strikes", "_transaction", "_undecided",
        "_void", "client", "closing", "committing", "confirms", "confirms_upstream", "consumers", "in_transaction",
        "is_transacted", "known_exchanges", "last_queue", "limit", "newest", "number", "outstanding", "over",
        "prefetch", "sent", "stopped", "takes_publishes", "unconfirmed", "unconfirmed_bytes", "up",
        "upstream_prefetch",
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
        self._own: dict[int, Callable[[operations.Outcome], None]] = {}
        """Requests of the front's own, by upstream serial: what to do with the outcome."""
        self._asking = False
        """A question of the front's own is under way, and the next request waits for the answer."""
        self.unconfirmed = 0
        self.unconfirmed_bytes = 0
        self.confirms = client.rules.always_confirms
        """The client wants to hear of its publishes."""
        self.confirms_upstream = False
        self.is_transacted = False
        self.in_transaction = False
        """Something was published or settled since the last commit."""
        self.committing = False
        self._transaction: dict[int, int] = {}
        """Publishes of the transaction: upstream serial -> the client's."""
        self._undecided: list[tuple[int, Outstanding]] = []
        """What was settled in the transaction."""
        self.takes_publishes = True
        """The upstream has not asked to stop publishing on this channel."""
        self.stopped = False
        """The client wants no deliveries for now (channel.flow)."""
        self.consumers: dict[str, FrontConsumer] = {}
        self.outstanding: dict[int, Outstanding] = {}
        """By the client's number, in order."""
        self.newest = 0
        """The latest of the client's delivery numbers."""
        self._void = 0
        """Up to this number deliveries may be of an upstream connection that was lost."""
        self.prefetch = 0
        """Of consumers to come; 0: no limit."""
        self.limit = 0
        """Of the whole channel; 0: no limit."""
        self.upstream_prefetch = -1
        self.last_queue = ""
        self.known_exchanges: set[str] = set()
        self._reserved: dict[int, str] = {}
        """Declarations of exclusive queues without an outcome."""
        self._flushing: dict[str, int] = {}
        """Consumer tag -> serial of a message.flush that has no outcome."""
        self._later: list[tuple[Settlement, int]] = []
        """What the front settles when the commit is over."""
        self._restarts = False
        """The upstream has ended its channel over something that was to be restored."""
        self._strikes = 0

    # ------------------------------------------------------------------------------------- from the client

    def may_take(self, operation: operations.Operation) -> bool:
        """Whether the next request of the client need not wait."""
        if self.committing or self._asking:
            return False
        kind = type(operation)
        if kind in LOCAL:
            return True
        link = self.client.link
        if not link.is_up or not link.writable:
            return False
        if kind is operations.Publish:
            return self.takes_publishes and link.blocked is None and self.client.may_publish(self)
        if kind is operations.Cancel:
            # RabbitMQ's channel dies of a cancel that comes before its consume-ok, and the connection with it.
            consumer = self.consumers.get(operation.consumer_tag)  # type: ignore[attr-defined]  # the kind has one
            if operation.consumer_tag in self._flushing:  # type: ignore[attr-defined]  # as above
                return False
            return consumer is None or consumer.is_running or consumer.waiting is not None
        return kind not in _ALONE or all(type(request) is operations.Publish for request in self.sent.values())

    def take(self, operation: Any) -> None:
        """Carry out a request of the client."""
        if self.over or self.closing is not None:
            return
        try:
            HANDLERS[type(operation)](self, operation)
        except RemoteError as error:
            self.refuse(operation, error)
        except (LocalError, FrameSyntaxError, LimitExceeded) as error:
            self.refuse(operation, refusal_of(error, operation))
        except BrokerUnavailable as error:
            self.refuse(operation, refused(506, str(error)))

    def refuse(self, request: operations.Request, error: RemoteError) -> None:
        """The request is refused, which costs the channel, or more."""
        client = self.client
        client.counts.refused(type(request).__name__, error.reply_code)
        text = error.reply_text
        if type(request) in QUERIES and client.rules.queries_survive and error.reply_code == 404:
            client.tell(operations.Failed(self.number, request.serial, request.serial, 404, text))
            return
        client.tell(operations.Failed(self.number, request.serial, request.serial, error.reply_code, text))
        self.end()
        client.failed_with(error.reply_code)

    def fail(self, code: int, text: str, failed: int = 0) -> None:
        """Close the client's channel, without one request that is to blame."""
        if not self.over:
            if code in self.client.rules.connection_codes:
                self.client.close(code, text)
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
        for consumer in self.consumers.values():
            self.client.held_bytes(-consumer.held_bytes)
        self.client.counts.unconfirmed(-self.unconfirmed_bytes)
        self.sent.clear()
        self.consumers.clear()
        self.outstanding.clear()
        for name in self._reserved.values():
            self.client.release_queue(name)
        if up is not None:
            up.detach()
        self.client.rouse()  # requests of this channel may be first in the backlog

    def _send(self, request: operations.Request) -> int:
        """Send a request upstream and remember it until its outcome. Raises ``LocalError``."""
        if type(request) is operations.Get and request.no_ack and not self.is_transacted:
            serial = self._say(replace(request, no_ack=False))
        else:
            serial = self._say(request)
        self.sent[serial] = request
        return serial

    def _say(self, operation: operations.Operation) -> int:
        """Send what has no outcome."""
        up = self.up
        if up is None:
            self.client.link.attach(self)
            up = self.up
            assert up is not None
        operation.channel = up.number  # type: ignore[misc]  # nobody else has it
        return up.send(operation)

    def _ask(self, request: operations.Request, then: Callable[[operations.Outcome], None]) -> None:
        """Send a request of the front's own."""
        self._own[self._say(request)] = then

    # requests, in the order of the table

    def _close(self, request: operations.CloseChannel) -> None:
        self.closing = request
        self._close_when_safe()

    def _close_when_safe(self) -> None:
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

    def _flow(self, request: operations.Flow) -> None:
        self.stopped = not request.active
        self.pump()

    def _pass(self, request: operations.Request) -> None:
        self._check(request)
        self._send(self._rewritten(request))

    def _check(self, request: operations.Request) -> None:
        """Raise a RemoteError for what the upstream cannot do, or the client may not."""
        client = self.client
        treatment.check(request, client.link.target)
        rights.check(request, client.principal, client.broker, client.exclusive)
        queue = getattr(request, "queue", "")
        if queue:
            owner = client.link.owners.get(queue, client)
            if owner is not client:
                raise refused(
                    405,
                    f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{client.virtual_host}'. It "
                    "could be originally declared on another connection or the exclusive property value does not "
                    "match that of the original declaration.",
                )

    def _rewritten(self, request: Any) -> Any:
        for rule in self.client.link.rules.get(type(request), ()):
            if rule.applies(request, self.client.link.target):
                request = rule.rewrite(request, self.client.transient_expires)
                self.client.counts.rewritten(rule.name, self.client)
        return request

    def _named(self, request: Any) -> None:
        """A request about a queue."""
        if not request.queue:
            if not self.last_queue:
                raise refused(404, "no previously declared queue")
            request.queue = self.last_queue
            if type(request) is operations.BindQueue and not request.routing_key:
                request.routing_key = self.last_queue  # type: ignore[misc]  # nobody else has it
        self._pass(request)

    def _declare_queue(self, request: Any) -> None:
        client = self.client
        if not request.queue:
            if not request.passive:
                request.queue = client.fresh_name(_FRESH, _NAME_OCTETS)
            elif not self.last_queue:
                raise refused(404, "no previously declared queue")
            else:
                request.queue = self.last_queue
        name = request.queue
        self._check(request)
        sent = self._rewritten(request)
        reserves = request.exclusive and not request.passive and name not in client.exclusive
        self._send(sent)
        self.last_queue = name
        if reserves:
            client.reserve_queue(name)
            self._reserved[request.serial] = name

    def _query(self, request: operations.Request) -> None:
        """Ask whether something is there, without the channel's being at stake."""
        self._check(request)
        if self.client.link.target.is_native:
            self._send(request)
            return

        def answered(outcome: operations.Outcome | RemoteError) -> None:
            if self.over:
                return
            if isinstance(outcome, RemoteError):
                self.refuse(request, outcome)
            else:
                self._tell(outcome, request)

        self.client.link.ask(replace(request), answered)

    def _select(self, request: operations.SelectConfirm) -> None:
        if self.is_transacted:
            if not self.client.rules.confirms_in_transactions:
                raise refused(406, "cannot switch from tx to confirm mode")
        elif not self.confirms_upstream:
            self._send(request)
            self.confirms_upstream = self.confirms = True
            return
        self.confirms = True
        self._done(request)

    def _publish(self, request: Any) -> None:
        client = self.client
        self._check(request)
        message = request.message
        if request.exchange not in self.known_exchanges and request.exchange:
            if not client.link.target.capabilities.unknown_exchange_reported:
                self._find_exchange(request)
                return
            if len(self.known_exchanges) < 1_024:
                self.known_exchanges.add(request.exchange)
        request.message = checked(message, client.user, client.is_classic)
        if self.is_transacted:
            self._transaction[self._say(request)] = request.serial
            self.in_transaction = True
            return
        if not self.confirms_upstream:
            self._ask(operations.SelectConfirm(self.number), _nothing)
            self.confirms_upstream = True
        self._send(request)
        self.unconfirmed += 1
        size = len(request.message.body)
        self.unconfirmed_bytes += size
        client.counts.unconfirmed(size)

    def _find_exchange(self, request: operations.Publish) -> None:
        """A broker that takes publishes to an exchange that is not there is asked for it first."""

        def found(outcome: operations.Outcome) -> None:
            self._asking = False
            if isinstance(outcome, operations.Failed):
                text = f"no exchange '{request.exchange}' in vhost '{self.client.virtual_host}'"
                self.refuse(request, refused(404, text))
            else:
                self.known_exchanges.add(request.exchange)
                self.take(request)
            self.client.rouse()

        self._asking = True
        self._ask(operations.QueryExchange(self.number, request.exchange), found)

    def _qos(self, request: operations.Qos) -> None:
        treatment.check(request, self.client.link.target)
        if request.whole_channel:
            self.limit = request.prefetch_count
        else:
            self.prefetch = request.prefetch_count
            if self.client.rules.qos_on_running:
                for consumer in self.consumers.values():
                    consumer.limit = self.prefetch
        self._done(request)
        self.pump()

    def _consume(self, request: Any) -> None:
        client = self.client
        if not request.queue:
            if not self.last_queue:
                raise refused(404, "no previously declared queue")
            request.queue = self.last_queue
        if not request.consumer_tag:
            request.consumer_tag = client.fresh_name(_TAG, _NAME_OCTETS)
        elif request.consumer_tag in self.consumers:
            raise refused(530, f"attempt to reuse consumer tag '{request.consumer_tag}'")
        self._check(request)
        sent = self._rewritten(request)
        acks = request.no_ack and not self.is_transacted
        if acks or sent.credit:
            sent = replace(sent, no_ack=request.no_ack and not acks, credit=False)
        consumer = FrontConsumer(sent, request.no_ack, acks, self.prefetch, request.credit)
        if request.credit:
            consumer.waiting = sent
            self.consumers[request.consumer_tag] = consumer
            client.host.later(START_AFTER, lambda: self._start(consumer))
            return
        self._prefetch(consumer)
        self.consumers[request.consumer_tag] = consumer
        try:
            self._send(sent)
        except LocalError:
            del self.consumers[request.consumer_tag]
            raise

    def _prefetch(self, consumer: FrontConsumer) -> None:
        """Bound what the upstream sends ahead for the next consumer."""
        bounds = [self.client.prefetch_max]
        if not consumer.has_credit and not consumer.no_ack:
            bounds += [bound for bound in (consumer.limit, self.limit) if bound]
        count = min(bounds)
        if count != self.upstream_prefetch:
            self._ask(operations.Qos(self.number, count), _nothing)
            self.upstream_prefetch = count

    def _start(self, consumer: FrontConsumer) -> None:
        """Have the upstream deliver to a consumer with credit. A client of 0-10 that wants one message subscribes,
        gives credit for one, asks for what is there, and cancels. It gets that by a get: what were sent ahead of it
        would go back, marked as redelivered."""
        request = consumer.waiting
        if request is None or self.over or self.committing or not self.client.link.is_up:
            return
        consumer.waiting = None
        try:
            self._prefetch(consumer)
            self._send(request)
        except (LocalError, LimitExceeded, BrokerUnavailable) as error:
            self.fail(506, f"RESOURCE_ERROR - {error}"[:255])

    def _started(self, consumer: FrontConsumer) -> None:
        """A consumer that the upstream does not know."""
        request, consumer.waiting = consumer.waiting, None
        consumer.is_running = True
        if request is not None and request.serial:
            self.client.tell(operations.Consuming(self.number, request.serial, request.serial, request.consumer_tag))

    def _fetch(self, consumer: FrontConsumer) -> None:
        """Get one message for a consumer that is canceled as soon as it has what it has asked for."""
        request = consumer.request
        if not consumer.admits(0):
            self._flushed(request.consumer_tag)
            return

        def answered(outcome: operations.Outcome) -> None:
            if isinstance(outcome, operations.Failed):
                self.fail(outcome.code, outcome.text)
            elif isinstance(outcome, operations.Got):
                deliver = operations.Deliver(
                    self.number, request.consumer_tag, outcome.delivery, outcome.redelivered, outcome.exchange,
                    outcome.routing_key, outcome.message,
                )  # fmt: skip
                self._hand_over(consumer, deliver)
                self._fetch(consumer)
            else:
                self._flushed(request.consumer_tag)

        self._ask(operations.Get(self.number, request.queue), answered)

    def _credit(self, request: operations.Credit) -> None:
        consumer = self.consumers.get(request.consumer_tag)
        if consumer is None or consumer.credit is None:
            raise refused(404, f"no destination '{request.consumer_tag}'")
        if request.stopped:
            consumer.credit.clear()
            return
        consumer.credit.grant(request.messages, request.octets)
        self.pump_consumer(consumer)
        if request.flush:
            self._flushing[request.consumer_tag] = request.serial
            if consumer.waiting is not None and consumer.credit.messages is not None:
                consumer.takes_once = True
                self._started(consumer)
            if consumer.takes_once:
                self._fetch(consumer)
            elif consumer.waiting is not None:
                self._start(consumer)
            elif consumer.is_running:
                self._flush(consumer)
        elif consumer.takes_once and consumer.admits(1):
            consumer.takes_once = consumer.is_running = False
            consumer.waiting = replace(consumer.request, serial=0)
            self.client.host.later(START_AFTER, lambda: self._start(consumer))

    def _flush(self, consumer: FrontConsumer) -> None:
        """Find out when the upstream has sent all that the queue has. RabbitMQ answers a question ahead of deliveries
        that it has found already, so it is asked twice."""
        queue, tag = consumer.request.queue, consumer.request.consumer_tag

        def again(outcome: operations.Outcome) -> None:
            self._ask(operations.QueryQueue(self.number, queue), lambda outcome: self._flushed(tag))

        self._ask(operations.QueryQueue(self.number, queue), again)

    def _flushed(self, tag: str) -> None:
        """message.flush: the consumer has what there was for it."""
        serial = self._flushing.pop(tag, 0)
        consumer = self.consumers.get(tag)
        if consumer is not None and consumer.credit is not None:
            self.pump_consumer(consumer)
            consumer.credit.clear()
        if serial:
            self.client.tell(operations.Done(self.number, serial, serial))
        self.client.rouse()

    def _cancel(self, request: operations.Cancel) -> None:
        consumer = self.consumers.get(request.consumer_tag)
        if consumer is not None and consumer.waiting is None and not consumer.takes_once:
            self._send(request)
            return
        if consumer is not None:
            self._started(consumer)
        self.consumers.pop(request.consumer_tag, None)
        self._done(request)

    def _get(self, request: Any) -> None:
        if not request.queue:
            if not self.last_queue:
                raise refused(404, "no previously declared queue")
            request.queue = self.last_queue
        self._check(request)
        self._send(request)

    def _settle(self, request: operations.Settle) -> None:
        first, last = request.first, request.last
        outstanding = self.outstanding
        if first == last and (entry := outstanding.pop(first, None)) is not None:
            self._settle_upstream(request.settlement, first, entry)
            self._settled(entry)
            self.pump_after(entry)
            return
        last = last or self.newest
        strict = self.client.rules.strict_settlement
        if last > self.newest and strict:
            raise refused(406, f"unknown delivery tag {request.last}")
        numbers = [number for number in outstanding if first <= number <= last]
        if not numbers:
            if last <= self._void:
                self.client.counts.void()
            elif strict and request.last:
                raise refused(406, f"unknown delivery tag {request.last}")
            return
        entries = [outstanding.pop(number) for number in numbers]
        self._settle_range(request.settlement, numbers, entries)
        for entry in entries:
            self._settled(entry)
        self.pump()

    def _settle_range(self, settlement: Settlement, numbers: list[int], entries: list[Outstanding]) -> None:
        """Settle several, in runs of the upstream's numbers without a gap that somebody holds."""
        pairs = sorted(zip(numbers, entries, strict=True), key=lambda pair: pair[1].number)
        entries = [entry for _, entry in pairs]  # what waited for its consumer may have been overtaken by others
        low, high = entries[0].number, entries[-1].number
        gaps = [entry.number for entry in self.outstanding.values() if low < entry.number < high]
        for consumer in self.consumers.values():
            gaps += [delivery.delivery for delivery in consumer.held if low < delivery.delivery < high]
        gaps.sort()
        start = 0
        for at in range(1, len(entries) + 1):
            if at < len(entries):
                found = bisect(gaps, entries[at - 1].number)
                if found == len(gaps) or gaps[found] > entries[at].number:
                    continue
            self._say(operations.Settle(self.number, settlement, entries[start].number, entries[at - 1].number))
            start = at
        if self.is_transacted:
            self.in_transaction = True
            self._undecided += pairs

    def _settle_upstream(self, settlement: Settlement, number: int, entry: Outstanding) -> None:
        self._say(operations.Settle(self.number, settlement, entry.number, entry.number))
        if self.is_transacted:
            self.in_transaction = True
            self._undecided.append((number, entry))

    def _settle_own(self, settlement: Settlement, number: int) -> None:
        """Settle what is the front's to settle; behind a commit that is under way."""
        if self.committing:
            self._later.append((settlement, number))
        elif self.up is not None and self.client.link.is_up:
            self._say(operations.Settle(self.number, settlement, number, number))

    def _settled(self, entry: Outstanding) -> None:
        if entry.consumer is not None:
            entry.consumer.out -= 1

    def _recover(self, request: operations.Recover) -> None:
        self._check(request)
        if self.up is None:
            self._done(request)
            return
        self._send(request)

    def _tx_select(self, request: operations.TxSelect) -> None:
        if self.is_transacted:
            self._done(request)
            return
        if self.confirms and not self.client.rules.confirms_in_transactions:
            raise refused(406, "cannot switch from confirm to tx mode")
        if self.confirms_upstream:
            if self.unconfirmed or self.sent or self.outstanding or self.consumers:
                raise refused(406, "tx.select on a channel that has published, and consumes: open another channel")
            up, self.up = self.up, None
            self.confirms_upstream = False
            self.upstream_prefetch = -1
            if up is not None:
                up.detach()
        self._send(request)
        self.is_transacted = True

    def _tx_end(self, request: operations.Request) -> None:
        if not self.is_transacted:
            raise refused(self.client.rules.untransacted_code, "channel is not transactional")
        self._send(request)
        self.committing = True

    def _refused(self, request: operations.Request) -> None:
        treatment.check(request, self.client.link.target)

    def _done(self, request: operations.Request) -> None:
        """The front has done it."""
        self.client.tell(operations.Done(self.number, request.serial, request.serial))

    # ----------------------------------------------------------------------------------- from the upstream

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
        own = self._own.pop(outcome.first, None)
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
            self._tell(outcome, request)

    def _tell(self, outcome: Any, request: operations.Request) -> None:
        outcome.channel = self.number
        outcome.first = outcome.last = request.serial
        self.client.tell(outcome)

    def _confirmed(self, outcome: operations.Confirmed) -> None:
        sent, confirms, client = self.sent, self.confirms, self.client
        first = last = 0
        size = 0
        self._strikes = 0
        for serial in range(outcome.first, outcome.last + 1):
            request = sent.get(serial)
            if type(request) is not operations.Publish:
                continue
            del sent[serial]
            self.unconfirmed -= 1
            size += len(request.message.body)
            if request.serial != last + 1:
                if last and confirms:
                    client.tell(operations.Confirmed(self.number, first, last))
                first = request.serial
            last = request.serial
        if last and confirms:
            client.tell(operations.Confirmed(self.number, first, last))
        self.unconfirmed_bytes -= size
        client.counts.unconfirmed(-size)
        self._progress()

    def _progress(self) -> None:
        if self.closing is not None:
            self._close_when_safe()
        self.client.rouse()

    def _taken(self, serial: int) -> Any:
        """Return the publish that has its outcome now; None: that serial is not a publish."""
        request = self.sent.get(serial)
        if type(request) is not operations.Publish:
            return None
        del self.sent[serial]
        self.unconfirmed -= 1
        size = len(request.message.body)
        self.unconfirmed_bytes -= size
        self.client.counts.unconfirmed(-size)
        return request

    def _returned(self, outcome: Any) -> None:
        client = self.client
        request = self._taken(outcome.first)
        if request is None:
            serial = self._transaction.get(outcome.first, 0)
            message = None if outcome.message is None else restored(outcome.message)
            exchange, key = outcome.exchange, outcome.routing_key
        else:
            serial, message = request.serial, request.message
            exchange, key = request.exchange, request.routing_key
        returned = operations.Returned(
            self.number, serial, serial, outcome.code, outcome.text, exchange, key, message, final=False
        )
        client.tell(returned)
        if serial and self.confirms and request is not None:
            client.tell(operations.Confirmed(self.number, serial, serial))
        self._progress()

    def _publish_refused(self, outcome: operations.Refused) -> None:
        for serial in range(outcome.first, outcome.last + 1):
            request = self._taken(serial)
            if request is None:
                continue
            if self.confirms:
                self.client.tell(
                    operations.Refused(self.number, request.serial, request.serial, outcome.code, outcome.text)
                )
            else:
                self.client.counts.publish_lost(self.client, request, outcome.text)
        self._progress()

    def _failed(self, outcome: operations.Failed) -> None:
        own = self._own.pop(outcome.first, None)
        if own is not None:
            own(outcome)
            return
        request = self.sent.pop(outcome.first, None)
        if request is None:
            return
        if not request.serial:
            self._restart(request, outcome)
            return
        self._reserved_lost(request)
        self.refuse(request, RemoteError(outcome.code, outcome.text))

    def _reserved_lost(self, request: operations.Request) -> None:
        name = self._reserved.pop(request.serial, "")
        if name:
            self.client.release_queue(name)

    def _restart(self, request: operations.Request, outcome: operations.Failed) -> None:
        """Something that was to be restored cannot be: a consumer is canceled, and the channel attached again."""
        if type(request) is operations.Consume:
            self.consumers.pop(request.consumer_tag, None)
            self.client.tell(operations.Cancelled(self.number, request.consumer_tag))
            self.client.counts.consumer_lost(self.client, request.queue, outcome.text)
        self._restarts = True

    def _channel_closed(self, operation: operations.ChannelClosed) -> None:
        self.up = None
        if self._restarts:
            self._restarts = False
            self.lost(False)
            self.restore()
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

    def _cancelled(self, operation: operations.Cancelled) -> None:
        consumer = self.consumers.pop(operation.consumer_tag, None)
        if consumer is None:
            return
        self._release(consumer)
        self.client.tell(operations.Cancelled(self.number, operation.consumer_tag))

    def _release(self, consumer: FrontConsumer) -> None:
        """Give back what waits for a consumer that is gone."""
        self.client.held_bytes(-consumer.held_bytes)
        held = list(consumer.held)
        consumer.held.clear()
        consumer.held_bytes = 0
        for delivery in held:
            self._settle_own(Settlement.RELEASE, delivery.delivery)

    def _upstream_flow(self, operation: operations.Flow) -> None:
        self.takes_publishes = operation.active
        self.client.rouse()

    def _alert(self, operation: operations.Alert) -> None:
        operation.channel = self.number  # type: ignore[misc]  # nobody else has it
        self.client.tell(operation)

    # deliveries

    def _deliver(self, operation: operations.Deliver) -> None:
        consumer = self.consumers.get(operation.consumer_tag)
        if consumer is None:
            self._settle_own(Settlement.RELEASE, operation.delivery)
        elif consumer.held or not self._admits(consumer, len(operation.message.body)):
            consumer.held.append(operation)
            size = len(operation.message.body)
            consumer.held_bytes += size
            self.client.held_bytes(size)
        else:
            self._hand_over(consumer, operation)

    def _admits(self, consumer: FrontConsumer, size: int) -> bool:
        if self.stopped or self.client.paused or (self.limit and len(self.outstanding) >= self.limit):
            return False
        return consumer.admits(size)

    def _hand_over(self, consumer: FrontConsumer, operation: operations.Deliver) -> None:
        """Write a delivery for the client."""
        client = self.client
        upstream, size = operation.delivery, len(operation.message.body)
        operation.channel = self.number  # type: ignore[misc]  # nobody else has it
        operation.message = restored(operation.message)  # type: ignore[misc]
        try:
            number = client.session.send(operation, client.now)
        except StateError:
            return  # the session has ended the channel or the connection in the meantime
        except (LocalError, FrameSyntaxError) as error:
            consumer.out += 1
            client.counts.undeliverable(client, consumer.request.queue, str(error))
            return
        client.wrote(size)
        consumer.spend(size)
        self.newest = number
        if consumer.acks:
            self._settle_own(Settlement.ACCEPT, upstream)
        elif not consumer.no_ack:
            consumer.out += 1
            self.outstanding[number] = Outstanding(upstream, consumer)

    def _too_large(self, operation: operations.DeliveryTooLarge) -> None:
        consumer = self.consumers.get(operation.consumer_tag)
        text = f"{operation.size} octets are over the limit of {operation.limit}"
        self.client.counts.undeliverable(self.client, consumer.request.queue if consumer else "", text)
        if consumer is None:
            self._settle_own(Settlement.RELEASE, operation.delivery)
        else:
            consumer.out += 1

    def pump(self) -> None:
        """Write what waits, as far as it may be written."""
        for consumer in list(self.consumers.values()):
            if consumer.held:
                self.pump_consumer(consumer)

    def pump_after(self, entry: Outstanding) -> None:
        """One delivery was settled."""
        if self.limit:
            self.pump()
        elif entry.consumer is not None and entry.consumer.held:
            self.pump_consumer(entry.consumer)

    def pump_consumer(self, consumer: FrontConsumer) -> None:
        """Write what waits for one consumer."""
        held = consumer.held
        while held and not self.over and self._admits(consumer, len(held[0].message.body)):
            operation = held.popleft()
            size = len(operation.message.body)
            consumer.held_bytes -= size
            self.client.held_bytes(-size)
            self._hand_over(consumer, operation)

    def _got(self, outcome: operations.Got) -> None:
        own = self._own.pop(outcome.first, None)
        if own is not None:
            own(outcome)
            return
        request: Any = self.sent.pop(outcome.first, None)
        if request is None:
            return
        client, upstream = self.client, outcome.delivery
        got = replace(
            outcome, channel=self.number, first=request.serial, last=request.serial, message=restored(outcome.message)
        )
        try:
            number = client.session.send(got, client.now)
        except (EncodeError, FrameSyntaxError) as error:
            self._settle_own(Settlement.RELEASE, upstream)
            self.refuse(request, refused(311, str(error)))
            return
        except StateError:
            return
        client.wrote(len(outcome.message.body))
        self.newest = number
        if not request.no_ack:
            self.outstanding[number] = Outstanding(upstream, None)
        elif not self.is_transacted:
            self._settle_own(Settlement.ACCEPT, upstream)

    # ends of requests

    def _noted(self, request: operations.Request, outcome: operations.Outcome) -> None:
        self.client.topology.note(request)

    def _declared(self, request: operations.DeclareQueue, outcome: operations.Outcome) -> None:
        self._reserved.pop(request.serial, None)
        self.client.topology.note(request)

    def _deleted(self, request: operations.DeleteQueue, outcome: operations.Outcome) -> None:
        self.client.topology.note(request)
        self.client.release_queue(request.queue)

    def _deleted_exchange(self, request: operations.DeleteExchange, outcome: operations.Outcome) -> None:
        self.known_exchanges.discard(request.exchange)
        self.client.topology.note(request)

    def _consuming(self, request: operations.Consume, outcome: operations.Outcome) -> None:
        consumer = self.consumers.get(request.consumer_tag)
        if consumer is not None:
            consumer.is_running = True
            if request.consumer_tag in self._flushing:
                self._flush(consumer)
            self.client.rouse()

    def _consumer_gone(self, request: operations.Cancel, outcome: operations.Outcome) -> None:
        consumer = self.consumers.pop(request.consumer_tag, None)
        if consumer is not None:
            self._release(consumer)

    def _recovered(self, request: operations.Recover, outcome: operations.Outcome) -> None:
        """All that was out is in its queue again; so is what was held here."""
        for consumer in self.consumers.values():
            consumer.out = 0
            self.client.held_bytes(-consumer.held_bytes)
            consumer.held.clear()
            consumer.held_bytes = 0
        self.outstanding.clear()

    def _transaction_over(self, request: operations.Request, outcome: operations.Outcome) -> None:
        self.committing = self.in_transaction = False
        if type(request) is operations.TxRollback:
            for number, entry in self._undecided:
                self.outstanding[number] = entry
                if entry.consumer is not None:
                    entry.consumer.out += 1
            self.outstanding = dict(sorted(self.outstanding.items()))
        self._undecided.clear()
        later, self._later = self._later, []
        for settlement, number in later:
            self._settle_own(settlement, number)
        if self._transaction:
            serials = list(self._transaction.values())
            self._transaction.clear()
            if self.client.rules.always_confirms:
                self.client.tell(operations.Confirmed(self.number, serials[0], serials[-1]))
        self.client.rouse()

    # -------------------------------------------------------------------------- loss and return of the upstream

    def lost(self, hard: bool) -> None:
        """The upstream connection is gone. ``hard``: the upstream ended it over something that it was sent."""
        if self.over:
            return
        self.up = None
        self._own.clear()
        self._later.clear()
        self._undecided.clear()
        self._asking = False
        self.known_exchanges.clear()
        self.takes_publishes = True
        self.upstream_prefetch = -1
        self._void = self.newest
        self.outstanding.clear()
        for consumer in self.consumers.values():
            consumer.is_running = consumer.takes_once
            consumer.out = 0
            self.client.held_bytes(-consumer.held_bytes)
            consumer.held.clear()
            consumer.held_bytes = 0
        for tag in list(self._flushing):
            self._flushed(tag)
        if self.in_transaction or self.committing:
            self.fail(506, "RESOURCE_ERROR - the broker was lost within a transaction, which is rolled back unless "
                           "its commit had reached it")  # fmt: skip
            return
        if hard and self.sent:
            self._strikes += 1
            if self._strikes >= STRIKES_MAX:
                serial = next((request.serial for request in self.sent.values() if request.serial), 0)
                self.fail(541, "INTERNAL_ERROR - the broker ends the connection over what was sent here", serial)
                return
        if self.closing is not None:
            self._close_when_safe()

    def restore(self) -> None:
        """An upstream connection is there again: go on where the old one ended."""
        if self.over:
            return
        # What has no serial is a consumer that was being restored, and is one of those that are restored now.
        pending = [request for request in self.sent.values() if request.serial]
        if not pending and not self.consumers and not self.is_transacted and self.up is None:
            self.confirms_upstream = False
            return  # it is made when it is needed
        self.sent.clear()
        self.confirms_upstream = False
        waits = {request.consumer_tag for request in pending if type(request) is operations.Consume}
        try:
            if self.is_transacted and not any(type(request) is operations.TxSelect for request in pending):
                self._ask(operations.TxSelect(self.number), _nothing)
            selects = any(type(request) is operations.SelectConfirm for request in pending)
            if not self.is_transacted and (self.unconfirmed or self.confirms) and not selects:
                self._ask(operations.SelectConfirm(self.number), _nothing)
                self.confirms_upstream = True
            for tag, consumer in list(self.consumers.items()):
                if consumer.takes_once:
                    continue
                if consumer.waiting is not None:
                    self._start(consumer)
                    continue
                self._prefetch(consumer)
                if tag not in waits:
                    self._send(replace(consumer.request, serial=0))
            for request in pending:
                if type(request) is operations.Publish:
                    request = replace(request, message=marked(request.message))
                    self.client.counts.resent()
                elif type(request) is operations.SelectConfirm:
                    self.confirms_upstream = True
                self._send(request)
        except (LocalError, LimitExceeded, BrokerUnavailable) as error:
            self.fail(506, f"RESOURCE_ERROR - the channel cannot go on at the broker: {error}"[:255])


def _nothing(outcome: operations.Outcome) -> None:
    """It is well."""


QUERIES: Final = frozenset({operations.QueryExchange, operations.QueryQueue})
LOCAL: Final = frozenset(
    {operations.OpenChannel, operations.CloseChannel, operations.Flow, operations.Qos}
)  # fmt: skip
"""What needs no upstream."""
_ALONE: Final = QUERIES
"""What is asked on another channel, and so waits for what was asked before it."""

HANDLERS: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any], None]]] = {
    **dict.fromkeys(treatment.TREATMENTS, FrontChannel._refused),
    operations.CloseChannel: FrontChannel._close,
    operations.Flow: FrontChannel._flow,
    **dict.fromkeys(
        (
            operations.DeclareExchange, operations.DeleteExchange, operations.BindExchange, operations.UnbindExchange,
            operations.QueryBinding,
        ),
        FrontChannel._pass,
    ),
    operations.DeclareQueue: FrontChannel._declare_queue,
    **dict.fromkeys(
        (operations.BindQueue, operations.UnbindQueue, operations.PurgeQueue, operations.DeleteQueue),
        FrontChannel._named,
    ),
    **dict.fromkeys(QUERIES, FrontChannel._query),
    operations.SelectConfirm: FrontChannel._select,
    operations.Publish: FrontChannel._publish,
    operations.Qos: FrontChannel._qos,
    operations.Consume: FrontChannel._consume,
    operations.Credit: FrontChannel._credit,
    operations.Cancel: FrontChannel._cancel,
    operations.Get: FrontChannel._get,
    operations.Settle: FrontChannel._settle,
    operations.Recover: FrontChannel._recover,
    operations.TxSelect: FrontChannel._tx_select,
    operations.TxCommit: FrontChannel._tx_end,
    operations.TxRollback: FrontChannel._tx_end,
}  # fmt: skip
"""How each operation of a client is carried out."""

RECEIVED: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any], None]]] = {
    operations.Deliver: FrontChannel._deliver,
    operations.DeliveryTooLarge: FrontChannel._too_large,
    operations.Got: FrontChannel._got,
    operations.Confirmed: FrontChannel._confirmed,
    operations.Returned: FrontChannel._returned,
    operations.Refused: FrontChannel._publish_refused,
    operations.Failed: FrontChannel._failed,
    operations.ChannelClosed: FrontChannel._channel_closed,
    operations.Cancelled: FrontChannel._cancelled,
    operations.Flow: FrontChannel._upstream_flow,
    operations.Alert: FrontChannel._alert,
}
"""What the upstream says, beside the outcomes of requests."""

FINISH: Final[Mapping[type[operations.Operation], Callable[[FrontChannel, Any, operations.Outcome], None]]] = {
    **dict.fromkeys(
        (
            operations.DeclareExchange, operations.BindExchange, operations.UnbindExchange, operations.BindQueue,
            operations.UnbindQueue,
        ),
        FrontChannel._noted,
    ),
    operations.DeclareQueue: FrontChannel._declared,
    operations.DeleteQueue: FrontChannel._deleted,
    operations.DeleteExchange: FrontChannel._deleted_exchange,
    operations.Consume: FrontChannel._consuming,
    operations.Cancel: FrontChannel._consumer_gone,
    operations.Recover: FrontChannel._recovered,
    operations.TxCommit: FrontChannel._transaction_over,
    operations.TxRollback: FrontChannel._transaction_over,
}  # fmt: skip
"""What else follows from the outcome of a request."""

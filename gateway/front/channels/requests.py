"""Requests of a client about topology, limits, confirms and transactions; and what follows from their outcomes."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.errors import RemoteError
from gateway.front import rights
from gateway.front.channels import deliveries, settling, treatment, windows
from gateway.front.channels.refusals import refused
from gateway.front.counts import PUBLISHES

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel

FRESH: Final = "front.gen-"
"""How the names begin that the front makes for queues."""
TOPICS: Final = "amq.topic"
"""The exchange of topics in JMS."""
EXCHANGES: Final = {
    "": "direct", "amq.direct": "direct", "amq.fanout": "fanout", TOPICS: "topic", "amq.match": "headers",
}  # fmt: skip
"""Exchanges that every broker has, and their types."""
NAME_OCTETS: Final = 12
"""Octets of chance in such a name."""


def flow(channel: FrontChannel, request: operations.Flow) -> None:
    channel.stopped = not request.active
    deliveries.pump(channel)


def pass_on(channel: FrontChannel, request: operations.Request) -> None:
    channel.check(request)
    channel.send(channel.rewritten(request))


def named(channel: FrontChannel, request: Any) -> None:
    """A request about a queue."""
    if channel.name_queue(request) and type(request) is operations.BindQueue and not request.routing_key:
        request.routing_key = request.queue  # type: ignore[misc]  # nobody else has it
    pass_on(channel, request)


def declare_queue(channel: FrontChannel, request: Any) -> None:
    client = channel.client
    if not request.queue:
        if not request.passive:
            request.queue = client.fresh_name(FRESH, NAME_OCTETS)
        else:
            channel.name_queue(request)
    name = request.queue
    channel.check(request)
    sent = channel.rewritten(request)
    stays = request.exclusive and sent.durable and not sent.exclusive
    if stays:
        channel.check(sent)  # it needs the rights for a queue that outlives its client
    reserves = request.exclusive and not request.passive and name not in client.exclusive
    channel.send(sent)
    channel.last_queue = name
    if reserves:
        client.reserve_queue(name, stays)
        channel.reserved[request.serial] = name


def query(channel: FrontChannel, request: operations.Request) -> None:
    """Ask whether something is there, without the channel's being at stake."""
    channel.check(request)
    if channel.client.link.target.is_native:
        channel.send(request)
        return

    def answered(outcome: operations.Outcome | RemoteError) -> None:
        if channel.over:
            return
        if isinstance(outcome, RemoteError):
            channel.refuse(request, outcome)
            return
        if type(outcome) is operations.ExchangeFound:
            outcome = _described(channel, outcome)
        channel.answer(outcome, request)

    channel.client.link.ask(channel, replace(request), answered)


def _described(channel: FrontChannel, found: operations.ExchangeFound) -> operations.ExchangeFound:
    """An exchange that is there with what a classic upstream does not tell, if it is one of every broker's or the
    client's own. Qpid's JMS client cannot use a topic whose exchange has no type."""
    declared = channel.client.topology.exchanges.get(found.exchange)
    if declared is not None:
        return replace(found, type=declared.type, durable=declared.durable)
    kind = EXCHANGES.get(found.exchange)
    return found if kind is None else replace(found, type=kind, durable=True)


def query_binding(channel: FrontChannel, request: operations.QueryBinding) -> None:
    """Ask for a binding. Qpid's clients do before they consume; where the upstream cannot be asked they hear what it
    has of exchange and queue, and bind again."""
    client = channel.client
    if client.link.target.capabilities.query_binding:
        pass_on(channel, request)
        return
    rights.check(request, client.access.principal, client.access.broker, client.exclusive)
    questions: list[operations.Request] = [operations.QueryExchange(0, request.exchange)] if request.exchange else []
    if request.queue:
        questions.append(operations.QueryQueue(0, request.queue))
    missing: set[type[operations.Request]] = set()
    is_subscription = _asks_for_subscription(channel, request)

    def go_on() -> None:
        if questions:
            client.link.ask(channel, questions[0], answered)
            return
        exchange, queue = operations.QueryExchange not in missing, operations.QueryQueue not in missing
        matched = queue and not request.exchange and request.routing_key in (None, "", request.queue)
        matched = matched or (exchange and queue and is_subscription)
        number, serial, arguments = channel.number, request.serial, matched or not request.arguments
        client.tell(
            operations.BindingFound(number, serial, serial, exchange, queue, matched, matched, arguments, matched)
        )

    def answered(outcome: operations.Outcome | RemoteError) -> None:
        if channel.over:
            return
        asked = questions.pop(0)
        if isinstance(outcome, RemoteError):
            if outcome.reply_code != 404:
                channel.refuse(request, outcome)
                return
            missing.add(type(asked))
        go_on()

    go_on()


def _asks_for_subscription(channel: FrontChannel, request: operations.QueryBinding) -> bool:
    """Whether a question is the one of Qpid's JMS client for a durable subscription: whether its queue is bound at all,
    and then with its key. It takes a queue for a subscription if the first is so, deletes it if the second is not, and
    binds it again if both are."""
    queue = request.queue if request.exchange == TOPICS else ""
    is_first = not request.routing_key
    asks = bool(queue) and (is_first or channel.subscription == queue)
    channel.subscription = queue if is_first else ""
    return asks


def select_confirms(channel: FrontChannel, request: operations.SelectConfirm) -> None:
    if channel.is_transacted and not channel.client.rules.confirms_in_transactions:
        raise refused(406, "cannot switch from tx to confirm mode")
    channel.confirms = True
    channel.done(request)


def qos(channel: FrontChannel, request: operations.Qos) -> None:
    treatment.check(request, channel.client.link.target)
    if request.whole_channel:
        channel.limit = request.prefetch_count
    else:
        channel.prefetch = request.prefetch_count
        if channel.client.rules.qos_on_running:
            for consumer in channel.consumers.values():
                consumer.limit = channel.prefetch
    channel.done(request)
    deliveries.pump(channel)
    for consumer in channel.consumers.values():
        windows.check(channel, consumer)


def tx_select(channel: FrontChannel, request: operations.TxSelect) -> None:
    if channel.is_transacted:
        channel.done(request)
        return
    if channel.confirms and not channel.client.rules.confirms_in_transactions:
        raise refused(406, "cannot switch from confirm to tx mode")
    if channel.confirms_upstream:
        if channel.unconfirmed or channel.sent or channel.outstanding or channel.consumers:
            raise refused(406, "tx.select on a channel that has published, and consumes: open another channel")
        up, channel.up = channel.up, None
        channel.confirms_upstream = False
        channel.upstream_prefetch = -1
        if up is not None:
            up.detach()
    channel.send(request)
    channel.is_transacted = True


def tx_end(channel: FrontChannel, request: operations.Request) -> None:
    if not channel.is_transacted:
        raise refused(channel.client.rules.untransacted_code, "channel is not transactional")
    if type(request) is operations.TxCommit:
        settling.give_back(channel)
    channel.send(request)
    channel.committing = True


def refuse_always(channel: FrontChannel, request: operations.Request) -> None:
    """An operation that no upstream can be asked."""
    treatment.check(request, channel.client.link.target)


def unreserve(channel: FrontChannel, request: operations.Request) -> None:
    name = channel.reserved.pop(request.serial, "")
    if name:
        channel.client.release_queue(name)


def noted(channel: FrontChannel, request: operations.Request, outcome: operations.Outcome) -> None:
    channel.client.topology.note(request)


def declared(channel: FrontChannel, request: operations.DeclareQueue, outcome: operations.Outcome) -> None:
    channel.reserved.pop(request.serial, None)
    channel.client.topology.note(request)


def deleted_queue(channel: FrontChannel, request: operations.DeleteQueue, outcome: operations.Outcome) -> None:
    channel.client.topology.note(request)
    channel.client.release_queue(request.queue)


def deleted_exchange(channel: FrontChannel, request: operations.DeleteExchange, outcome: operations.Outcome) -> None:
    channel.known_exchanges.discard(request.exchange)
    channel.client.topology.note(request)


def transaction_over(channel: FrontChannel, request: operations.Request, outcome: operations.Outcome) -> None:
    channel.committing = channel.in_transaction = False
    if type(request) is operations.TxRollback and channel.client.link.is_up:  # else all of it goes back with the loss
        channel.is_giving_back = settling.give_back(channel, is_rollback=True)
    if type(request) is operations.TxRollback:
        for number, entry, _ in channel.undecided:
            channel.outstanding[number] = entry
            if entry.consumer is not None:
                entry.consumer.out += 1
        channel.outstanding = dict(sorted(channel.outstanding.items()))
    else:
        for settlement, each in groupby(channel.undecided, itemgetter(2)):
            settling.record(channel, settlement, [entry for _, entry, _ in each])
    channel.undecided.clear()
    for consumer in channel.consumers.values():
        consumer.window.undecided = 0
        windows.check(channel, consumer)
    if channel.is_giving_back:
        channel.ask(operations.TxCommit(channel.number), lambda outcome: _given_back(channel))
    else:
        _settle_later(channel)
    if channel.transaction:
        if type(request) is operations.TxCommit:
            channel.client.counts.add(PUBLISHES, "confirmed", len(channel.transaction))
        channel.transaction.clear()
    channel.client.rouse()


def _given_back(channel: FrontChannel) -> None:
    """What was given back in a transaction that is rolled back is in its queues again."""
    channel.is_giving_back = False
    _settle_later(channel)
    channel.client.rouse()


def _settle_later(channel: FrontChannel) -> None:
    """Settle what is the front's to settle, and has waited for the commit."""
    later, channel.later = channel.later, []
    for settlement, number in later:
        channel.settle_own(settlement, number)

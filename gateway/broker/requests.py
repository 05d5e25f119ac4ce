"""The requests of a client on one of its channels, and how each is answered: a table, request -> function.

A function that cannot do what it is asked raises a :class:`~gateway.errors.RemoteError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.amqp.operations import (
    Acquire,
    Acquired,
    BindExchange,
    BindQueue,
    Cancel,
    Consume,
    Consuming,
    Credit,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Done,
    ExchangeFound,
    Flow,
    Get,
    Got,
    GotNothing,
    Operation,
    Publish,
    PurgeQueue,
    Qos,
    QueryBinding,
    QueryExchange,
    QueryQueue,
    Recover,
    Removed,
    Request,
    SelectConfirm,
    Settle,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindExchange,
    UnbindQueue,
)
from gateway.broker import publishing
from gateway.broker.arguments import consumer_arguments
from gateway.broker.channels import Channel, Transaction
from gateway.broker.consumers import Consumer, CreditBalance, Window
from gateway.broker.dtx import DTX_HANDLERS
from gateway.broker.queues import Queue
from gateway.broker.refusals import missing, refusal, reply_text
from gateway.broker.turns import Job
from gateway.errors import EncodeError, FrameSyntaxError, LocalError, RemoteError


def _done(channel: Channel, request: Request, now: float) -> None:
    channel.connection.send(Done(channel.number, request.serial, request.serial), now)


def _when_done(job: Job, channel: Channel, request: Request, now: float) -> Job:
    yield from job
    _done(channel, request, now)


def _queue_name(channel: Channel, name: str) -> str:
    """An empty name stands for the queue that the channel declared last (0-9-1, queue.bind)."""
    if name:
        return name
    if not channel.last_queue:
        raise refusal(404, "no previously declared queue")
    return channel.last_queue


def _queue(channel: Channel, name: str) -> Queue:
    connection = channel.connection
    return connection.vhost.queue(_queue_name(channel, name), connection)


# ---------------------------------------------------------------------------------------------- exchanges


def _declare_exchange(channel: Channel, request: DeclareExchange, now: float) -> None:
    channel.connection.vhost.declare_exchange(request, channel.connection.declared)
    _done(channel, request, now)


def _delete_exchange(channel: Channel, request: DeleteExchange, now: float) -> Job:
    return _when_done(channel.connection.vhost.delete_exchange(request), channel, request, now)


def _bind_exchange(channel: Channel, request: BindExchange, now: float) -> None:
    vhost = channel.connection.vhost
    destination = vhost.exchange(request.destination)
    vhost.bind(request.source, destination, request.routing_key, request.arguments, channel.connection.declared)
    _done(channel, request, now)


def _unbind_exchange(channel: Channel, request: UnbindExchange, now: float) -> Job:
    vhost = channel.connection.vhost
    destination = vhost.exchanges.get(request.destination)
    job = vhost.unbind(request.source, destination, request.routing_key, request.arguments)
    return _when_done(job, channel, request, now)


def _query_exchange(channel: Channel, request: QueryExchange, now: float) -> None:
    exchange = channel.connection.vhost.exchange(request.exchange)
    channel.connection.send(
        ExchangeFound(
            channel.number,
            request.serial,
            request.serial,
            request.exchange,
            exchange.type,
            exchange.durable,
            exchange.table,
        ),
        now,
    )


# ------------------------------------------------------------------------------------------------- queues


def _declared(channel: Channel, request: Request, queue: Queue, now: float) -> None:
    channel.connection.send(
        Declared(
            channel.number,
            request.serial,
            request.serial,
            queue.name,
            queue.ready,
            len(queue.consumers),
            queue.durable,
            queue.table,
            queue.auto_delete,
        ),
        now,
    )


def _declare_queue(channel: Channel, request: DeclareQueue, now: float) -> None:
    connection = channel.connection
    name = _queue_name(channel, request.queue) if request.passive else request.queue
    queue = connection.vhost.declare_queue(request, name, connection, now)
    channel.last_queue = queue.name
    _declared(channel, request, queue, now)


def _query_queue(channel: Channel, request: QueryQueue, now: float) -> None:
    queue = _queue(channel, request.queue)
    _declared(channel, request, queue, now)


def _bind_queue(channel: Channel, request: BindQueue, now: float) -> None:
    name = _queue_name(channel, request.queue)
    # Neither queue nor key given: the queue's name is the key, too (0-9-1, queue.bind).
    routing_key = request.routing_key if request.queue or request.routing_key else name
    queue = _queue(channel, name)
    connection = channel.connection
    connection.vhost.bind(request.exchange, queue, routing_key, request.arguments, connection.declared)
    _done(channel, request, now)


def _unbind_queue(channel: Channel, request: UnbindQueue, now: float) -> Job:
    vhost = channel.connection.vhost
    name = _queue_name(channel, request.queue)
    routing_key = request.routing_key if request.queue or request.routing_key else name
    queue = _queue(channel, name) if name in vhost.queues else None
    arguments = None if channel.connection.rules.unbinds_by_key else request.arguments
    return _when_done(vhost.unbind(request.exchange, queue, routing_key, arguments), channel, request, now)


def _query_binding(channel: Channel, request: QueryBinding, now: float) -> Job:
    connection = channel.connection
    return connection.vhost.query_binding(request, lambda found: connection.send(found, now))


def _purge_queue(channel: Channel, request: PurgeQueue, now: float) -> None:
    count = _queue(channel, request.queue).purge()
    channel.connection.send(Removed(channel.number, request.serial, request.serial, count), now)


def _delete_queue(channel: Channel, request: DeleteQueue, now: float) -> Job:
    connection = channel.connection
    name = _queue_name(channel, request.queue)
    queue = connection.vhost.queues.get(name)
    count = connection.vhost.delete_queue(request, name, connection, now)
    while queue is not None and (queue.bindings_to or queue.consumers):
        yield
    connection.send(Removed(channel.number, request.serial, request.serial, count), now)


# ---------------------------------------------------------------------------------------------- consuming


def _qos(channel: Channel, request: Qos, now: float) -> None:
    if request.whole_channel:
        channel.limit(request.prefetch_count, request.prefetch_size)
    else:
        channel.prefetch = (request.prefetch_count, request.prefetch_size)
        if channel.connection.rules.qos_on_running:
            for consumer in channel.consumers.values():
                consumer.window.count_max, consumer.window.size_max = channel.prefetch
    _done(channel, request, now)
    channel.wake(now)


def _consume(channel: Channel, request: Consume, now: float) -> None:
    connection = channel.connection
    vhost = connection.vhost
    queue = _queue(channel, request.queue)
    tag = request.consumer_tag or vhost.fresh_name("amq.ctag-")
    if tag in channel.consumers:
        raise refusal(530, f"attempt to reuse consumer tag '{tag}'")
    arguments = consumer_arguments(request.arguments, f"consumer of {vhost.title('queue', queue.name)}")
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=request.no_ack,
        exclusive=request.exclusive,
        acquires=request.acquired and not arguments.browse,
        priority=arguments.priority,
        selector=arguments.selector,
        no_local=request.no_local or arguments.no_local,
        auto_close=arguments.auto_close,
        credit=CreditBalance() if request.credit else None,
        window=Window(*channel.prefetch),
    )
    vhost.add_consumer(consumer)
    channel.consumers[tag] = consumer
    connection.send(Consuming(channel.number, request.serial, request.serial, tag), now)
    queue.dispatch(now)


def _credit(channel: Channel, request: Credit, now: float) -> Job | None:
    consumer = channel.consumers.get(request.consumer_tag)
    if consumer is None or consumer.credit is None:
        raise missing(f"destination '{request.consumer_tag}'")
    if request.stopped:
        consumer.credit.clear()
        return None
    consumer.credit.grant(request.messages, request.octets)
    consumer.flushing = request.flush
    consumer.queue.wake(consumer)
    consumer.queue.dispatch(now)
    return _flushed(channel, request, consumer, now) if request.flush else None


def _flushed(channel: Channel, request: Credit, consumer: Consumer, now: float) -> Job:
    """message.flush: complete when the consumer has all that there is for it, which may take some turns."""
    while consumer.queue.pending and consumer.admits(0):
        yield
    consumer.flushing = False
    if consumer.credit is not None:
        consumer.credit.clear()
    _done(channel, request, now)


def _cancel(channel: Channel, request: Cancel, now: float) -> None:
    consumer = channel.consumers.get(request.consumer_tag)
    if consumer is not None:
        channel.cancel(consumer, now)
    _done(channel, request, now)


def _flow(channel: Channel, request: Flow, now: float) -> None:
    channel.stopped = not request.active
    if request.active:
        channel.wake(now)


def _get(channel: Channel, request: Get, now: float) -> Job:
    connection, serial = channel.connection, request.serial
    queue = _queue(channel, request.queue)
    connection.vhost.touch(queue, now)
    if not request.no_ack and len(channel.unsettled) >= connection.broker.limits.unacked:
        raise refusal(506, f"{connection.broker.limits.unacked} deliveries are not acknowledged")
    while (entry := queue.next_for(connection, now)) is not None or queue.unfinished:
        if entry is None:
            yield
            if connection.channels.get(channel.number) is not channel:
                return
            continue
        envelope = entry.envelope
        got = Got(
            channel.number,
            serial,
            serial,
            0,
            entry.redelivered,
            envelope.exchange,
            envelope.routing_key,
            envelope.message,
            queue.ready - 1,
        )
        try:
            delivery = connection.session.send(got, now)
        except (EncodeError, FrameSyntaxError) as error:
            connection.skip(entry, error)
            yield
            if connection.channels.get(channel.number) is not channel:
                return
            continue
        except LocalError as error:
            raise RemoteError(311, reply_text(311, f"{queue.name}: {error}")) from None
        break
    else:
        connection.send(GotNothing(channel.number, serial, serial), now)
        return
    queue.take(entry)
    connection.wrote(entry.size)
    if request.no_ack:
        entry.drop()
    else:
        channel.unsettled[delivery] = (entry, None)
    queue.move_up(now)


def _acquire(channel: Channel, request: Acquire, now: float) -> Job:
    taken: list[tuple[int, int]] = []
    yield from channel.acquire(request.deliveries, taken, now)
    channel.connection.send(Acquired(channel.number, request.serial, request.serial, tuple(taken)), now)


def _recover(channel: Channel, request: Recover, now: float) -> Job:
    if request.requeue or not channel.connection.rules.redelivers_first:
        _done(channel, request, now)
        return channel.recover(request.requeue, now)
    return _when_done(channel.recover(request.requeue, now), channel, request, now)


# ------------------------------------------------------------------------------ confirms and transactions


def _select_confirm(channel: Channel, request: SelectConfirm, now: float) -> None:
    if channel.transaction is not None and not channel.connection.rules.confirms_in_transactions:
        raise refusal(406, "cannot switch from tx to confirm mode")
    channel.confirms = True
    _done(channel, request, now)


def _tx_select(channel: Channel, request: TxSelect, now: float) -> None:
    if channel.confirms and not channel.connection.rules.confirms_in_transactions:
        raise refusal(406, "cannot switch from confirm to tx mode")
    if channel.distributed:
        raise refusal(409, "cannot switch from dtx to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
    _done(channel, request, now)


def _tx_commit(channel: Channel, request: TxCommit, now: float) -> Job:
    _require_tx(channel)
    return _when_done(publishing.commit(channel, now), channel, request, now)


def _tx_rollback(channel: Channel, request: TxRollback, now: float) -> Job:
    _require_tx(channel)
    return _when_done(channel.roll_back(), channel, request, now)


def _require_tx(channel: Channel) -> None:
    if channel.transaction is None:
        raise refusal(channel.connection.rules.untransacted_code, "channel is not transactional")


HANDLERS: Mapping[type[Operation], Callable[[Channel, Any, float], Job | None]] = {
    DeclareExchange: _declare_exchange,
    DeleteExchange: _delete_exchange,
    BindExchange: _bind_exchange,
    UnbindExchange: _unbind_exchange,
    QueryExchange: _query_exchange,
    DeclareQueue: _declare_queue,
    QueryQueue: _query_queue,
    BindQueue: _bind_queue,
    UnbindQueue: _unbind_queue,
    QueryBinding: _query_binding,
    PurgeQueue: _purge_queue,
    DeleteQueue: _delete_queue,
    SelectConfirm: _select_confirm,
    Publish: publishing.publish,
    Qos: _qos,
    Consume: _consume,
    Credit: _credit,
    Cancel: _cancel,
    Flow: _flow,
    Get: _get,
    Settle: Channel.settle,
    Acquire: _acquire,
    Recover: _recover,
    TxSelect: _tx_select,
    TxCommit: _tx_commit,
    TxRollback: _tx_rollback,
    **DTX_HANDLERS,
}
"""Every request that a channel takes; what takes long is a job."""

QUERIES: frozenset[type[Operation]] = frozenset({QueryExchange, QueryQueue})
"""Requests to which "it is not there" is an answer."""

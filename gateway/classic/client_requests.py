"""What a client's requests become, which method answers each, and what the answer means.

The table :data:`ASK` holds those that are one method and one answer; what needs more is in
:mod:`gateway.classic.client_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import operations as o
from gateway.classic import methods as m
from gateway.errors import Unsupported
from gateway.values import Table

if TYPE_CHECKING:
    from gateway.classic.client_channel import ClientChannel

Build = Callable[["ClientChannel", Any], m.Method]
Finish = Callable[["ClientChannel", int, Any, Any], None]


class Asked(NamedTuple):
    """A request under way. ``serial`` 0: the session's own."""

    serial: int
    request: Any
    key: int
    """Of the method that was sent."""
    answers: tuple[type[m.Method], ...]
    """By their meaning."""
    finish: Finish


class Ask(NamedTuple):
    """How a request is asked: the method it becomes, what may answer that, what the answer means."""

    build: Build
    answers: tuple[type[m.Method], ...]
    finish: Finish


def done(channel: ClientChannel, serial: int, request: Any, method: m.Method) -> None:
    """The answer says only that it was done."""
    channel.session.emit(o.Done(channel.number, serial, serial))


# ------------------------------------------------------------------------------------------------- channel


def _open(channel: ClientChannel, request: o.OpenChannel) -> m.Method:
    return m.ChannelOpen()


def _opened(channel: ClientChannel, serial: int, request: o.OpenChannel, method: m.Method) -> None:
    if not channel.session.dialect.access_request:
        done(channel, serial, request, method)
        return
    ticket = m.AccessRequest(channel.session.config.realm)
    channel.write(ticket)
    channel.requests.append(Asked(serial, request, ticket.key, (m.AccessRequestOk,), _granted))


def _granted(channel: ClientChannel, serial: int, request: o.OpenChannel, method: m.AccessRequestOk) -> None:
    channel.ticket = method.ticket
    done(channel, serial, request, method)


# ------------------------------------------------------------------------------------------------ exchange


def _declare_exchange(channel: ClientChannel, request: o.DeclareExchange) -> m.Method:
    if request.passive:
        return _passive_exchange(channel, request)
    return m.ExchangeDeclare(
        channel.ticket, request.exchange, request.type, False, request.durable, request.auto_delete,
        request.internal, False, request.arguments,
    )  # fmt: skip


def _passive_exchange(channel: ClientChannel, request: o.DeclareExchange | o.QueryExchange) -> m.Method:
    # Without a type: Broker-J ends the connection (530) over another type than the exchange has.
    return m.ExchangeDeclare(channel.ticket, request.exchange, "", True, False, False, False, False, {})


def _exchange_found(channel: ClientChannel, serial: int, request: o.QueryExchange, method: m.Method) -> None:
    channel.session.emit(o.ExchangeFound(channel.number, serial, serial, request.exchange))


def _delete_exchange(channel: ClientChannel, request: o.DeleteExchange) -> m.Method:
    return m.ExchangeDelete(channel.ticket, request.exchange, request.if_unused, False)


def _bind_exchange(channel: ClientChannel, request: o.BindExchange) -> m.Method:
    need(channel.session.capabilities.exchange_bindings, "exchange.bind")
    return m.ExchangeBind(0, request.destination, request.source, request.routing_key, False, request.arguments)


def _unbind_exchange(channel: ClientChannel, request: o.UnbindExchange) -> m.Method:
    need(channel.session.capabilities.exchange_bindings, "exchange.unbind")
    return m.ExchangeUnbind(0, request.destination, request.source, request.routing_key, False, request.arguments)


BOUND: Final[Mapping[int, tuple[bool, bool, bool, bool]]] = {
    0: (True, True, True, True),
    1: (False, True, False, False),
    2: (True, False, False, False),
    3: (True, True, False, False),
    4: (True, True, False, False),
    5: (True, True, False, False),
    6: (True, True, False, False),
}
"""exchange.bound-ok's reply code -> exchange found, queue found, matched, key matched. Qpid's codes: 1 no such
exchange, 2 no such queue, 3 no bindings, 4 queue not bound, 5 nothing bound with that key, 6 the queue is not bound
with that key."""


def _query_binding(channel: ClientChannel, request: o.QueryBinding) -> m.Method:
    need(channel.session.dialect.query_binding, "exchange.bound")
    need(not request.arguments, "exchange.bound with arguments")
    return m.ExchangeBound(request.exchange, request.routing_key or "", request.queue)


def _binding_found(channel: ClientChannel, serial: int, request: o.QueryBinding, method: m.ExchangeBoundOk) -> None:
    exchange, queue, matched, key = BOUND.get(method.reply_code, BOUND[3])
    found = o.BindingFound(channel.number, serial, serial, exchange, queue, matched, key, matched, matched)
    channel.session.emit(found)


# --------------------------------------------------------------------------------------------------- queue


def _declare_queue(channel: ClientChannel, request: o.DeclareQueue) -> m.Method:
    return m.QueueDeclare(
        channel.ticket, request.queue, request.passive, request.durable, request.exclusive, request.auto_delete,
        False, request.arguments,
    )  # fmt: skip


def _query_queue(channel: ClientChannel, request: o.QueryQueue) -> m.Method:
    return m.QueueDeclare(channel.ticket, request.queue, True, False, False, False, False, {})


def _declared(channel: ClientChannel, serial: int, request: Any, method: m.QueueDeclareOk) -> None:
    channel.session.emit(
        o.Declared(channel.number, serial, serial, method.queue, method.message_count, method.consumer_count)
    )


def _bind_queue(channel: ClientChannel, request: o.BindQueue) -> m.Method:
    return m.QueueBind(channel.ticket, request.queue, request.exchange, request.routing_key, False, request.arguments)


def _unbind_queue(channel: ClientChannel, request: o.UnbindQueue) -> m.Method:
    need(channel.session.dialect.unbind_queue, "queue.unbind")
    return m.QueueUnbind(channel.ticket, request.queue, request.exchange, request.routing_key, request.arguments)


def _purge_queue(channel: ClientChannel, request: o.PurgeQueue) -> m.Method:
    return m.QueuePurge(channel.ticket, request.queue, False)


def _delete_queue(channel: ClientChannel, request: o.DeleteQueue) -> m.Method:
    return m.QueueDelete(channel.ticket, request.queue, request.if_unused, request.if_empty, False)


def _removed(channel: ClientChannel, serial: int, request: Any, method: m.QueuePurgeOk | m.QueueDeleteOk) -> None:
    channel.session.emit(o.Removed(channel.number, serial, serial, method.message_count))


# --------------------------------------------------------------------------------------------------- basic


def _qos(channel: ClientChannel, request: o.Qos) -> m.Method:
    need(channel.session.dialect.prefetch_size or not request.prefetch_size, "basic.qos with a prefetch size")
    return m.BasicQos(request.prefetch_size, request.prefetch_count, request.whole_channel)


def _consume(channel: ClientChannel, request: o.Consume) -> m.Method:
    dialect = channel.session.dialect
    arguments: Table = request.arguments
    if not request.acquired:
        need(dialect.browse, "a consumer that does not acquire")
        arguments = {**arguments, "x-filter-no-consume": True}
    common = (channel.ticket, request.queue, request.consumer_tag, request.no_local, request.no_ack, request.exclusive)
    if dialect.consume_arguments:
        return m.BasicConsume(*common, False, arguments)
    need(not arguments, "basic.consume with arguments")
    return m.BasicConsume08(*common, False)


def _consuming(channel: ClientChannel, serial: int, request: o.Consume, method: m.BasicConsumeOk) -> None:
    channel.consumers[method.consumer_tag] = request.no_ack
    channel.session.emit(o.Consuming(channel.number, serial, serial, method.consumer_tag))


def _cancel(channel: ClientChannel, request: o.Cancel) -> m.Method:
    return m.BasicCancel(request.consumer_tag)


def _cancelled(channel: ClientChannel, serial: int, request: o.Cancel, method: m.BasicCancelOk) -> None:
    channel.consumers.pop(request.consumer_tag, None)
    done(channel, serial, request, method)


def _get(channel: ClientChannel, request: o.Get) -> m.Method:
    return m.BasicGet(channel.ticket, request.queue, request.no_ack)


def _got_nothing(channel: ClientChannel, serial: int, request: o.Get, method: m.BasicGetEmpty) -> None:
    channel.session.emit(o.GotNothing(channel.number, serial, serial))


def _recover(channel: ClientChannel, request: o.Recover) -> m.Method:
    dialect = channel.session.dialect
    need(dialect.recover_without_requeue or request.requeue, "basic.recover without requeue")
    return dialect.recover(request.requeue)


def _recovered(channel: ClientChannel, serial: int, request: o.Recover, method: m.Method) -> None:
    if not channel.session.dialect.flow_from_client:  # else that was done when the channel had stopped
        channel.outstanding.clear()
    done(channel, serial, request, method)


# ---------------------------------------------------------------------------------------------- confirm, tx


def _transaction_over(channel: ClientChannel, serial: int, request: Any, method: m.Method) -> None:
    channel.transaction_over()
    done(channel, serial, request, method)


def need(there: bool, what: str) -> None:
    """Raise :class:`~gateway.errors.Unsupported` for what is not there."""
    if not there:
        raise Unsupported(f"{what}: this broker has no such thing")


ASK: Final[Mapping[type[o.Request], Ask]] = {
    o.OpenChannel: Ask(_open, (m.ChannelOpenOk,), _opened),
    o.DeclareExchange: Ask(_declare_exchange, (m.ExchangeDeclareOk,), done),
    o.DeleteExchange: Ask(_delete_exchange, (m.ExchangeDeleteOk,), done),
    o.BindExchange: Ask(_bind_exchange, (m.ExchangeBindOk,), done),
    o.UnbindExchange: Ask(_unbind_exchange, (m.ExchangeUnbindOk,), done),
    o.QueryExchange: Ask(_passive_exchange, (m.ExchangeDeclareOk,), _exchange_found),
    o.QueryBinding: Ask(_query_binding, (m.ExchangeBoundOk,), _binding_found),
    o.DeclareQueue: Ask(_declare_queue, (m.QueueDeclareOk,), _declared),
    o.QueryQueue: Ask(_query_queue, (m.QueueDeclareOk,), _declared),
    o.BindQueue: Ask(_bind_queue, (m.QueueBindOk,), done),
    o.UnbindQueue: Ask(_unbind_queue, (m.QueueUnbindOk,), done),
    o.PurgeQueue: Ask(_purge_queue, (m.QueuePurgeOk,), _removed),
    o.DeleteQueue: Ask(_delete_queue, (m.QueueDeleteOk,), _removed),
    o.Qos: Ask(_qos, (m.BasicQosOk,), done),
    o.Consume: Ask(_consume, (m.BasicConsumeOk,), _consuming),
    o.Cancel: Ask(_cancel, (m.BasicCancelOk,), _cancelled),
    o.Get: Ask(_get, (m.BasicGetOk, m.BasicGetEmpty), _got_nothing),
    o.Recover: Ask(_recover, (m.BasicRecoverOk,), _recovered),
    o.SelectConfirm: Ask(lambda channel, request: m.ConfirmSelect(), (m.ConfirmSelectOk,), done),
    o.TxSelect: Ask(lambda channel, request: m.TxSelect(), (m.TxSelectOk,), done),
    o.TxCommit: Ask(lambda channel, request: m.TxCommit(), (m.TxCommitOk,), _transaction_over),
    o.TxRollback: Ask(lambda channel, request: m.TxRollback(), (m.TxRollbackOk,), _transaction_over),
}

"""What a client's requests become, which method answers each, and what the answer means.

The table :data:`ASK` holds those that are one method and one answer; what needs more is in
:mod:`gateway.classic.client_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.amqp import operations
from gateway.amqp.values import Table
from gateway.classic import methods
from gateway.errors import Unsupported

if TYPE_CHECKING:
    from gateway.classic.client_channel import ClientChannel

Build = Callable[["ClientChannel", Any], methods.Method]
Finish = Callable[["ClientChannel", int, Any, Any], None]


class Asked(NamedTuple):
    """A request under way. ``serial`` 0: the session's own."""

    serial: int
    request: Any
    key: int
    """Of the method that was sent."""
    answers: tuple[type[methods.Method], ...]
    """By their meaning."""
    finish: Finish


class Ask(NamedTuple):
    """How a request is asked: the method it becomes, what may answer that, what the answer means."""

    build: Build
    answers: tuple[type[methods.Method], ...]
    finish: Finish


def done(channel: ClientChannel, serial: int, request: Any, method: methods.Method) -> None:
    """The answer says only that it was done."""
    channel.session.emit(operations.Done(channel.number, serial, serial))


# ------------------------------------------------------------------------------------------------- channel


def _open(channel: ClientChannel, request: operations.OpenChannel) -> methods.Method:
    return methods.ChannelOpen()


def _opened(channel: ClientChannel, serial: int, request: operations.OpenChannel, method: methods.Method) -> None:
    if not channel.session.dialect.access_request:
        done(channel, serial, request, method)
        return
    ticket = methods.AccessRequest(channel.session.config.realm)
    channel.write(ticket)
    channel.requests.append(Asked(serial, request, ticket.key, (methods.AccessRequestOk,), _granted))


def _granted(
    channel: ClientChannel, serial: int, request: operations.OpenChannel, method: methods.AccessRequestOk
) -> None:
    channel.ticket = method.ticket
    done(channel, serial, request, method)


# ------------------------------------------------------------------------------------------------ exchange


def _declare_exchange(channel: ClientChannel, request: operations.DeclareExchange) -> methods.Method:
    if request.passive:
        return _passive_exchange(channel, request)
    return methods.ExchangeDeclare(
        channel.ticket, request.exchange, request.type, False, request.durable, request.auto_delete,
        request.internal, False, request.arguments,
    )  # fmt: skip


def _passive_exchange(
    channel: ClientChannel, request: operations.DeclareExchange | operations.QueryExchange
) -> methods.Method:
    # Without a type: Broker-J ends the connection (530) over another type than the exchange has.
    return methods.ExchangeDeclare(channel.ticket, request.exchange, "", True, False, False, False, False, {})


def _exchange_found(
    channel: ClientChannel, serial: int, request: operations.QueryExchange, method: methods.Method
) -> None:
    channel.session.emit(operations.ExchangeFound(channel.number, serial, serial, request.exchange))


def _delete_exchange(channel: ClientChannel, request: operations.DeleteExchange) -> methods.Method:
    return methods.ExchangeDelete(channel.ticket, request.exchange, request.if_unused, False)


def _bind_exchange(channel: ClientChannel, request: operations.BindExchange) -> methods.Method:
    need(channel.session.capabilities.exchange_bindings, "exchange.bind")
    return methods.ExchangeBind(0, request.destination, request.source, request.routing_key, False, request.arguments)


def _unbind_exchange(channel: ClientChannel, request: operations.UnbindExchange) -> methods.Method:
    need(channel.session.capabilities.exchange_bindings, "exchange.unbind")
    return methods.ExchangeUnbind(0, request.destination, request.source, request.routing_key, False, request.arguments)


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


def _query_binding(channel: ClientChannel, request: operations.QueryBinding) -> methods.Method:
    need(channel.session.dialect.query_binding, "exchange.bound")
    need(not request.arguments, "exchange.bound with arguments")
    return methods.ExchangeBound(request.exchange, request.routing_key or "", request.queue)


def _binding_found(
    channel: ClientChannel, serial: int, request: operations.QueryBinding, method: methods.ExchangeBoundOk
) -> None:
    exchange, queue, matched, key = BOUND.get(method.reply_code, BOUND[3])
    found = operations.BindingFound(channel.number, serial, serial, exchange, queue, matched, key, matched, matched)
    channel.session.emit(found)


# --------------------------------------------------------------------------------------------------- queue


def _declare_queue(channel: ClientChannel, request: operations.DeclareQueue) -> methods.Method:
    return methods.QueueDeclare(
        channel.ticket, request.queue, request.passive, request.durable, request.exclusive, request.auto_delete,
        False, request.arguments,
    )  # fmt: skip


def _query_queue(channel: ClientChannel, request: operations.QueryQueue) -> methods.Method:
    return methods.QueueDeclare(channel.ticket, request.queue, True, False, False, False, False, {})


def _declared(channel: ClientChannel, serial: int, request: Any, method: methods.QueueDeclareOk) -> None:
    channel.session.emit(
        operations.Declared(channel.number, serial, serial, method.queue, method.message_count, method.consumer_count)
    )


def _bind_queue(channel: ClientChannel, request: operations.BindQueue) -> methods.Method:
    return methods.QueueBind(
        channel.ticket, request.queue, request.exchange, request.routing_key, False, request.arguments
    )


def _unbind_queue(channel: ClientChannel, request: operations.UnbindQueue) -> methods.Method:
    need(channel.session.dialect.unbind_queue, "queue.unbind")
    return methods.QueueUnbind(channel.ticket, request.queue, request.exchange, request.routing_key, request.arguments)


def _purge_queue(channel: ClientChannel, request: operations.PurgeQueue) -> methods.Method:
    return methods.QueuePurge(channel.ticket, request.queue, False)


def _delete_queue(channel: ClientChannel, request: operations.DeleteQueue) -> methods.Method:
    return methods.QueueDelete(channel.ticket, request.queue, request.if_unused, request.if_empty, False)


def _removed(
    channel: ClientChannel, serial: int, request: Any, method: methods.QueuePurgeOk | methods.QueueDeleteOk
) -> None:
    channel.session.emit(operations.Removed(channel.number, serial, serial, method.message_count))


# --------------------------------------------------------------------------------------------------- basic


def _qos(channel: ClientChannel, request: operations.Qos) -> methods.Method:
    need(channel.session.dialect.prefetch_size or not request.prefetch_size, "basic.qos with a prefetch size")
    return methods.BasicQos(request.prefetch_size, request.prefetch_count, request.whole_channel)


def _consume(channel: ClientChannel, request: operations.Consume) -> methods.Method:
    dialect = channel.session.dialect
    arguments: Table = request.arguments
    if not request.acquired:
        need(dialect.browse, "a consumer that does not acquire")
        arguments = {**arguments, "x-filter-no-consume": True}
    common = (channel.ticket, request.queue, request.consumer_tag, request.no_local, request.no_ack, request.exclusive)
    if dialect.consume_arguments:
        return methods.BasicConsume(*common, False, arguments)
    need(not arguments, "basic.consume with arguments")
    return methods.BasicConsume08(*common, False)


def _consuming(
    channel: ClientChannel, serial: int, request: operations.Consume, method: methods.BasicConsumeOk
) -> None:
    channel.consumers[method.consumer_tag] = request.no_ack
    channel.session.emit(operations.Consuming(channel.number, serial, serial, method.consumer_tag))


def _cancel(channel: ClientChannel, request: operations.Cancel) -> methods.Method:
    return methods.BasicCancel(request.consumer_tag)


def _cancelled(channel: ClientChannel, serial: int, request: operations.Cancel, method: methods.BasicCancelOk) -> None:
    channel.consumers.pop(request.consumer_tag, None)
    done(channel, serial, request, method)


def _get(channel: ClientChannel, request: operations.Get) -> methods.Method:
    return methods.BasicGet(channel.ticket, request.queue, request.no_ack)


def _got_nothing(channel: ClientChannel, serial: int, request: operations.Get, method: methods.BasicGetEmpty) -> None:
    channel.session.emit(operations.GotNothing(channel.number, serial, serial))


def _recover(channel: ClientChannel, request: operations.Recover) -> methods.Method:
    dialect = channel.session.dialect
    need(dialect.recover_without_requeue or request.requeue, "basic.recover without requeue")
    return dialect.recover(request.requeue)


def _recovered(channel: ClientChannel, serial: int, request: operations.Recover, method: methods.Method) -> None:
    if not channel.session.dialect.flow_from_client:  # else that was done when the channel had stopped
        channel.outstanding.clear()
    done(channel, serial, request, method)


# ---------------------------------------------------------------------------------------------- confirm, tx


def _transaction_over(channel: ClientChannel, serial: int, request: Any, method: methods.Method) -> None:
    channel.transaction_over(type(request) is operations.TxCommit)
    done(channel, serial, request, method)


def need(there: bool, what: str) -> None:
    """Raise :class:`~gateway.errors.Unsupported` for what is not there."""
    if not there:
        raise Unsupported(f"{what}: this broker has no such thing")


ASK: Final[Mapping[type[operations.Request], Ask]] = {
    operations.OpenChannel: Ask(_open, (methods.ChannelOpenOk,), _opened),
    operations.DeclareExchange: Ask(_declare_exchange, (methods.ExchangeDeclareOk,), done),
    operations.DeleteExchange: Ask(_delete_exchange, (methods.ExchangeDeleteOk,), done),
    operations.BindExchange: Ask(_bind_exchange, (methods.ExchangeBindOk,), done),
    operations.UnbindExchange: Ask(_unbind_exchange, (methods.ExchangeUnbindOk,), done),
    operations.QueryExchange: Ask(_passive_exchange, (methods.ExchangeDeclareOk,), _exchange_found),
    operations.QueryBinding: Ask(_query_binding, (methods.ExchangeBoundOk,), _binding_found),
    operations.DeclareQueue: Ask(_declare_queue, (methods.QueueDeclareOk,), _declared),
    operations.QueryQueue: Ask(_query_queue, (methods.QueueDeclareOk,), _declared),
    operations.BindQueue: Ask(_bind_queue, (methods.QueueBindOk,), done),
    operations.UnbindQueue: Ask(_unbind_queue, (methods.QueueUnbindOk,), done),
    operations.PurgeQueue: Ask(_purge_queue, (methods.QueuePurgeOk,), _removed),
    operations.DeleteQueue: Ask(_delete_queue, (methods.QueueDeleteOk,), _removed),
    operations.Qos: Ask(_qos, (methods.BasicQosOk,), done),
    operations.Consume: Ask(_consume, (methods.BasicConsumeOk,), _consuming),
    operations.Cancel: Ask(_cancel, (methods.BasicCancelOk,), _cancelled),
    operations.Get: Ask(_get, (methods.BasicGetOk, methods.BasicGetEmpty), _got_nothing),
    operations.Recover: Ask(_recover, (methods.BasicRecoverOk,), _recovered),
    operations.SelectConfirm: Ask(lambda channel, request: methods.ConfirmSelect(), (methods.ConfirmSelectOk,), done),
    operations.TxSelect: Ask(lambda channel, request: methods.TxSelect(), (methods.TxSelectOk,), done),
    operations.TxCommit: Ask(lambda channel, request: methods.TxCommit(), (methods.TxCommitOk,), _transaction_over),
    operations.TxRollback: Ask(
        lambda channel, request: methods.TxRollback(), (methods.TxRollbackOk,), _transaction_over
    ),
}

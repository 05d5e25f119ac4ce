"""What a server makes of its clients' methods, and which method answers each request.

The table :data:`RECEIVE`: method -> the operation it means, and how each outcome of that operation is answered.
Content (publish, get-ok, deliver) and settlements have code of their own in :mod:`gateway.classic.server_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import operations as o
from gateway.classic import methods as m

if TYPE_CHECKING:
    from gateway.classic.server_channel import ServerChannel

Answer = Callable[["ServerChannel", Any, Any], m.Method | None]
"""(channel, the client's method, the outcome) -> what goes on the wire; None: nothing."""


class Received(NamedTuple):
    """How a method is received."""

    request: Callable[[int, Any], o.Request]
    """(channel number, method) -> the operation."""
    answer: Answer
    """Not asked where the method said ``nowait``."""


def _just(method: m.Method) -> Answer:
    return lambda channel, received, outcome: method


def _declared(channel: ServerChannel, received: m.QueueDeclare, outcome: o.Declared) -> m.Method:
    return m.QueueDeclareOk(outcome.queue, outcome.message_count, outcome.consumer_count)


def _bound_ok(channel: ServerChannel, received: m.ExchangeBound, outcome: o.BindingFound) -> m.Method:
    if not outcome.exchange_found:
        return m.ExchangeBoundOk(1, f"exchange '{received.exchange}' not found"[:255])
    if received.queue and not outcome.queue_found:
        return m.ExchangeBoundOk(2, f"queue '{received.queue}' not found"[:255])
    if outcome.matched:
        return m.ExchangeBoundOk(0, "")
    code = {(False, False): 3, (True, False): 4, (False, True): 5, (True, True): 6}
    return m.ExchangeBoundOk(code[received.queue != "", received.routing_key != ""], "no such binding")


def _consume(number: int, method: m.BasicConsume | m.BasicConsume08) -> o.Request:
    return o.Consume(
        number, method.queue, method.consumer_tag, method.no_local, method.no_ack, method.exclusive,
        method.arguments if isinstance(method, m.BasicConsume) else {},
    )  # fmt: skip


def _consuming(channel: ServerChannel, received: Any, outcome: o.Consuming) -> m.Method:
    return m.BasicConsumeOk(outcome.consumer_tag)


def _get_answer(channel: ServerChannel, received: m.BasicGet, outcome: o.GotNothing) -> m.Method:
    return m.BasicGetEmpty()


RECEIVE: Final[Mapping[type[m.Method], Received]] = {
    m.ChannelOpen: Received(
        lambda number, method: o.OpenChannel(number),
        lambda channel, received, outcome: channel.session.dialect.channel_open_ok(),
    ),
    m.ExchangeDeclare: Received(
        lambda number, method: o.DeclareExchange(
            number, method.exchange, method.type, method.durable, method.auto_delete, method.internal, method.passive,
            method.arguments,
        ),
        _just(m.ExchangeDeclareOk()),
    ),
    m.ExchangeDelete: Received(
        lambda number, method: o.DeleteExchange(number, method.exchange, method.if_unused),
        _just(m.ExchangeDeleteOk()),
    ),
    m.ExchangeBound: Received(
        lambda number, method: o.QueryBinding(number, method.exchange, method.queue, method.routing_key or None),
        _bound_ok,
    ),
    m.ExchangeBind: Received(
        lambda number, method: o.BindExchange(
            number, method.destination, method.source, method.routing_key, method.arguments
        ),
        _just(m.ExchangeBindOk()),
    ),
    m.ExchangeUnbind: Received(
        lambda number, method: o.UnbindExchange(
            number, method.destination, method.source, method.routing_key, method.arguments
        ),
        _just(m.ExchangeUnbindOk()),
    ),
    m.QueueDeclare: Received(
        lambda number, method: o.DeclareQueue(
            number, method.queue, method.durable, method.exclusive, method.auto_delete, method.passive,
            method.arguments,
        ),
        _declared,
    ),
    m.QueueBind: Received(
        lambda number, method: o.BindQueue(
            number, method.queue, method.exchange, method.routing_key, method.arguments
        ),
        _just(m.QueueBindOk()),
    ),
    m.QueueUnbind: Received(
        lambda number, method: o.UnbindQueue(
            number, method.queue, method.exchange, method.routing_key, method.arguments
        ),
        _just(m.QueueUnbindOk()),
    ),
    m.QueuePurge: Received(
        lambda number, method: o.PurgeQueue(number, method.queue),
        lambda channel, received, outcome: m.QueuePurgeOk(outcome.message_count or 0),
    ),
    m.QueueDelete: Received(
        lambda number, method: o.DeleteQueue(number, method.queue, method.if_unused, method.if_empty),
        lambda channel, received, outcome: m.QueueDeleteOk(outcome.message_count or 0),
    ),
    m.BasicQos: Received(
        lambda number, method: o.Qos(number, method.prefetch_count, method.prefetch_size, method.global_),
        _just(m.BasicQosOk()),
    ),
    m.BasicConsume: Received(_consume, _consuming),
    m.BasicCancel: Received(
        lambda number, method: o.Cancel(number, method.consumer_tag),
        lambda channel, received, outcome: m.BasicCancelOk(received.consumer_tag),
    ),
    m.BasicGet: Received(lambda number, method: o.Get(number, method.queue, method.no_ack), _get_answer),
    m.BasicRecoverAsync: Received(
        lambda number, method: o.Recover(number, method.requeue),
        lambda channel, received, outcome: (
            ok() if (ok := channel.session.dialect.async_recover_ok) is not None else None
        ),
    ),
    m.BasicRecover: Received(
        lambda number, method: o.Recover(number, method.requeue),
        lambda channel, received, outcome: (channel.session.dialect.recover_ok or m.BasicRecoverOk)(),
    ),
    m.ConfirmSelect: Received(lambda number, method: o.SelectConfirm(number), _just(m.ConfirmSelectOk())),
    m.TxSelect: Received(lambda number, method: o.TxSelect(number), _just(m.TxSelectOk())),
    m.TxCommit: Received(lambda number, method: o.TxCommit(number), _just(m.TxCommitOk())),
    m.TxRollback: Received(lambda number, method: o.TxRollback(number), _just(m.TxRollbackOk())),
}  # fmt: skip

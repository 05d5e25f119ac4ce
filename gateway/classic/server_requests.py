"""What a server makes of its clients' methods, and which method answers each request.

The table :data:`RECEIVE`: method -> the operation it means, and how each outcome of that operation is answered.
Content (publish, get-ok, deliver) and settlements have code of their own in :mod:`gateway.classic.server_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.amqp import operations
from gateway.classic import methods

if TYPE_CHECKING:
    from gateway.classic.server_channel import ServerChannel

Answer = Callable[["ServerChannel", Any, Any], methods.Method | None]
"""(channel, the client's method, the outcome) -> what goes on the wire; None: nothing."""


class RequestRule(NamedTuple):
    """How a method is received."""

    request: Callable[[int, Any], operations.Request]
    """(channel number, method) -> the operation."""
    answer: Answer
    """Not asked where the method said ``nowait``."""


def _just(method: methods.Method) -> Answer:
    return lambda channel, received, outcome: method


def _declared(channel: ServerChannel, received: methods.QueueDeclare, outcome: operations.Declared) -> methods.Method:
    return methods.QueueDeclareOk(outcome.queue, outcome.message_count, outcome.consumer_count)


def _bound_ok(
    channel: ServerChannel, received: methods.ExchangeBound, outcome: operations.BindingFound
) -> methods.Method:
    if not outcome.exchange_found:
        return methods.ExchangeBoundOk(1, f"exchange '{received.exchange}' not found"[:255])
    if received.queue and not outcome.queue_found:
        return methods.ExchangeBoundOk(2, f"queue '{received.queue}' not found"[:255])
    if outcome.matched:
        return methods.ExchangeBoundOk(0, "")
    code = {(False, False): 3, (True, False): 4, (False, True): 5, (True, True): 6}
    return methods.ExchangeBoundOk(code[received.queue != "", received.routing_key != ""], "no such binding")


def _consume(number: int, method: methods.BasicConsume | methods.BasicConsume08) -> operations.Request:
    return operations.Consume(
        number, method.queue, method.consumer_tag, method.no_local, method.no_ack, method.exclusive,
        method.arguments if isinstance(method, methods.BasicConsume) else {},
    )  # fmt: skip


def _consuming(channel: ServerChannel, received: Any, outcome: operations.Consuming) -> methods.Method:
    return methods.BasicConsumeOk(outcome.consumer_tag)


def _get_answer(channel: ServerChannel, received: methods.BasicGet, outcome: operations.GotNothing) -> methods.Method:
    return methods.BasicGetEmpty()


RECEIVE: Final[Mapping[type[methods.Method], RequestRule]] = {
    methods.ChannelOpen: RequestRule(
        lambda number, method: operations.OpenChannel(number),
        lambda channel, received, outcome: channel.session.dialect.channel_open_ok(),
    ),
    methods.ExchangeDeclare: RequestRule(
        lambda number, method: operations.DeclareExchange(
            number, method.exchange, method.type, method.durable, method.auto_delete, method.internal, method.passive,
            method.arguments,
        ),
        _just(methods.ExchangeDeclareOk()),
    ),
    methods.ExchangeDelete: RequestRule(
        lambda number, method: operations.DeleteExchange(number, method.exchange, method.if_unused),
        _just(methods.ExchangeDeleteOk()),
    ),
    methods.ExchangeBound: RequestRule(
        lambda number, method: operations.QueryBinding(
            number, method.exchange, method.queue, method.routing_key or None
        ),
        _bound_ok,
    ),
    methods.ExchangeBind: RequestRule(
        lambda number, method: operations.BindExchange(
            number, method.destination, method.source, method.routing_key, method.arguments
        ),
        _just(methods.ExchangeBindOk()),
    ),
    methods.ExchangeUnbind: RequestRule(
        lambda number, method: operations.UnbindExchange(
            number, method.destination, method.source, method.routing_key, method.arguments
        ),
        _just(methods.ExchangeUnbindOk()),
    ),
    methods.QueueDeclare: RequestRule(
        lambda number, method: operations.DeclareQueue(
            number, method.queue, method.durable, method.exclusive, method.auto_delete, method.passive,
            method.arguments,
        ),
        _declared,
    ),
    methods.QueueBind: RequestRule(
        lambda number, method: operations.BindQueue(
            number, method.queue, method.exchange, method.routing_key, method.arguments
        ),
        _just(methods.QueueBindOk()),
    ),
    methods.QueueUnbind: RequestRule(
        lambda number, method: operations.UnbindQueue(
            number, method.queue, method.exchange, method.routing_key, method.arguments
        ),
        _just(methods.QueueUnbindOk()),
    ),
    methods.QueuePurge: RequestRule(
        lambda number, method: operations.PurgeQueue(number, method.queue),
        lambda channel, received, outcome: methods.QueuePurgeOk(outcome.message_count or 0),
    ),
    methods.QueueDelete: RequestRule(
        lambda number, method: operations.DeleteQueue(number, method.queue, method.if_unused, method.if_empty),
        lambda channel, received, outcome: methods.QueueDeleteOk(outcome.message_count or 0),
    ),
    methods.BasicQos: RequestRule(
        lambda number, method: operations.Qos(number, method.prefetch_count, method.prefetch_size, method.global_),
        _just(methods.BasicQosOk()),
    ),
    methods.BasicConsume: RequestRule(_consume, _consuming),
    methods.BasicCancel: RequestRule(
        lambda number, method: operations.Cancel(number, method.consumer_tag),
        lambda channel, received, outcome: methods.BasicCancelOk(received.consumer_tag),
    ),
    methods.BasicGet: RequestRule(
        lambda number, method: operations.Get(number, method.queue, method.no_ack), _get_answer
    ),
    methods.BasicRecoverAsync: RequestRule(
        lambda number, method: operations.Recover(number, method.requeue),
        lambda channel, received, outcome: (
            ok() if (ok := channel.session.dialect.async_recover_ok) is not None else None
        ),
    ),
    methods.BasicRecover: RequestRule(
        lambda number, method: operations.Recover(number, method.requeue),
        lambda channel, received, outcome: (channel.session.dialect.recover_ok or methods.BasicRecoverOk)(),
    ),
    methods.ConfirmSelect: RequestRule(
        lambda number, method: operations.SelectConfirm(number), _just(methods.ConfirmSelectOk())
    ),
    methods.TxSelect: RequestRule(lambda number, method: operations.TxSelect(number), _just(methods.TxSelectOk())),
    methods.TxCommit: RequestRule(lambda number, method: operations.TxCommit(number), _just(methods.TxCommitOk())),
    methods.TxRollback: RequestRule(
        lambda number, method: operations.TxRollback(number), _just(methods.TxRollbackOk())
    ),
}  # fmt: skip

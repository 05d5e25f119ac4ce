"""What a client's commands mean to a server, and which methods answer them: tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.amqp import operations
from gateway.amqp.values import Table
from gateway.classic.methods import Method
from gateway.v010.server_requests import ALTERNATE_EXCHANGE
from gateway.v010_draft import methods

NOT_FOUND: Final = 404


def _arguments(arguments: Table, alternate: str) -> Table:
    return {**arguments, ALTERNATE_EXCHANGE: alternate} if alternate else arguments


REQUESTS: Final[Mapping[int, Callable[[int, Any], operations.Request]]] = {
    methods.ExchangeDeclare.key: lambda channel, method: operations.DeclareExchange(
        channel,
        method.exchange,
        method.type,
        method.durable,
        method.auto_delete,
        passive=method.passive,
        arguments=_arguments(method.arguments, method.alternate_exchange),
    ),
    methods.ExchangeDelete.key: lambda channel, method: operations.DeleteExchange(
        channel, method.exchange, method.if_unused
    ),
    methods.ExchangeQuery.key: lambda channel, method: operations.QueryExchange(channel, method.name_),
    methods.QueueDeclare.key: lambda channel, method: operations.DeclareQueue(
        channel,
        method.queue,
        method.durable,
        method.exclusive,
        method.auto_delete,
        method.passive,
        _arguments(method.arguments, method.alternate_exchange),
    ),
    methods.QueueBind.key: lambda channel, method: operations.BindQueue(
        channel, method.queue, method.exchange, method.routing_key, method.arguments
    ),
    methods.QueueUnbind.key: lambda channel, method: operations.UnbindQueue(
        channel, method.queue, method.exchange, method.routing_key, method.arguments
    ),
    methods.QueuePurge.key: lambda channel, method: operations.PurgeQueue(channel, method.queue),
    methods.QueueDelete.key: lambda channel, method: operations.DeleteQueue(
        channel, method.queue, method.if_unused, method.if_empty
    ),
    methods.MessageConsume.key: lambda channel, method: operations.Consume(
        channel,
        method.queue,
        method.destination,
        method.no_local,
        method.no_ack,
        method.exclusive,
        method.filter,
    ),
    methods.MessageCancel.key: lambda channel, method: operations.Cancel(channel, method.destination),
    methods.MessageGet.key: lambda channel, method: operations.Get(channel, method.queue, method.no_ack),
    methods.MessageRecover.key: lambda channel, method: operations.Recover(channel, method.requeue),
    methods.MessageQos.key: lambda channel, method: operations.Qos(
        channel, method.prefetch_count, method.prefetch_size, method.global_
    ),
    methods.TxSelect.key: lambda channel, method: operations.TxSelect(channel),
    methods.TxCommit.key: lambda channel, method: operations.TxCommit(channel),
    methods.TxRollback.key: lambda channel, method: operations.TxRollback(channel),
    methods.BindingQuery.key: lambda channel, method: operations.QueryBinding(
        channel, method.exchange, method.queue, method.routing_key or None, method.arguments or None
    ),
}
"""Command -> operation, for those that wait for an outcome."""


def _binding(outcome: operations.BindingFound) -> Method:
    found = outcome.exchange_found and outcome.queue_found
    return methods.BindingQueryOk(
        not outcome.exchange_found,
        not outcome.queue_found,
        found and not outcome.queue_matched,
        outcome.exchange_found and not outcome.key_matched,
        outcome.exchange_found and not outcome.arguments_matched,
    )


REPLIES: Final[Mapping[tuple[type[Method], type[operations.Outcome]], Callable[[Any], Method]]] = {
    (methods.QueueDeclare, operations.Declared): lambda outcome: methods.QueueDeclareOk(
        outcome.queue, outcome.message_count, outcome.consumer_count
    ),
    (methods.QueuePurge, operations.Removed): lambda outcome: methods.QueuePurgeOk(outcome.message_count or 0),
    (methods.QueueDelete, operations.Removed): lambda outcome: methods.QueueDeleteOk(outcome.message_count or 0),
    (methods.ExchangeQuery, operations.ExchangeFound): lambda outcome: methods.ExchangeQueryOk(
        outcome.type or "", bool(outcome.durable), False, outcome.arguments or {}
    ),
    (methods.BindingQuery, operations.BindingFound): _binding,
}
"""(command, outcome) -> the method that answers it. Any other pair is completion."""

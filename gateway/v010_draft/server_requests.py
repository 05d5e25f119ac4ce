"""What a client's commands mean to a server, and which methods answer them: tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import operations as o
from gateway.classic.methods import Method
from gateway.v010.server_requests import ALTERNATE_EXCHANGE
from gateway.v010_draft import methods as t
from gateway.values import Table

NOT_FOUND: Final = 404


def _arguments(arguments: Table, alternate: str) -> Table:
    return {**arguments, ALTERNATE_EXCHANGE: alternate} if alternate else arguments


REQUESTS: Final[Mapping[int, Callable[[int, Any], o.Request]]] = {
    t.ExchangeDeclare.key: lambda channel, method: o.DeclareExchange(
        channel,
        method.exchange,
        method.type,
        method.durable,
        method.auto_delete,
        passive=method.passive,
        arguments=_arguments(method.arguments, method.alternate_exchange),
    ),
    t.ExchangeDelete.key: lambda channel, method: o.DeleteExchange(channel, method.exchange, method.if_unused),
    t.ExchangeQuery.key: lambda channel, method: o.QueryExchange(channel, method.name_),
    t.QueueDeclare.key: lambda channel, method: o.DeclareQueue(
        channel,
        method.queue,
        method.durable,
        method.exclusive,
        method.auto_delete,
        method.passive,
        _arguments(method.arguments, method.alternate_exchange),
    ),
    t.QueueBind.key: lambda channel, method: o.BindQueue(
        channel, method.queue, method.exchange, method.routing_key, method.arguments
    ),
    t.QueueUnbind.key: lambda channel, method: o.UnbindQueue(
        channel, method.queue, method.exchange, method.routing_key, method.arguments
    ),
    t.QueuePurge.key: lambda channel, method: o.PurgeQueue(channel, method.queue),
    t.QueueDelete.key: lambda channel, method: o.DeleteQueue(channel, method.queue, method.if_unused, method.if_empty),
    t.MessageConsume.key: lambda channel, method: o.Consume(
        channel,
        method.queue,
        method.destination,
        method.no_local,
        method.no_ack,
        method.exclusive,
        method.filter,
    ),
    t.MessageCancel.key: lambda channel, method: o.Cancel(channel, method.destination),
    t.MessageGet.key: lambda channel, method: o.Get(channel, method.queue, method.no_ack),
    t.MessageRecover.key: lambda channel, method: o.Recover(channel, method.requeue),
    t.MessageQos.key: lambda channel, method: o.Qos(
        channel, method.prefetch_count, method.prefetch_size, method.global_
    ),
    t.TxSelect.key: lambda channel, method: o.TxSelect(channel),
    t.TxCommit.key: lambda channel, method: o.TxCommit(channel),
    t.TxRollback.key: lambda channel, method: o.TxRollback(channel),
    t.BindingQuery.key: lambda channel, method: o.QueryBinding(
        channel, method.exchange, method.queue, method.routing_key or None, method.arguments or None
    ),
}
"""Command -> operation, for those that wait for an outcome."""


def _binding(outcome: o.BindingFound) -> Method:
    found = outcome.exchange_found and outcome.queue_found
    return t.BindingQueryOk(
        not outcome.exchange_found,
        not outcome.queue_found,
        found and not outcome.queue_matched,
        outcome.exchange_found and not outcome.key_matched,
        outcome.exchange_found and not outcome.arguments_matched,
    )


REPLIES: Final[Mapping[tuple[type[Method], type[o.Outcome]], Callable[[Any], Method]]] = {
    (t.QueueDeclare, o.Declared): lambda outcome: t.QueueDeclareOk(
        outcome.queue, outcome.message_count, outcome.consumer_count
    ),
    (t.QueuePurge, o.Removed): lambda outcome: t.QueuePurgeOk(outcome.message_count or 0),
    (t.QueueDelete, o.Removed): lambda outcome: t.QueueDeleteOk(outcome.message_count or 0),
    (t.ExchangeQuery, o.ExchangeFound): lambda outcome: t.ExchangeQueryOk(
        outcome.type or "", bool(outcome.durable), False, outcome.arguments or {}
    ),
    (t.BindingQuery, o.BindingFound): _binding,
}
"""(command, outcome) -> the method that answers it. Any other pair is completion."""

"""What a client's commands mean to a server, and how its outcomes are put: tables.

:data:`REQUESTS` turns a command into the operation that the server session returns; the operation's serial then
names the command. :data:`RESULTS` says what the command's result is for an outcome, and :data:`MISSING` what it is
where there is no such thing: a query in 0-10 never fails for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import operations as o
from gateway.v010 import commands as c
from gateway.v010.server_dtx import REQUESTS_DTX, RESULTS_DTX
from gateway.v010.structs import Acquired, ExchangeBoundResult, ExchangeQueryResult, QueueQueryResult, Struct
from gateway.values import Table

ALTERNATE_EXCHANGE: Final = "alternate-exchange"


def _arguments(arguments: Table | None, alternate: str | None) -> Table:
    table = arguments or {}
    return {**table, ALTERNATE_EXCHANGE: alternate} if alternate else table


REQUESTS: Final[Mapping[type[c.Command], Callable[[int, Any], o.Request]]] = {
    c.ExchangeDeclare: lambda channel, command: o.DeclareExchange(
        channel,
        command.exchange,
        command.type or "",
        command.durable,
        command.auto_delete,
        passive=command.passive,
        arguments=_arguments(command.arguments, command.alternate_exchange),
    ),
    c.ExchangeDelete: lambda channel, command: o.DeleteExchange(channel, command.exchange, command.if_unused),
    c.ExchangeQuery: lambda channel, command: o.QueryExchange(channel, command.name or ""),
    c.ExchangeBind: lambda channel, command: o.BindQueue(
        channel, command.queue, command.exchange, command.binding_key, command.arguments or {}
    ),
    c.ExchangeUnbind: lambda channel, command: o.UnbindQueue(
        channel, command.queue, command.exchange, command.binding_key
    ),
    c.ExchangeBound: lambda channel, command: o.QueryBinding(
        channel, command.exchange or "", command.queue or "", command.binding_key, command.arguments
    ),
    c.QueueDeclare: lambda channel, command: o.DeclareQueue(
        channel,
        command.queue,
        command.durable,
        command.exclusive,
        command.auto_delete,
        command.passive,
        _arguments(command.arguments, command.alternate_exchange),
    ),
    c.QueueDelete: lambda channel, command: o.DeleteQueue(channel, command.queue, command.if_unused, command.if_empty),
    c.QueuePurge: lambda channel, command: o.PurgeQueue(channel, command.queue),
    c.QueueQuery: lambda channel, command: o.QueryQueue(channel, command.queue),
    c.MessageCancel: lambda channel, command: o.Cancel(channel, command.destination),
    c.TxSelect: lambda channel, command: o.TxSelect(channel),
    c.TxCommit: lambda channel, command: o.TxCommit(channel),
    c.TxRollback: lambda channel, command: o.TxRollback(channel),
    **REQUESTS_DTX,
}
"""Command -> operation, for those that wait for an outcome and are one operation. message.subscribe, transfer, the
settlements and the flow commands have code of their own."""

SETTLEMENTS: Final[Mapping[type[c.Command], o.Settlement]] = {
    c.MessageAccept: o.Settlement.ACCEPT,
    c.MessageRelease: o.Settlement.RELEASE,
    c.MessageReject: o.Settlement.REJECT,
}


def _queue(outcome: o.Declared) -> Struct:
    arguments = dict(outcome.arguments or {})
    alternate = arguments.pop(ALTERNATE_EXCHANGE, None)
    return QueueQueryResult(
        outcome.queue,
        alternate if isinstance(alternate, str) else None,
        bool(outcome.durable),
        arguments=arguments,
        message_count=outcome.message_count,
        subscriber_count=outcome.consumer_count,
    )


def _exchange(outcome: o.ExchangeFound) -> Struct:
    return ExchangeQueryResult(outcome.type, bool(outcome.durable), arguments=outcome.arguments or {})


def _binding(outcome: o.BindingFound) -> Struct:
    found = outcome.exchange_found and outcome.queue_found
    return ExchangeBoundResult(
        not outcome.exchange_found,
        not outcome.queue_found,
        found and not outcome.queue_matched,
        outcome.exchange_found and not outcome.key_matched,
        outcome.exchange_found and not outcome.arguments_matched,
    )


def _acquired(outcome: o.Acquired) -> Struct:
    return Acquired(tuple(((first - 1) & 0xFFFFFFFF, (last - 1) & 0xFFFFFFFF) for first, last in outcome.deliveries))


RESULTS: Final[Mapping[tuple[type[c.Command], type[o.Outcome]], Callable[[Any], Struct]]] = {
    (c.QueueQuery, o.Declared): _queue,
    (c.ExchangeQuery, o.ExchangeFound): _exchange,
    (c.ExchangeBound, o.BindingFound): _binding,
    (c.MessageAcquire, o.Acquired): _acquired,
    **RESULTS_DTX,
}
"""(command, outcome) -> result. Any other pair is completion without one."""

MISSING: Final[Mapping[type[c.Command], Struct]] = {
    c.QueueQuery: QueueQueryResult(),
    c.ExchangeQuery: ExchangeQueryResult(not_found=True),
}
"""The result where Failed 404 is the outcome."""

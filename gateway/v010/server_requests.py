"""What a client's commands mean to a server, and how its outcomes are put: tables.

:data:`REQUESTS` turns a command into the operation that the server session returns; the operation's serial then
names the command. :data:`RESULTS` says what the command's result is for an outcome, and :data:`MISSING` what it is
where there is no such thing: a query in 0-10 never fails for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.amqp import operations
from gateway.amqp.values import Table
from gateway.v010 import commands
from gateway.v010.server_dtx import REQUESTS_DTX, RESULTS_DTX
from gateway.v010.structs import Acquired, ExchangeBoundResult, ExchangeQueryResult, QueueQueryResult, Struct

ALTERNATE_EXCHANGE: Final = "alternate-exchange"


def _arguments(arguments: Table | None, alternate: str | None) -> Table:
    table = arguments or {}
    return {**table, ALTERNATE_EXCHANGE: alternate} if alternate else table


REQUESTS: Final[Mapping[type[commands.Command], Callable[[int, Any], operations.Request]]] = {
    commands.ExchangeDeclare: lambda channel, command: operations.DeclareExchange(
        channel,
        command.exchange,
        command.type or "",
        command.durable,
        command.auto_delete,
        passive=command.passive,
        arguments=_arguments(command.arguments, command.alternate_exchange),
    ),
    commands.ExchangeDelete: lambda channel, command: operations.DeleteExchange(
        channel, command.exchange, command.if_unused
    ),
    commands.ExchangeQuery: lambda channel, command: operations.QueryExchange(channel, command.name or ""),
    commands.ExchangeBind: lambda channel, command: operations.BindQueue(
        channel, command.queue, command.exchange, command.binding_key, command.arguments or {}
    ),
    commands.ExchangeUnbind: lambda channel, command: operations.UnbindQueue(
        channel, command.queue, command.exchange, command.binding_key
    ),
    commands.ExchangeBound: lambda channel, command: operations.QueryBinding(
        channel, command.exchange or "", command.queue or "", command.binding_key, command.arguments
    ),
    commands.QueueDeclare: lambda channel, command: operations.DeclareQueue(
        channel,
        command.queue,
        command.durable,
        command.exclusive,
        command.auto_delete,
        command.passive,
        _arguments(command.arguments, command.alternate_exchange),
    ),
    commands.QueueDelete: lambda channel, command: operations.DeleteQueue(
        channel, command.queue, command.if_unused, command.if_empty
    ),
    commands.QueuePurge: lambda channel, command: operations.PurgeQueue(channel, command.queue),
    commands.QueueQuery: lambda channel, command: operations.QueryQueue(channel, command.queue),
    commands.MessageCancel: lambda channel, command: operations.Cancel(channel, command.destination),
    commands.TxSelect: lambda channel, command: operations.TxSelect(channel),
    commands.TxCommit: lambda channel, command: operations.TxCommit(channel),
    commands.TxRollback: lambda channel, command: operations.TxRollback(channel),
    **REQUESTS_DTX,
}
"""Command -> operation, for those that wait for an outcome and are one operation. message.subscribe, transfer, the
settlements and the flow commands have code of their own."""

SETTLEMENTS: Final[Mapping[type[commands.Command], operations.Settlement]] = {
    commands.MessageAccept: operations.Settlement.ACCEPT,
    commands.MessageRelease: operations.Settlement.RELEASE,
    commands.MessageReject: operations.Settlement.REJECT,
}


def _queue(outcome: operations.Declared) -> Struct:
    arguments = dict(outcome.arguments or {})
    alternate = arguments.pop(ALTERNATE_EXCHANGE, None)
    return QueueQueryResult(
        outcome.queue,
        alternate if isinstance(alternate, str) else None,
        bool(outcome.durable),
        auto_delete=bool(outcome.auto_delete),
        arguments=arguments,
        message_count=outcome.message_count,
        subscriber_count=outcome.consumer_count,
    )


def _exchange(outcome: operations.ExchangeFound) -> Struct:
    return ExchangeQueryResult(outcome.type, bool(outcome.durable), arguments=outcome.arguments or {})


def _binding(outcome: operations.BindingFound) -> Struct:
    found = outcome.exchange_found and outcome.queue_found
    return ExchangeBoundResult(
        not outcome.exchange_found,
        not outcome.queue_found,
        found and not outcome.queue_matched,
        outcome.exchange_found and not outcome.key_matched,
        outcome.exchange_found and not outcome.arguments_matched,
    )


def _acquired(outcome: operations.Acquired) -> Struct:
    return Acquired(tuple(((first - 1) & 0xFFFFFFFF, (last - 1) & 0xFFFFFFFF) for first, last in outcome.deliveries))


RESULTS: Final[Mapping[tuple[type[commands.Command], type[operations.Outcome]], Callable[[Any], Struct]]] = {
    (commands.QueueQuery, operations.Declared): _queue,
    (commands.ExchangeQuery, operations.ExchangeFound): _exchange,
    (commands.ExchangeBound, operations.BindingFound): _binding,
    (commands.MessageAcquire, operations.Acquired): _acquired,
    **RESULTS_DTX,
}
"""(command, outcome) -> result. Any other pair is completion without one."""

MISSING: Final[Mapping[type[commands.Command], Struct]] = {
    commands.QueueQuery: QueueQueryResult(),
    commands.ExchangeQuery: ExchangeQueryResult(not_found=True),
}
"""The result where Failed 404 is the outcome."""

"""What a client's requests become, and how their outcomes are reported.

A request is one command. It is done when that is complete; or, where a method answers it, when that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.amqp.values import Table, Typed
from gateway.classic.methods import Method
from gateway.errors import StateError
from gateway.v010.client_requests import ALTERNATE_EXCHANGE
from gateway.v010_draft import methods

if TYPE_CHECKING:
    from gateway.v010_draft.client_channel import ClientChannel

BROWSE: Final = "x-filter-no-consume"
"""Qpid's argument for what the draft has no field for."""
NOT_FOUND: Final = 404


class Step:
    """A command under way."""

    __slots__ = ("complete", "get", "key", "replied", "reply", "request", "serial")

    def __init__(self, serial: int, request: Any, method: Method) -> None:
        self.serial = serial
        """The request that fails with it."""
        self.request = request
        self.key = method.key
        self.complete: Callable[[ClientChannel, Step], None] | None = None
        """Called when the command is complete; None: that says nothing."""
        self.reply: type[Method] | None = None
        """The method that answers it."""
        self.replied: Callable[[ClientChannel, Step, Any], None] | None = None
        """Called with that."""
        self.get: str | None = None
        """The destination of a message.get, which a response answers."""


def done(channel: ClientChannel, step: Step) -> None:
    """The usual end."""
    channel.emit(operations.Done(channel.number, step.serial, step.serial))


def _alternate(arguments: Table) -> tuple[str, Table]:
    """The alternate exchange among the arguments, and the others."""
    found = arguments.get(ALTERNATE_EXCHANGE)
    name = found.value if isinstance(found, Typed) else found
    if not isinstance(name, str):
        return "", arguments
    return name, {key: value for key, value in arguments.items() if key != ALTERNATE_EXCHANGE}


def _declare_exchange(request: operations.DeclareExchange) -> Method:
    alternate, arguments = _alternate(request.arguments)
    return methods.ExchangeDeclare(
        0,
        request.exchange,
        request.type,
        alternate,
        request.passive,
        request.durable,
        request.auto_delete,
        arguments,
    )


def _declare_queue(request: operations.DeclareQueue) -> Method:
    alternate, arguments = _alternate(request.arguments)
    return methods.QueueDeclare(
        0,
        request.queue,
        alternate,
        request.passive,
        request.durable,
        request.exclusive,
        request.auto_delete,
        False,
        arguments,
    )


# -------------------------------------------------------------------------------------- done when complete


def _recovered(channel: ClientChannel, step: Step) -> None:
    channel.outstanding.clear()
    done(channel, step)


def _cancelled(channel: ClientChannel, step: Step) -> None:
    channel.consumers.pop(step.request.consumer_tag, None)
    done(channel, step)


def _ended(channel: ClientChannel, step: Step) -> None:
    """tx.commit or rollback; after that what was settled in the transaction is out again."""
    channel.committing = False
    if type(step.request) is operations.TxRollback:
        channel.outstanding = dict.fromkeys(sorted([*channel.outstanding, *channel.undecided]))
    channel.undecided.clear()
    done(channel, step)


def consuming(channel: ClientChannel, step: Step) -> None:
    """message.consume is complete, or its first delivery came before that."""
    consumer = channel.consumers.get(step.request.consumer_tag)
    if consumer is not None and consumer.starting is step:
        consumer.starting = None
        channel.emit(operations.Consuming(channel.number, step.serial, step.serial, consumer.tag))


SIMPLE: Final[
    Mapping[type[operations.Operation], tuple[Callable[[Any], Method], Callable[[ClientChannel, Step], None]]]
] = {
    operations.DeclareExchange: (_declare_exchange, done),
    operations.DeleteExchange: (lambda request: methods.ExchangeDelete(0, request.exchange, request.if_unused), done),
    operations.BindQueue: (
        lambda request: methods.QueueBind(0, request.queue, request.exchange, request.routing_key, request.arguments),
        done,
    ),
    operations.UnbindQueue: (
        lambda request: methods.QueueUnbind(0, request.queue, request.exchange, request.routing_key, request.arguments),
        done,
    ),
    operations.Cancel: (lambda request: methods.MessageCancel(request.consumer_tag), _cancelled),
    operations.Recover: (lambda request: methods.MessageRecover(request.requeue), _recovered),
    operations.TxSelect: (lambda request: methods.TxSelect(), done),
    operations.TxCommit: (lambda request: methods.TxCommit(), _ended),
    operations.TxRollback: (lambda request: methods.TxRollback(), _ended),
}
"""Request -> command, and what its completion means."""


def simple(channel: ClientChannel, request: Any, serial: int) -> None:
    """A request of :data:`SIMPLE`."""
    build, complete = SIMPLE[type(request)]
    method = build(request)
    step = Step(serial, request, method)
    step.complete = complete
    channel.ask(method, step)
    if type(request) in (operations.TxCommit, operations.TxRollback):
        channel.committing = True
    elif type(request) is operations.TxSelect:
        channel.transacted = True


def qos(channel: ClientChannel, request: operations.Qos, serial: int) -> None:
    """message.qos."""
    prefetch = methods.MessageQos(request.prefetch_size, request.prefetch_count, request.whole_channel)
    _ask_qos(channel, request, serial, prefetch)
    channel.prefetch = prefetch


def select_confirm(channel: ClientChannel, request: operations.SelectConfirm, serial: int) -> None:
    """The draft confirms without being asked; the prefetch, said once more, makes the request take its turn."""
    _ask_qos(channel, request, serial, channel.prefetch)
    channel.confirming = True


def _ask_qos(channel: ClientChannel, request: operations.Request, serial: int, prefetch: methods.MessageQos) -> None:
    step = Step(serial, request, prefetch)
    step.complete = done
    channel.ask(prefetch, step)


def consume(channel: ClientChannel, request: operations.Consume, serial: int) -> None:
    """message.consume."""
    tag = request.consumer_tag or channel.fresh_tag()
    arguments = request.arguments if request.acquired else {**request.arguments, BROWSE: True}
    method = methods.MessageConsume(
        0, request.queue, tag, request.no_local, request.no_ack, request.exclusive, arguments
    )
    step = Step(serial, operations.Consume(request.channel, request.queue, tag), method)
    step.complete = consuming
    channel.ask(method, step)
    channel.add_consumer(tag, request.no_ack).starting = step


def get(channel: ClientChannel, request: operations.Get, serial: int) -> None:
    """message.get, to a destination of its own."""
    tag = channel.fresh_tag("get")
    method = methods.MessageGet(0, request.queue, tag, request.no_ack)
    step = Step(serial, request, method)
    step.get = tag
    channel.ask(method, step)
    channel.add_consumer(tag, request.no_ack).get = step


# -------------------------------------------------------------------------------------- answered by a method


def _declared(channel: ClientChannel, step: Step, reply: methods.QueueDeclareOk) -> None:
    serial = step.serial
    channel.emit(
        operations.Declared(channel.number, serial, serial, reply.queue, reply.message_count, reply.consumer_count)
    )


def _removed(channel: ClientChannel, step: Step, reply: methods.QueuePurgeOk | methods.QueueDeleteOk) -> None:
    channel.emit(operations.Removed(channel.number, step.serial, step.serial, reply.message_count))


def _exchange_found(channel: ClientChannel, step: Step, reply: methods.ExchangeQueryOk) -> None:
    number, serial, name = channel.number, step.serial, step.request.exchange
    if reply.not_found:
        channel.emit(operations.Failed(number, serial, serial, NOT_FOUND, f"NOT_FOUND - no exchange '{name}'"))
    else:
        channel.emit(
            operations.ExchangeFound(number, serial, serial, name, reply.type or None, reply.durable, reply.arguments)
        )


def _binding_found(channel: ClientChannel, step: Step, reply: methods.BindingQueryOk) -> None:
    found = not (reply.exchange_not_found or reply.queue_not_found)
    channel.emit(
        operations.BindingFound(
            channel.number,
            step.serial,
            step.serial,
            not reply.exchange_not_found,
            not reply.queue_not_found,
            found and not (reply.queue_not_matched or reply.key_not_matched or reply.args_not_matched),
            found and not reply.key_not_matched,
            found and not reply.args_not_matched,
            found and not reply.queue_not_matched,
        )
    )


ANSWERED: Final[
    Mapping[
        type[operations.Operation],
        tuple[Callable[[Any], Method], type[Method], Callable[[ClientChannel, Step, Any], None]],
    ]
] = {
    operations.DeclareQueue: (_declare_queue, methods.QueueDeclareOk, _declared),
    operations.QueryQueue: (
        lambda request: _declare_queue(operations.DeclareQueue(request.channel, request.queue, passive=True)),
        methods.QueueDeclareOk,
        _declared,
    ),
    operations.PurgeQueue: (
        lambda request: methods.QueuePurge(0, request.queue, False),
        methods.QueuePurgeOk,
        _removed,
    ),
    operations.DeleteQueue: (
        lambda request: methods.QueueDelete(0, request.queue, request.if_unused, request.if_empty, False),
        methods.QueueDeleteOk,
        _removed,
    ),
    operations.QueryExchange: (
        lambda request: methods.ExchangeQuery(0, request.exchange),
        methods.ExchangeQueryOk,
        _exchange_found,
    ),
    operations.QueryBinding: (
        lambda request: methods.BindingQuery(
            0, request.exchange, request.queue, request.routing_key or "", request.arguments or {}
        ),
        methods.BindingQueryOk,
        _binding_found,
    ),
}
"""Request -> command, the method that answers it, and what that means. There is no query of a queue: it is declared
passively, which costs the session where it is not there."""


def answered(channel: ClientChannel, request: Any, serial: int) -> None:
    """A request of :data:`ANSWERED`."""
    build, reply, replied = ANSWERED[type(request)]
    method = build(request)
    step = Step(serial, request, method)
    step.reply, step.replied = reply, replied
    channel.ask(method, step)


REQUESTS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any, int], None]]] = {
    **dict.fromkeys(SIMPLE, simple),
    **dict.fromkeys(ANSWERED, answered),
    operations.Qos: qos,
    operations.SelectConfirm: select_confirm,
    operations.Consume: consume,
    operations.Get: get,
}
"""Everything with an outcome that is not a publish."""


def _check_consume(channel: ClientChannel, request: operations.Consume) -> None:
    if request.consumer_tag in channel.consumers:
        raise StateError(f"channel {channel.number}: the consumer tag {request.consumer_tag!r:.80} is in use")


def _check_cancel(channel: ClientChannel, request: operations.Cancel) -> None:
    if request.consumer_tag not in channel.consumers:
        raise StateError(f"channel {channel.number}: there is no consumer {request.consumer_tag!r:.80}")


def _check_select(channel: ClientChannel, request: operations.Request) -> None:
    if channel.confirming or channel.transacted:
        mode = "confirm" if channel.confirming else "transacted"
        raise StateError(f"channel {channel.number} is in mode {mode} already")


def _check_transaction(channel: ClientChannel, request: operations.Request) -> None:
    if not channel.transacted:
        raise StateError(f"channel {channel.number} is not transacted")


CHECKS: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], None]]] = {
    operations.Consume: _check_consume,
    operations.Cancel: _check_cancel,
    operations.SelectConfirm: _check_select,
    operations.TxSelect: _check_select,
    operations.TxCommit: _check_transaction,
    operations.TxRollback: _check_transaction,
}
"""What must hold before a request is sent."""

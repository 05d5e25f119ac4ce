"""What a client's requests become, and how their outcomes are reported: tables and small functions.

:data:`SIMPLE` holds the requests that are one command and are done when it is complete; :data:`QUERIES` those that
are one command with a result. The others take several steps and have a function of their own. Every function is
called with the channel, the request and its serial, and leaves a :class:`Step` behind for each command whose
completion or result says something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.amqp.values import Table, Typed
from gateway.v010 import commands
from gateway.v010.client_dtx import QUERIES_DTX, SIMPLE_DTX
from gateway.v010.structs import ExchangeBoundResult, ExchangeQueryResult, MessageResumeResult, QueueQueryResult
from gateway.v010.subscription import Subscription

if TYPE_CHECKING:
    from gateway.v010.client_channel import ClientChannel

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
"""The argument that is a field of its own in 0-10."""
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
"""Where rejected messages go. Broker-J knows the alternate exchange for that, which may also be a queue."""
NO_LOCAL: Final = "x-qpid-no-local"
"""Qpid's argument for what the classic versions have as a field."""


class Step:
    """A command under way."""

    __slots__ = ("code", "complete", "request", "result", "serial")

    def __init__(
        self,
        serial: int,
        request: Any,
        complete: Callable[[ClientChannel, Step], None] | None = None,
        result: Callable[[ClientChannel, Step, bytes | None], None] | None = None,
    ) -> None:
        self.serial = serial
        """The request that fails with it."""
        self.code = 0
        """Of the command."""
        self.request = request
        self.complete = complete
        """Called when the command is complete; None: that says nothing."""
        self.result = result
        """Called with the command's result, once."""


# --------------------------------------------------------------------------------------------- one command


def done(channel: ClientChannel, step: Step) -> None:
    """The usual end."""
    channel.emit(operations.Done(channel.number, step.serial, step.serial))


def _removed(channel: ClientChannel, step: Step) -> None:
    channel.emit(operations.Removed(channel.number, step.serial, step.serial, None))


def _text(value: Any) -> str | None:
    """A string argument of any string type."""
    value = value.value if isinstance(value, Typed) else value
    return value if isinstance(value, str) else None


def _alternate(arguments: Table) -> tuple[str | None, Table]:
    """The alternate exchange among the arguments, and the others."""
    exchange = _text(arguments.get(ALTERNATE_EXCHANGE))
    if exchange is None:
        return None, arguments
    return exchange, {key: value for key, value in arguments.items() if key != ALTERNATE_EXCHANGE}


def _dead_letter(arguments: Table) -> tuple[str | None, Table]:
    """The alternate exchange of a queue on Broker-J: a dead-letter exchange, or the queue that the default exchange
    with a routing key stands for."""
    exchange, key = _text(arguments.get(DEAD_LETTER_EXCHANGE)), _text(arguments.get(DEAD_LETTER_KEY))
    alternate = (exchange if key is None else None) or (key if exchange == "" else None)
    if alternate is None or ALTERNATE_EXCHANGE in arguments:
        return _alternate(arguments)
    taken = (DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY)
    return alternate, {name: value for name, value in arguments.items() if name not in taken}


def _declare_exchange(request: operations.DeclareExchange) -> commands.Command:
    alternate, arguments = _alternate(request.arguments)
    return commands.ExchangeDeclare(
        request.exchange,
        request.type,
        alternate,
        request.passive,
        request.durable,
        request.auto_delete,
        arguments or None,
    )


SIMPLE: Final[
    Mapping[type[operations.Request], tuple[Callable[[Any], commands.Command], Callable[[ClientChannel, Step], None]]]
] = {
    operations.DeclareExchange: (_declare_exchange, done),
    operations.DeleteExchange: (lambda request: commands.ExchangeDelete(request.exchange, request.if_unused), done),
    operations.BindQueue: (
        lambda request: commands.ExchangeBind(
            request.queue, request.exchange, request.routing_key, request.arguments or None
        ),
        done,
    ),
    operations.UnbindQueue: (
        lambda request: commands.ExchangeUnbind(request.queue, request.exchange, request.routing_key),
        done,
    ),
    operations.PurgeQueue: (lambda request: commands.QueuePurge(request.queue), _removed),
    operations.DeleteQueue: (
        lambda request: commands.QueueDelete(request.queue, request.if_unused, request.if_empty),
        _removed,
    ),
    operations.SelectConfirm: (lambda request: commands.ExecutionSync(), done),
    operations.Qos: (lambda request: commands.ExecutionSync(), done),
    **{request: (build, done) for request, build in SIMPLE_DTX.items()},
}
"""Request -> command, and what its completion means. SelectConfirm and Qos ask nothing of the broker; a sync makes
them take their turn."""


def simple(channel: ClientChannel, request: Any, serial: int) -> None:
    """A request of :data:`SIMPLE`."""
    build, complete = SIMPLE[type(request)]
    channel.ask(build(request), Step(serial, request, complete))


# ------------------------------------------------------------------------------------------------- queries


def _exchange_found(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    result = ExchangeQueryResult.decode(value, channel.session.limits)
    number, serial, name = channel.number, step.serial, step.request.exchange
    if result.not_found:
        channel.emit(operations.Failed(number, serial, serial, 404, f"not-found: no exchange '{name}'"))
    else:
        channel.emit(
            operations.ExchangeFound(
                number, serial, serial, name, result.type or None, result.durable, result.arguments or {}
            )
        )


def _queue_found(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    result = QueueQueryResult.decode(value, channel.session.limits)
    number, serial = channel.number, step.serial
    if not result.queue:
        name = step.request.queue
        channel.emit(operations.Failed(number, serial, serial, 404, f"not-found: no queue '{name}'"))
        return
    arguments = dict(result.arguments or {})
    if result.alternate_exchange:
        arguments[ALTERNATE_EXCHANGE] = result.alternate_exchange
    channel.emit(
        operations.Declared(
            number,
            serial,
            serial,
            result.queue,
            result.message_count or 0,
            result.subscriber_count or 0,
            result.durable,
            arguments,
            result.auto_delete,
        )
    )


def _binding_found(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    result = ExchangeBoundResult.decode(value, channel.session.limits)
    found = not (result.exchange_not_found or result.queue_not_found)
    channel.emit(
        operations.BindingFound(
            channel.number,
            step.serial,
            step.serial,
            not result.exchange_not_found,
            not result.queue_not_found,
            found and not (result.queue_not_matched or result.key_not_matched or result.args_not_matched),
            found and not result.key_not_matched,
            found and not result.args_not_matched,
            found and not result.queue_not_matched,
        )
    )


QUERIES: Final[
    Mapping[
        type[operations.Request],
        tuple[Callable[[Any], commands.Command], Callable[[ClientChannel, Step, bytes | None], None]],
    ]
] = {
    operations.QueryExchange: (lambda request: commands.ExchangeQuery(request.exchange), _exchange_found),
    operations.QueryQueue: (lambda request: commands.QueueQuery(request.queue), _queue_found),
    operations.QueryBinding: (
        lambda request: commands.ExchangeBound(
            request.exchange, request.queue or None, request.routing_key, request.arguments or None
        ),
        _binding_found,
    ),
    **QUERIES_DTX,
}
"""Request -> command, and what its result means."""


def query(channel: ClientChannel, request: Any, serial: int) -> None:
    """A request of :data:`QUERIES`."""
    build, result = QUERIES[type(request)]
    channel.ask(build(request), Step(serial, request, None, result))


def declare_queue(channel: ClientChannel, request: operations.DeclareQueue, serial: int) -> None:
    """queue.declare says nothing of the queue, so queue.query comes behind it. An empty name is chosen here."""
    name = request.queue or channel.fresh_name()
    alternate, arguments = (_dead_letter if channel.session.qpid else _alternate)(request.arguments)
    channel.ask(
        commands.QueueDeclare(
            name,
            alternate,
            request.passive,
            request.durable,
            request.exclusive,
            request.auto_delete,
            arguments or None,
        ),
        Step(serial, request),
        sync=False,
    )
    channel.ask(
        commands.QueueQuery(name), Step(serial, operations.QueryQueue(request.channel, name), None, _queue_found)
    )


def resume(channel: ClientChannel, request: operations.Resume, serial: int) -> None:
    """message.resume. Broker-J completes it, and does nothing else."""
    channel.ask(
        commands.MessageResume(request.destination, request.resume_id), Step(serial, request, _unanswered, _resumed)
    )


def _resumed(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    offset = MessageResumeResult.decode(value, channel.session.limits).offset
    channel.emit(operations.Resumed(channel.number, step.serial, step.serial, offset or 0))


def _unanswered(channel: ClientChannel, step: Step) -> None:
    if step.result is not None:
        text = "not-implemented: message.resume: the broker has not answered it"
        channel.emit(operations.Failed(channel.number, step.serial, step.serial, 540, text))


# ----------------------------------------------------------------------------------------------- consuming


def consuming(channel: ClientChannel, step: Step) -> None:
    """message.subscribe is complete, or its first delivery came before that."""
    subscription = channel.subscriptions.get(step.request.consumer_tag)
    if subscription is not None and subscription.starting is step:
        subscription.starting = None
        channel.emit(operations.Consuming(channel.number, step.serial, step.serial, subscription.destination))


def consume(channel: ClientChannel, request: operations.Consume, serial: int) -> None:
    """message.subscribe, then the mode, then credit."""
    tag = request.consumer_tag or channel.fresh_tag()
    arguments = request.arguments
    if request.no_local:
        arguments = {**arguments, NO_LOCAL: True}
    count_max, size_max = channel.prefetch
    subscription = Subscription(tag, request.no_ack, count_max, size_max)
    if tag != request.consumer_tag:
        request = operations.Consume(request.channel, request.queue, tag)
    step = subscription.starting = Step(serial, request, consuming)
    channel.ask(
        commands.MessageSubscribe(
            request.queue,
            tag,
            commands.NONE if subscription.no_ack else commands.EXPLICIT,
            commands.PRE_ACQUIRED if request.acquired else commands.NOT_ACQUIRED,
            request.exclusive,
            arguments=arguments or None,
        ),
        step,
    )
    channel.subscriptions[tag] = subscription
    channel.write(commands.MessageSetFlowMode(tag, commands.CREDIT))
    channel.grant(subscription)


def cancel(channel: ClientChannel, request: operations.Cancel, serial: int) -> None:
    """message.cancel. Deliveries on their way still come until it is complete."""
    channel.ask(commands.MessageCancel(request.consumer_tag), Step(serial, request, _cancelled))
    channel.subscriptions[request.consumer_tag].ended = True


def _cancelled(channel: ClientChannel, step: Step) -> None:
    channel.subscriptions.pop(step.request.consumer_tag, None)
    done(channel, step)


def get(channel: ClientChannel, request: operations.Get, serial: int) -> None:
    """A subscription with credit for one message, a flush, which delivers what is there, and its end."""
    tag = channel.fresh_tag("get")
    subscription = Subscription(tag, request.no_ack)
    subscription.ended = True
    step = subscription.get = Step(serial, request)
    channel.ask(
        commands.MessageSubscribe(request.queue, tag, commands.NONE if request.no_ack else commands.EXPLICIT),
        step,
        sync=False,
    )
    channel.subscriptions[tag] = subscription
    channel.write(commands.MessageSetFlowMode(tag, commands.CREDIT))
    channel.write(commands.MessageFlow(tag, commands.OCTETS, commands.UNLIMITED))
    channel.write(commands.MessageFlow(tag, commands.MESSAGES, 1))
    channel.write(commands.MessageFlush(tag))
    channel.ask(commands.MessageCancel(tag), Step(serial, subscription, _got))


def _got(channel: ClientChannel, step: Step) -> None:
    """All is over: if nothing came by now, nothing is there."""
    subscription: Subscription = step.request
    del channel.subscriptions[subscription.destination]
    if subscription.get is not None:
        channel.emit(operations.GotNothing(channel.number, step.serial, step.serial))


# -------------------------------------------------------------------------------------------- transactions


def tx_select(channel: ClientChannel, request: operations.TxSelect, serial: int) -> None:
    """tx.select."""
    channel.transacted = True
    channel.ask(commands.TxSelect(), Step(serial, request, done))


def tx_commit(channel: ClientChannel, request: operations.TxCommit, serial: int) -> None:
    """tx.commit: nothing more is sent until it is complete."""
    channel.ask(commands.TxCommit(), Step(serial, request, _ended))
    channel.committing = True


def tx_rollback(channel: ClientChannel, request: operations.TxRollback, serial: int) -> None:
    """tx.rollback: what was settled in the transaction is out again."""
    channel.ask(commands.TxRollback(), Step(serial, request, _ended))
    channel.committing = True


def _ended(channel: ClientChannel, step: Step) -> None:
    channel.committing = False
    if type(step.request) is operations.TxRollback:
        channel.unsettle()
    channel.undecided.clear()
    done(channel, step)


def recover(channel: ClientChannel, request: operations.Recover, serial: int) -> None:
    """Release all that is held. There is no giving back to oneself in 0-10."""
    if channel.outstanding:
        channel.settle_all(operations.Settlement.RELEASE)
    channel.ask(commands.ExecutionSync(), Step(serial, request, done))


REQUESTS: Final[Mapping[type[operations.Request], Callable[[ClientChannel, Any, int], None]]] = {
    **dict.fromkeys(SIMPLE, simple),
    **dict.fromkeys(QUERIES, query),
    operations.DeclareQueue: declare_queue,
    operations.Consume: consume,
    operations.Cancel: cancel,
    operations.Get: get,
    operations.TxSelect: tx_select,
    operations.TxCommit: tx_commit,
    operations.TxRollback: tx_rollback,
    operations.Recover: recover,
    operations.Resume: resume,
}
"""Everything with an outcome that is not a publish. Publish, Settle, Flow and CloseChannel are the channel's."""

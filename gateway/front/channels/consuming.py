"""How consumers of a client begin and end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.amqp.selectors import Selector, SelectorError
from gateway.errors import LocalError
from gateway.front.channels import credit, deliveries, windows
from gateway.front.channels.consumers import FrontConsumer
from gateway.front.channels.refusals import refused
from gateway.front.channels.requests import NAME_OCTETS
from gateway.front.channels.treatment import SELECTOR

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel

NO_LOCAL: Final = "x-qpid-no-local"
"""Argument of a consumer that wants nothing of its own connection."""
TAG: Final = "amq.ctag-"
"""How the tags begin that the front makes for consumers."""


def consume(channel: FrontChannel, request: Any) -> None:
    client = channel.client
    channel.name_queue(request)
    if not request.consumer_tag:
        request.consumer_tag = client.fresh_name(TAG, NAME_OCTETS)
    elif request.consumer_tag in channel.consumers:
        raise refused(530, f"attempt to reuse consumer tag '{request.consumer_tag}'")
    selector, no_local, request = tried_here(channel, request)
    sent = channel.rewritten(request)
    channel.check(sent)
    acks = request.no_ack and not channel.is_transacted
    if acks or sent.credit:
        sent = replace(sent, no_ack=request.no_ack and not acks, credit=False)
    consumer = FrontConsumer(sent, request.no_ack, acks, channel.prefetch, request.credit)
    consumer.selector, consumer.no_local = selector, no_local
    if no_local and not client.stamp:
        client.stamp = client.fresh_name("", NAME_OCTETS)
    if request.credit:
        consumer.waiting = sent
        channel.consumers[request.consumer_tag] = consumer
        credit.start_later(channel, consumer)
        return
    channel.consumers[request.consumer_tag] = consumer
    try:
        windows.begin(channel, consumer)
        channel.send(sent)
    except LocalError:
        del channel.consumers[request.consumer_tag]
        raise


def tried_here(channel: FrontChannel, request: Any) -> tuple[Selector | None, bool, Any]:
    """What the front finds out itself, and what is left for the upstream: the selector, whether the consumer wants
    nothing of its own connection, and the request. It can where the queue is the client's own: nobody else misses what
    is not wanted."""
    client, arguments = channel.client, request.arguments
    no_local = request.no_local or bool(arguments.get(NO_LOCAL))
    if NO_LOCAL in arguments:
        arguments = {name: value for name, value in arguments.items() if name != NO_LOCAL}
        request = replace(request, arguments=arguments, no_local=no_local)
    if request.queue not in client.exclusive:
        return None, False, request
    selector, text = None, arguments.get(SELECTOR)
    if text and not client.link.target.capabilities.browse:
        try:
            selector = Selector(str(text))
        except SelectorError as error:
            raise refused(406, f"the selector is malformed: {error}") from None
        arguments = {name: value for name, value in arguments.items() if name != SELECTOR}
    # RabbitMQ refuses an exclusive consumer of a queue with a single active one, and the front keeps others out.
    exclusive = request.exclusive and not client.exclusive[request.queue]
    return selector, no_local, replace(request, arguments=arguments, no_local=False, exclusive=exclusive)


def cancel(channel: FrontChannel, request: operations.Cancel) -> None:
    consumer = channel.consumers.get(request.consumer_tag)
    if consumer is not None and consumer.waiting is None and not consumer.takes_once:
        windows.shrink(channel, consumer)
        channel.send(request)
        return
    if consumer is not None:
        credit.started(channel, consumer)
    channel.consumers.pop(request.consumer_tag, None)
    channel.done(request)


def cancelled(channel: FrontChannel, operation: operations.Cancelled) -> None:
    ended = operation.consumer_tag
    consumer = channel.consumers.get(ended) or windows.owner(channel, operation)
    if consumer is None:
        return
    tag = consumer.request.consumer_tag
    windows.end(channel, consumer, ended)
    del channel.consumers[tag]
    deliveries.release(channel, consumer)
    channel.client.tell(operations.Cancelled(channel.number, tag))


def begun(channel: FrontChannel, request: operations.Consume, outcome: operations.Outcome) -> None:
    consumer = channel.consumers.get(request.consumer_tag)
    if consumer is not None:
        consumer.is_running = True
        if request.consumer_tag in channel.flushing:
            credit.flush(channel, consumer)
        channel.client.rouse()


def gone(channel: FrontChannel, request: operations.Cancel, outcome: operations.Outcome | None = None) -> None:
    consumer = channel.consumers.pop(request.consumer_tag, None)
    if consumer is not None:
        deliveries.release(channel, consumer)

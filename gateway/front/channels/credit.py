"""Credit and flush of 0-10, for an upstream that knows prefetch only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.amqp import operations
from gateway.errors import BrokerUnavailable, LimitExceeded, LocalError
from gateway.front.channels import deliveries, windows
from gateway.front.channels.consumers import FrontConsumer
from gateway.front.channels.refusals import refused

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel

START_AFTER: Final = 0.01
"""How long the front waits for what a consumer with credit wants, in seconds."""


def started(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """A consumer that the upstream does not know."""
    request, consumer.waiting = consumer.waiting, None
    consumer.is_running = True
    if request is not None and request.serial:
        channel.client.tell(operations.Consuming(channel.number, request.serial, request.serial, request.consumer_tag))


def fetch(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Get one message for a consumer that is canceled as soon as it has what it has asked for."""
    request = consumer.request
    if not consumer.admits(0):
        flushed(channel, request.consumer_tag)
        return

    def answered(outcome: operations.Outcome) -> None:
        if isinstance(outcome, operations.Failed):
            channel.fail(outcome.code, outcome.text)
        elif isinstance(outcome, operations.Got) and not deliveries.wants(channel, consumer, outcome.message):
            deliveries.pass_over(channel, consumer, outcome.delivery)
            fetch(channel, consumer)
        elif isinstance(outcome, operations.Got):
            deliver = operations.Deliver(
                channel.number, request.consumer_tag, outcome.delivery, outcome.redelivered, outcome.exchange,
                outcome.routing_key, outcome.message,
            )  # fmt: skip
            deliveries.hand_over(channel, consumer, deliver)
            fetch(channel, consumer)
        else:
            flushed(channel, request.consumer_tag)

    channel.ask(operations.Get(channel.number, request.queue), answered)


def credit(channel: FrontChannel, request: operations.Credit) -> None:
    consumer = channel.consumers.get(request.consumer_tag)
    if consumer is None or consumer.credit is None:
        raise refused(404, f"no destination '{request.consumer_tag}'")
    if request.stopped:
        consumer.credit.clear()
        return
    consumer.credit.grant(request.messages, request.octets)
    deliveries.pump_consumer(channel, consumer)
    if request.flush:
        channel.flushing[request.consumer_tag] = request.serial
        if consumer.waiting is not None and consumer.credit.messages is not None:
            consumer.takes_once = True
            started(channel, consumer)
        if consumer.takes_once:
            fetch(channel, consumer)
        elif consumer.waiting is not None:
            start(channel, consumer)
        elif consumer.is_running:
            flush(channel, consumer)
    elif consumer.takes_once and consumer.admits(1):
        consumer.takes_once = consumer.is_running = False
        consumer.waiting = replace(consumer.request, serial=0)
        start_later(channel, consumer)


def flush(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Find out when the upstream has sent all that the queue has. RabbitMQ answers a question ahead of deliveries
    that it has found already, so it is asked twice."""
    queue, tag = consumer.request.queue, consumer.request.consumer_tag

    def again(outcome: operations.Outcome) -> None:
        channel.ask(operations.QueryQueue(channel.number, queue), lambda outcome: flushed(channel, tag))

    channel.ask(operations.QueryQueue(channel.number, queue), again)


def flushed(channel: FrontChannel, tag: str) -> None:
    """message.flush: the consumer has what there was for it."""
    serial = channel.flushing.pop(tag, 0)
    consumer = channel.consumers.get(tag)
    if consumer is not None and consumer.credit is not None:
        deliveries.pump_consumer(channel, consumer)
        consumer.credit.clear()
    if serial:
        channel.client.tell(operations.Done(channel.number, serial, serial))
    channel.client.rouse()


def start_later(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Start a consumer after :data:`START_AFTER` seconds, unless its client flushes the credit before that.

    A client of 0-10 that wants one message subscribes, gives credit for one, flushes, and cancels. The front serves it
    by a get. A consumer would take more messages than one; they would go back marked as redelivered, and the client's
    next get would find the queue empty.
    """

    def begin() -> None:
        client, tag = channel.client, consumer.request.consumer_tag
        if client.may_go_on and any(
            operation.channel == channel.number and getattr(operation, "consumer_tag", None) == tag
            for operation in client.backlog
        ):
            start_later(channel, consumer)  # its client has asked for more, which waits for the next turn
        else:
            start(channel, consumer)

    channel.client.host.later(START_AFTER, begin)


def start(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Have the upstream deliver to a consumer with credit."""
    request = consumer.waiting
    if request is None or channel.over or not channel.client.link.is_up:
        return
    if channel.committing or channel.is_giving_back:
        start_later(channel, consumer)
        return
    consumer.waiting = None
    try:
        windows.begin(channel, consumer)
        channel.send(request)
    except (LocalError, LimitExceeded, BrokerUnavailable) as error:
        channel.fail(506, f"RESOURCE_ERROR - {error}"[:255])

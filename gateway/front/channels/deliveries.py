"""Deliveries on their way to a client: written at once, or held until the client may have them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.amqp.steps import Steps, TooManySteps
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    FrameSyntaxError,
    LimitExceeded,
    LocalError,
    RemoteError,
    StateError,
)
from gateway.fidelity.reserved import raw_annotations
from gateway.front.channels import windows
from gateway.front.channels.consumers import FrontConsumer, Outstanding
from gateway.front.channels.messages import LOCAL, restored
from gateway.front.channels.refusals import refused
from gateway.front.channels.target import QPID
from gateway.front.counts import DELIVERIES
from gateway.front.handed import fingerprint

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel


SLOW: Final = 4
"""A client reads too slowly for a larger window when this part of ``client_bytes`` waits for one of its consumers."""


def get(channel: FrontChannel, request: Any) -> None:
    channel.name_queue(request)
    channel.check(request)
    target = channel.client.link.target
    if target.product == QPID and not target.is_native:
        find_queue(channel, request)
    else:
        channel.send(request)


def find_queue(channel: FrontChannel, request: operations.Get) -> None:
    """A broker that ends the connection over a get from a queue that is not there is asked for it first."""

    def found(outcome: operations.Outcome | RemoteError) -> None:
        if channel.asking is not request or not channel.client.link.is_up:
            return  # the broker is lost behind its answer, or was lost before it: the get waits, or was asked again
        channel.asking = None
        if isinstance(outcome, RemoteError):
            channel.refuse(request, outcome)
        elif not channel.over:
            try:
                channel.send(request)
            except (LocalError, LimitExceeded, BrokerUnavailable) as error:
                channel.refuse(request, refused(506, str(error)))
        channel.client.rouse()

    channel.asking = request
    channel.client.link.ask(channel, operations.QueryQueue(0, request.queue), found)


def release(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Give back what waits for a consumer that is gone."""
    channel.client.held.add(-consumer.held_bytes)
    held = list(consumer.held)
    consumer.held.clear()
    consumer.held_bytes = 0
    windows.release(channel, consumer)
    for delivery in held:
        channel.settle_own(Settlement.RELEASE, delivery.delivery)


def deliver(channel: FrontChannel, operation: operations.Deliver) -> None:
    consumer = channel.consumers.get(operation.consumer_tag) or windows.owner(channel, operation)
    if consumer is None:
        channel.settle_own(Settlement.RELEASE, operation.delivery)
    elif (consumer.selector is not None or consumer.no_local) and not wants(channel, consumer, operation.message):
        pass_over(channel, consumer, operation.delivery)
    elif consumer.held or not admits(channel, consumer, len(operation.message.body)):
        consumer.held.append(operation)
        size = len(operation.message.body)
        consumer.held_bytes += size
        channel.client.held.add(size)
        if consumer.window.growing and consumer.held_bytes * SLOW > channel.client.host.client_bytes:
            windows.shrink(channel, consumer)
    else:
        hand_over(channel, consumer, operation)


def wants(channel: FrontChannel, consumer: FrontConsumer, message: Message) -> bool:
    """Whether a consumer wants a message, by its selector and ``no_local``. One that takes too many steps to find out
    about is not for it."""
    if consumer.selector is None and not consumer.no_local:
        return True
    client = channel.client
    try:
        if consumer.no_local and raw_annotations(message).get(LOCAL) == client.stamp:
            return False
        steps = Steps(client.host.broker_limits.select_steps)
        return consumer.selector is None or consumer.selector.matches(restored(message).properties, steps)
    except TooManySteps:
        client.counts.undeliverable(client, consumer.request.queue, "its selector takes too many steps")
    except FrameSyntaxError as error:
        client.counts.undeliverable(client, consumer.request.queue, str(error))
    return False


def pass_over(channel: FrontChannel, consumer: FrontConsumer, number: int) -> None:
    """Settle a delivery that the consumer does not want; the queue has no other reader."""
    if consumer.acks or not consumer.no_ack:
        channel.settle_own(Settlement.ACCEPT, number)


def admits(channel: FrontChannel, consumer: FrontConsumer, size: int) -> bool:
    if channel.stopped or channel.client.paused or (channel.limit and len(channel.outstanding) >= channel.limit):
        return False
    return consumer.admits(size)


def remember(channel: FrontChannel, queue: str, operation: operations.Deliver | operations.Got) -> int:
    """Mark a delivery as redelivered where its broker may have forgotten that, and remember it: returns its
    fingerprint, or 0."""
    handed = channel.client.link.handed
    if handed is None:
        return 0
    known = fingerprint(queue, operation.message.body)
    if handed.add(known) and not operation.redelivered:
        operation.redelivered = True  # type: ignore[misc]  # nobody else has it
        channel.client.counts.add(DELIVERIES, "marked")
    return known


def hand_over(channel: FrontChannel, consumer: FrontConsumer, operation: operations.Deliver) -> None:
    """Write a delivery for the client."""
    client = channel.client
    upstream, size = operation.delivery, len(operation.message.body)
    operation.channel = channel.number  # type: ignore[misc]  # nobody else has it
    known = remember(channel, consumer.request.queue, operation)
    operation.message = restored(operation.message)  # type: ignore[misc]
    try:
        number = client.session.send(operation, client.now)
    except StateError:
        return  # the session has ended the channel or the connection in the meantime
    except (LocalError, FrameSyntaxError) as error:
        consumer.out += 1
        client.counts.undeliverable(client, consumer.request.queue, str(error))
        return
    client.wrote(size)
    client.counts.delivered += 1
    consumer.spend(size)
    channel.newest = number
    records = client.delivery_records
    message_id = b"" if records is None else records.delivered(client, operation, consumer.request.queue)
    if consumer.acks:
        channel.settle_own(Settlement.ACCEPT, upstream)
    elif not consumer.no_ack:
        consumer.out += 1
        channel.outstanding[number] = Outstanding(upstream, consumer, message_id, known)
        if consumer.out >= consumer.window.size - consumer.window.undecided:
            windows.delivered(channel, consumer, operation.message)
    if consumer.no_ack and records is not None:
        records.settled(client, (message_id,), Settlement.ACCEPT)


def too_large(channel: FrontChannel, operation: operations.DeliveryTooLarge) -> None:
    consumer = channel.consumers.get(operation.consumer_tag) or windows.owner(channel, operation)
    text = f"{operation.size} octets are over the limit of {operation.limit}"
    channel.client.counts.undeliverable(channel.client, consumer.request.queue if consumer else "", text)
    if consumer is None:
        channel.settle_own(Settlement.RELEASE, operation.delivery)
    else:
        consumer.out += 1


def pump(channel: FrontChannel) -> None:
    """Write what waits, as far as it may be written."""
    for consumer in list(channel.consumers.values()):
        if consumer.held:
            pump_consumer(channel, consumer)


def pump_after(channel: FrontChannel, entry: Outstanding) -> None:
    """One delivery was settled."""
    if channel.limit:
        pump(channel)
    elif entry.consumer is not None and entry.consumer.held:
        pump_consumer(channel, entry.consumer)


def pump_consumer(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Write what waits for one consumer."""
    held = consumer.held
    while held and not channel.over and admits(channel, consumer, len(held[0].message.body)):
        operation = held.popleft()
        size = len(operation.message.body)
        consumer.held_bytes -= size
        channel.client.held.add(-size)
        hand_over(channel, consumer, operation)


def got(channel: FrontChannel, outcome: operations.Got) -> None:
    own = channel.own.pop(outcome.first, None)
    if own is not None:
        own(outcome)
        return
    request: Any = channel.sent.pop(outcome.first, None)
    if request is None:
        return
    client, upstream = channel.client, outcome.delivery
    known = remember(channel, request.queue, outcome)
    got = replace(
        outcome, channel=channel.number, first=request.serial, last=request.serial, message=restored(outcome.message)
    )
    try:
        number = client.session.send(got, client.now)
    except (EncodeError, FrameSyntaxError) as error:
        channel.settle_own(Settlement.RELEASE, upstream)
        channel.refuse(request, refused(311, str(error)))
        return
    except StateError:
        return
    client.wrote(len(outcome.message.body))
    client.counts.delivered += 1
    channel.newest = number
    records = client.delivery_records
    message_id = b"" if records is None else records.delivered(client, got, request.queue)
    if not request.no_ack:
        channel.outstanding[number] = Outstanding(upstream, None, message_id, known)
    elif not channel.is_transacted:
        channel.settle_own(Settlement.ACCEPT, upstream)
    if request.no_ack and records is not None:
        records.settled(client, (message_id,), Settlement.ACCEPT)

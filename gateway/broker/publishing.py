"""A publish: what is checked, in the order in which RabbitMQ checks it, where the message goes, and the outcome.

A publish in confirm mode ends in Confirmed, in Returned followed by Confirmed, or in Refused, all within the turn:
in memory a message is as safe as it will ever be once it is in its queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.broker.arguments import MILLISECONDS_MAX
from gateway.broker.channels import Channel, Delivery
from gateway.broker.queues import ROOMY_AT, Envelope, Queue
from gateway.broker.refusals import refusal, reply_text
from gateway.message import Deadline, Properties
from gateway.operations import Publish, Refused, Returned, Settlement

if TYPE_CHECKING:
    from gateway.broker.broker import Connection

NO_ROUTE = (312, "NO_ROUTE")
NO_CONSUMERS = (313, "NO_CONSUMERS")


class PublisherWaits(Exception):
    """The publish waits, and whatever follows it on its connection, until there is memory for messages."""


MEMORY_FULL = "the memory for messages is used up"
QUEUE_FULL = "a queue is at its length limit"


def publish(channel: Channel, request: Publish, now: float) -> None:
    """basic.publish, message.transfer. Raises what closes the channel: 403, 404, 406, 506, 540; and
    :class:`~gateway.errors.FrameSyntaxError` where the properties are none."""
    connection = channel.connection
    vhost, memory = connection.vhost, connection.vhost.memory
    if request.immediate and not connection.rules.immediate:
        raise refusal(540, "immediate=true")
    exchange = vhost.exchange(request.exchange)
    if exchange.internal:
        raise refusal(403, f"cannot publish to internal {vhost.title('exchange', exchange.name)}")
    raw = request.message.raw
    if raw is not None and raw.octets == channel.checked_octets:
        expiration, priority = None, channel.checked_priority
    else:
        expiration, priority = _check(request.message.properties, connection)
        channel.checked_octets = raw.octets if raw is not None and expiration is None else None
        channel.checked_priority = priority
        if expiration is not None:
            until = request.message.properties.expiration
            request.message.expires_at = until.instant if type(until) is Deadline else vhost.time() + expiration
        request.message.forget()
    envelope = Envelope(
        memory,
        request.message,
        request.exchange,
        request.routing_key,
        publisher=connection.number,
        expiration=expiration,
        priority=priority,
    )
    used = memory.used + envelope.cost
    if used > memory.alarm:
        connection.broker.block(channel, now)
        if used > memory.limit:
            if not channel.confirms and _may_wait(connection, envelope):
                raise PublisherWaits
            _refuse(channel, request, MEMORY_FULL, now)
            return
    if channel.branch is not None:
        channel.branch.publish(envelope, _destinations(channel, request, now))
        if channel.confirms:
            channel.confirm(request.serial)
        return
    if channel.transaction is not None:
        envelope.hold()
        channel.transaction.publishes.append((request, envelope))
        if channel.confirms:
            channel.confirm(request.serial)
        return
    if not route(channel, request, envelope, now):
        _refuse(channel, request, QUEUE_FULL, now, may_close=False)
    elif channel.confirms:
        channel.confirm(request.serial)


def _may_wait(connection: Connection, envelope: Envelope) -> bool:
    """Whether a publisher that has no confirms can wait for memory, read no further: nothing that it holds itself,
    and would not be heard to give back, may be what is missing."""
    if envelope.cost > envelope.memory.limit * (1 - ROOMY_AT):
        return False
    return all(channel.transaction is None and not channel.unsettled for channel in connection.channels.values())


def route(channel: Channel, request: Publish, envelope: Envelope, now: float) -> bool:
    """Put a message into the queues it is for, or return it. False: a queue refused it."""
    taken = True
    for queue in _destinations(channel, request, now):
        if not queue.publish(envelope, now):
            taken = False
    return taken


def _destinations(channel: Channel, request: Publish, now: float) -> list[Queue]:
    """The queues that a message is for; where there are none and its publisher wants to know, it is returned."""
    vhost = channel.connection.vhost
    exchange = vhost.exchanges.get(request.exchange)
    # None: deleted since, in a transaction
    queues = [] if exchange is None else vhost.route(exchange, request.routing_key, request.message)
    returned = NO_ROUTE if not queues and request.mandatory else None
    if request.immediate and queues:
        size = len(request.message.body)
        queues = [queue for queue in queues if queue.accepts_at_once(size)]
        returned = None if queues else NO_CONSUMERS
    if returned is not None:
        _return(channel, request, *returned, now)
    return queues


def commit(channel: Channel, now: float) -> bool:
    """tx.commit: carry out what the transaction noted. False: a queue refused a message."""
    transaction = channel.transaction
    assert transaction is not None
    taken = True
    for request, envelope in transaction.publishes:
        if not route(channel, request, envelope, now):
            taken = False
        envelope.release()
    transaction.publishes.clear()
    by_settlement: dict[Settlement, list[Delivery]] = {}
    for delivery, settlement in transaction.settlements:
        by_settlement.setdefault(settlement, []).append(delivery)
    transaction.settlements.clear()
    for settlement, deliveries in by_settlement.items():
        channel.finish(deliveries, settlement, now)
    return taken


def _check(properties: Properties, connection: Connection) -> tuple[int | None, int]:
    """Refuse (406) what RabbitMQ refuses; the time to live in milliseconds, and the priority."""
    user_id = properties.user_id
    if user_id is not None:
        claimed = user_id if isinstance(user_id, str) else user_id.decode("utf-8", "surrogateescape")
        if claimed != connection.user:
            raise refusal(406, f"user_id property set to '{claimed}' but authenticated user was '{connection.user}'")
    if properties.delivery_mode not in _DELIVERY_MODES:
        raise refusal(406, f"invalid message: delivery mode {properties.delivery_mode} is neither 1 nor 2")
    expiration = properties.expiration
    return None if expiration is None else _milliseconds(expiration), properties.priority or 0


_DELIVERY_MODES = frozenset({None, 1, 2})


def _milliseconds(expiration: str) -> int | None:
    """The message's time to live; longer than what is counted is for ever."""
    if not (expiration.isascii() and expiration.isdigit()):
        raise refusal(406, f"invalid expiration '{expiration}': no number of milliseconds")
    if len(expiration.lstrip("0")) > _DIGITS_MAX:
        return None
    milliseconds = int(expiration)
    return milliseconds if milliseconds <= MILLISECONDS_MAX else None


_DIGITS_MAX = len(str(MILLISECONDS_MAX))


def _return(channel: Channel, request: Publish, code: int, text: str, now: float) -> None:
    serial = request.serial
    channel.connection.wrote(len(request.message.body))
    channel.connection.send(
        Returned(channel.number, serial, serial, code, text, request.exchange, request.routing_key, request.message),
        now,
    )


def _refuse(channel: Channel, request: Publish, why: str, now: float, may_close: bool = True) -> None:
    """Refuse responsibility for a message. Without confirms nobody could be told: the channel closes, unless
    dropping is what the queue's owner asked for."""
    serial = request.serial
    if channel.confirms:
        channel.connection.send(Refused(channel.number, serial, serial, 506, reply_text(506, why)), now)
    elif may_close:
        raise refusal(506, why)

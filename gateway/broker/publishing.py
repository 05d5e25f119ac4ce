"""A publish: what is checked, in the order in which RabbitMQ checks it, where the message goes, and the outcome.

A publish in confirm mode ends in Confirmed, in Returned followed by Confirmed, or in Refused, all within the turn:
in memory a message is as safe as it will ever be once it is in its queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.amqp.message import Deadline, Properties
from gateway.amqp.operations import Publish, Refused, Returned
from gateway.amqp.steps import Steps, TooManySteps
from gateway.broker.arguments import MILLISECONDS_MAX
from gateway.broker.channels import Channel
from gateway.broker.queues import ROOMY_AT, Envelope, Memory, Queue
from gateway.broker.refusals import refusal, reply_text
from gateway.broker.turns import PIECE, Job, drained, pieces
from gateway.errors import RemoteError

if TYPE_CHECKING:
    from gateway.broker.broker import Connection

NO_ROUTE = (312, "NO_ROUTE")
NO_CONSUMERS = (313, "NO_CONSUMERS")


class PublisherWaits(Exception):
    """The publish waits, and everything that follows it on its connection, until there is memory for messages."""

    def __init__(self, memory: Memory) -> None:
        """``memory``: in which there is no room."""
        super().__init__()
        self.memory = memory


MEMORY_FULL = "the memory for messages is used up"
QUEUE_FULL = "a queue is at its length limit"


def publish(channel: Channel, request: Publish, now: float) -> Job | None:
    """basic.publish, message.transfer; a job, where there are many queues. Raises what closes the channel: 403, 404,
    406, 506, 540; and :class:`~gateway.errors.FrameSyntaxError` where the properties are malformed."""
    connection = channel.connection
    vhost, memory, of_user = connection.vhost, connection.vhost.memory, connection.memory
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
        of_user,
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
            if not channel.confirms and _may_wait(connection, envelope, memory):
                raise PublisherWaits(memory)
            _refuse(channel, request, MEMORY_FULL, now)
            return None
    if of_user is not memory and not of_user.fits(envelope.cost):
        why = connection.broker.share_refusal(connection, envelope.cost)
        if not channel.confirms and _may_wait(connection, envelope, of_user):
            raise PublisherWaits(of_user)
        _refuse(channel, request, why, now)
        return None
    if channel.transaction is not None and channel.branch is None:
        _destinations(channel, request, now, is_rehearsal=True)
        envelope.hold()
        channel.transaction.publishes.append((request, envelope))
        if channel.confirms:
            channel.confirm(request.serial)
        return None
    queues = _destinations(channel, request, now)
    if channel.branch is not None:
        channel.branch.publish(envelope, queues)
        if channel.confirms:
            channel.confirm(request.serial)
        return None
    if len(queues) > PIECE:
        return _spread(channel, request, envelope, queues, now)
    if request.immediate:
        if queues and not sum(queue.hand_over(envelope, now) for queue in queues):
            _return(channel, request, *NO_CONSUMERS, now)
        queues = []
    taken = True
    for queue in queues:
        if not queue.publish(envelope, now):
            taken = False
    if not taken:
        _refuse(channel, request, QUEUE_FULL, now, may_close=False)
    elif channel.confirms:
        channel.confirm(request.serial)
    return None


def _spread(channel: Channel, request: Publish, envelope: Envelope, queues: list[Queue], now: float) -> Job:
    """Put a message into many queues, in several turns if it must be. All of them get it, even if the publisher has
    gone in between."""
    envelope.hold()
    taken, is_with_consumer = True, False
    try:
        for piece in pieces(queues, PIECE // 4):
            for queue in piece:
                if queue.gone:
                    continue
                if request.immediate:
                    is_with_consumer = queue.hand_over(envelope, now) or is_with_consumer
                elif not queue.publish(envelope, now):
                    taken = False
            yield
    finally:
        envelope.release()
    if request.immediate and not is_with_consumer:
        _return(channel, request, *NO_CONSUMERS, now)
    if not taken:
        _refuse(channel, request, QUEUE_FULL, now, may_close=False)
    elif channel.confirms:
        channel.confirm(request.serial)


def _may_wait(connection: Connection, envelope: Envelope, memory: Memory) -> bool:
    """Whether a publisher that has no confirms can wait for memory, read no further: nothing that it holds itself,
    and would not be heard to give back, may be what is missing."""
    if envelope.cost > memory.limit * (1 - ROOMY_AT):
        return False
    return all(channel.transaction is None and not channel.unsettled for channel in connection.channels.values())


def _destinations(channel: Channel, request: Publish, now: float, is_rehearsal: bool = False) -> list[Queue]:
    """The queues that a message is for; where there are none and its publisher wants to know, it is returned. 506
    where finding them costs more steps than it may. ``is_rehearsal``: that is all that the caller wants to know."""
    connection = channel.connection
    vhost, limits = connection.vhost, connection.broker.limits
    exchange = vhost.exchanges.get(request.exchange)
    if is_rehearsal and (exchange is None or exchange.cheap):
        return []
    try:
        # None: deleted since, in a transaction
        queues = [] if exchange is None else vhost.route(exchange, request.routing_key, request.message)
        if is_rehearsal:
            return queues
        returned = NO_ROUTE if not queues and request.mandatory else None
        if request.immediate and queues:
            size = len(request.message.body)
            Steps(limits.match_steps).spend(sum(8 + 8 * len(queue.consumers) for queue in queues))
            queues = [queue for queue in queues if queue.accepts_at_once(size)]
            returned = None if queues else NO_CONSUMERS
    except TooManySteps:
        connection.broker.too_costly(connection, "a publish", request.exchange)
        text = f"finding the queues of this message costs more than {limits.match_steps} steps; "
        raise refusal(506, text + f"use fewer or simpler bindings of exchange '{request.exchange}'") from None
    if returned is not None:
        _return(channel, request, *returned, now)
    return queues


def commit(channel: Channel, now: float) -> Job:
    """tx.commit: carry out what the transaction noted. 406 when a queue refused a message, 506 when finding the queues
    of one costs too much since it was published; the others are where they belong."""
    transaction = channel.transaction
    assert transaction is not None
    publishes, transaction.publishes = transaction.publishes, []
    settlements, transaction.settlements = transaction.settlements, []
    taken, failed = True, None
    for request, envelope in drained(publishes):
        try:
            queues = _destinations(channel, request, now)
        except RemoteError as error:
            queues, failed = [], error
        is_with_consumer = not queues
        for piece in pieces(queues, PIECE // 4):
            for queue in piece:
                if queue.gone:
                    continue
                if request.immediate:
                    is_with_consumer = queue.hand_over(envelope, now) or is_with_consumer
                elif not queue.publish(envelope, now):
                    taken = False
            yield
        envelope.release()
        if request.immediate and not is_with_consumer:
            _return(channel, request, *NO_CONSUMERS, now)
    yield from channel.carry_out(drained(settlements), now)
    if failed is not None:
        raise failed
    if not taken:
        raise refusal(406, "partial tx completion")


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

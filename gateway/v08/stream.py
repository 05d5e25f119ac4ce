"""Class stream (80) of 0-8: messages that are of use now or never, and are not acknowledged.

No broker that we know has it: ours answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import Bit, Long, LongLong, Short, ShortStr


@method(80, 10)
class StreamQos(Method):
    """Client."""

    prefetch_size: Long
    prefetch_count: Short
    consume_rate: Long
    """Octets per second; 0 is no limit."""
    global_: Bit


@method(80, 11, answers=(StreamQos,))
class StreamQosOk(Method):
    pass


@method(80, 20)
class StreamConsume(Method):
    """Client; nothing of a stream is acknowledged, so there is no ``no_ack``."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    exclusive: Bit
    nowait: Bit


@method(80, 21, answers=(StreamConsume,))
class StreamConsumeOk(Method):
    consumer_tag: ShortStr


@method(80, 30)
class StreamCancel(Method):
    """Client."""

    consumer_tag: ShortStr
    nowait: Bit = False


@method(80, 31, answers=(StreamCancel,))
class StreamCancelOk(Method):
    consumer_tag: ShortStr


@method(80, 40, content=True)
class StreamPublish(Method):
    """Client."""

    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit
    immediate: Bit


@method(80, 50, content=True)
class StreamReturn(Method):
    """Server: a message that could not be routed."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(80, 60, content=True)
class StreamDeliver(Method):
    """Server: a message for one of the channel's consumers."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    exchange: ShortStr
    queue: ShortStr


METHODS: Final[tuple[type[Method], ...]] = (
    StreamQos, StreamQosOk, StreamConsume, StreamConsumeOk, StreamCancel, StreamCancelOk, StreamPublish, StreamReturn,
    StreamDeliver,
)  # fmt: skip
"""The class, in the order of its numbers."""

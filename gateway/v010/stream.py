"""The stream class of AMQP 0-10 (specification section 10.10): messages that nobody acknowledges, at a steady rate.

Declared for whoever reads or writes it; the gateway's sessions do not serve it, and answer 540.
"""

from __future__ import annotations

from typing import Final

from gateway.v010.domains import ExchangeName, QueueName, StreamReturnCode
from gateway.v010.fields import CLIENT, Bit, Datetime, Map, Str8, Uint8, Uint16, Uint32, Uint64
from gateway.v010.segments import Command, command
from gateway.v010.structs import Struct, coded

STREAM_PROPERTIES: Final = 0x0A01
"""The code of the struct in the header segment."""


@coded(STREAM_PROPERTIES, "stream.stream-properties")
class StreamProperties(Struct):
    """What the publisher says of the message."""

    content_type: Str8 | None = None
    content_encoding: Str8 | None = None
    headers: Map | None = None
    priority: Uint8 | None = None
    """From 0 to 9."""
    timestamp: Datetime | None = None


@command(0x0A01, "stream.qos", answers=("stream.qos-ok",))
class StreamQos(Command):
    """How much may be under way, and how fast."""

    prefetch_size: Uint32 | None = None
    """Octets."""
    prefetch_count: Uint16 | None = None
    """Messages."""
    consume_rate: Uint32 | None = None
    """Octets in a second."""
    global_: Bit = False
    """For the whole connection."""


@command(0x0A02, "stream.qos-ok", to=CLIENT)
class StreamQosOk(Command):
    """From here on."""


@command(0x0A03, "stream.consume", answers=("stream.consume-ok",))
class StreamConsume(Command):
    """A consumer."""

    queue: QueueName | None = None
    consumer_tag: Str8 | None = None
    no_local: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    """No consume-ok is wanted."""
    arguments: Map | None = None


@command(0x0A04, "stream.consume-ok", to=CLIENT)
class StreamConsumeOk(Command):
    """The consumer is there."""

    consumer_tag: Str8 | None = None


@command(0x0A05, "stream.cancel")
class StreamCancel(Command):
    """The end of a consumer."""

    consumer_tag: Str8 | None = None


@command(0x0A06, "stream.publish", header=(STREAM_PROPERTIES,), header_required=True)
class StreamPublish(Command):
    """A message for an exchange."""

    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None
    mandatory: Bit = False
    immediate: Bit = False


@command(0x0A07, "stream.return", to=CLIENT, header=(STREAM_PROPERTIES,), header_required=True)
class StreamReturn(Command):
    """It could not be delivered, and comes back."""

    reply_code: StreamReturnCode | None = None
    reply_text: Str8 | None = None
    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None


@command(0x0A08, "stream.deliver", to=CLIENT, header=(STREAM_PROPERTIES,), header_required=True)
class StreamDeliver(Command):
    """A message for one of the consumers."""

    consumer_tag: Str8 | None = None
    delivery_tag: Uint64 | None = None
    exchange: ExchangeName | None = None
    queue: QueueName = ""

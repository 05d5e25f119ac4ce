"""The file class of AMQP 0-10 (specification section 10.9): messages that are staged, and go on where they broke off.

The sender opens a staging area by an identifier, is told how much of it the other end has already, stages the rest as
the body of file.stage, and then publishes, or delivers, what lies there under its identifier. Declared for whoever
reads or writes it; the gateway's sessions do not serve it, and answer 540.
"""

from __future__ import annotations

from typing import Final

from gateway.v010.domains import ExchangeName, FileReturnCode, QueueName
from gateway.v010.fields import CLIENT, EITHER, Bit, Datetime, Map, Str8, Uint8, Uint16, Uint32, Uint64
from gateway.v010.segments import Command, command
from gateway.v010.structs import Struct, coded

FILE_PROPERTIES: Final = 0x0901
"""The code of the struct in the header segment."""


@coded(FILE_PROPERTIES, "file.file-properties")
class FileProperties(Struct):
    """What the publisher says of the message."""

    content_type: Str8 | None = None
    content_encoding: Str8 | None = None
    headers: Map | None = None
    priority: Uint8 | None = None
    """From 0 to 9."""
    reply_to: Str8 | None = None
    message_id: Str8 | None = None
    filename: Str8 | None = None
    timestamp: Datetime | None = None
    cluster_id: Str8 | None = None


@command(0x0901, "file.qos", answers=("file.qos-ok",))
class FileQos(Command):
    """How much may be out without an acknowledgement."""

    prefetch_size: Uint32 | None = None
    """Octets."""
    prefetch_count: Uint16 | None = None
    """Messages."""
    global_: Bit = False
    """For the whole connection."""


@command(0x0902, "file.qos-ok", to=CLIENT)
class FileQosOk(Command):
    """From here on."""


@command(0x0903, "file.consume", answers=("file.consume-ok",))
class FileConsume(Command):
    """A consumer."""

    queue: QueueName | None = None
    consumer_tag: Str8 | None = None
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    """No consume-ok is wanted."""
    arguments: Map | None = None


@command(0x0904, "file.consume-ok", to=CLIENT)
class FileConsumeOk(Command):
    """The consumer is there."""

    consumer_tag: Str8 | None = None


@command(0x0905, "file.cancel")
class FileCancel(Command):
    """The end of a consumer."""

    consumer_tag: Str8 | None = None


@command(0x0906, "file.open", to=EITHER, answers=("file.open-ok",))
class FileOpen(Command):
    """Something is about to be staged."""

    identifier: Str8 | None = None
    content_size: Uint64 | None = None
    """Octets of the whole."""


@command(0x0907, "file.open-ok", to=EITHER, answers=("file.stage",))
class FileOpenOk(Command):
    """Go on from there."""

    staged_size: Uint64 | None = None
    """Octets that are there already."""


@command(0x0908, "file.stage", to=EITHER, header=(FILE_PROPERTIES,), header_required=True)
class FileStage(Command):
    """The rest of the content follows."""


@command(0x0909, "file.publish")
class FilePublish(Command):
    """Publish what was staged."""

    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None
    mandatory: Bit = False
    immediate: Bit = False
    identifier: Str8 | None = None


@command(0x090A, "file.return", to=CLIENT, header=(FILE_PROPERTIES,), header_required=True)
class FileReturn(Command):
    """It could not be delivered, and comes back."""

    reply_code: FileReturnCode | None = None
    reply_text: Str8 | None = None
    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None


@command(0x090B, "file.deliver", to=CLIENT)
class FileDeliver(Command):
    """What was staged is for one of the consumers."""

    consumer_tag: Str8 | None = None
    delivery_tag: Uint64 | None = None
    redelivered: Bit = False
    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None
    identifier: Str8 | None = None


@command(0x090C, "file.ack")
class FileAck(Command):
    """The consumer has taken over."""

    delivery_tag: Uint64 | None = None
    multiple: Bit = False
    """And all before it."""


@command(0x090D, "file.reject")
class FileReject(Command):
    """The consumer will not take it."""

    delivery_tag: Uint64 | None = None
    requeue: Bit = False
    """Back to the queue; without it, it is gone."""

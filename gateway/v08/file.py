"""Class file (70) of 0-8: reliable transfer of files. A file is staged first, then published or delivered by the
identifier of its stage::

    sender      open        I have a file of so many octets
    receiver    open-ok     so many of them I have already
    sender      stage       with the content that is missing
    sender      publish or deliver, naming the identifier

No broker that we know has it: ours answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import Bit, Long, LongLong, Short, ShortStr


@method(70, 10)
class FileQos(Method):
    """Client."""

    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(70, 11, answers=(FileQos,))
class FileQosOk(Method):
    pass


@method(70, 20)
class FileConsume(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit


@method(70, 21, answers=(FileConsume,))
class FileConsumeOk(Method):
    consumer_tag: ShortStr


@method(70, 30)
class FileCancel(Method):
    """Client."""

    consumer_tag: ShortStr
    nowait: Bit = False


@method(70, 31, answers=(FileCancel,))
class FileCancelOk(Method):
    consumer_tag: ShortStr


@method(70, 40)
class FileOpen(Method):
    """Either side: asks to stage a file."""

    identifier: ShortStr
    content_size: LongLong
    """Octets of the file."""


@method(70, 41, answers=(FileOpen,))
class FileOpenOk(Method):
    """The answer to it; file.stage follows."""

    staged_size: LongLong
    """Octets that are staged already, from an attempt before."""


@method(70, 50, answers=(FileOpenOk,), content=True)
class FileStage(Method):
    """Either side: the part of the file that is missing."""


@method(70, 60)
class FilePublish(Method):
    """Client: send a staged file on its way."""

    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit
    immediate: Bit
    identifier: ShortStr


@method(70, 70, content=True)
class FileReturn(Method):
    """Server: a file that could not be routed."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(70, 80)
class FileDeliver(Method):
    """Server: a staged file for one of the channel's consumers."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    identifier: ShortStr


@method(70, 90)
class FileAck(Method):
    """Client."""

    delivery_tag: LongLong
    multiple: Bit = False


@method(70, 100)
class FileReject(Method):
    """Client."""

    delivery_tag: LongLong
    requeue: Bit


METHODS: Final[tuple[type[Method], ...]] = (
    FileQos, FileQosOk, FileConsume, FileConsumeOk, FileCancel, FileCancelOk, FileOpen, FileOpenOk, FileStage,
    FilePublish, FileReturn, FileDeliver, FileAck, FileReject,
)  # fmt: skip
"""The class, in the order of its numbers."""

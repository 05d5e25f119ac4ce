"""The methods of 0-8 and 0-9-1, as declared classes in the order of the wire.

47 of 0-9-1's 55 methods have the same shape in 0-8; this module holds those, and the additions of either version or of
a product to the classes connection, channel, access, exchange, queue, basic, confirm and tx. A dialect says which of
them are spoken under which number (:mod:`gateway.classic.dialect`). ``ticket`` is 0-8's access ticket, reserved and 0
in 0-9-1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, TypeVar, dataclass_transform

from gateway.wire.declare import Declared, declared
from gateway.wire.types import Bit, FieldTable, Long, LongLong, LongStr, Octet, Short, ShortStr

_T = TypeVar("_T", bound="Method")


class Method(Declared):
    """Base of all methods. ``encode`` gives the payload of the method frame."""

    __slots__ = ()

    class_id: ClassVar[int]
    method_id: ClassVar[int]
    key: ClassVar[int]
    """``class_id << 16 | method_id``, as the two stand on the wire."""
    title: ClassVar[str]
    """Class and method as the specification writes them: ``basic.get-ok``."""
    content: ClassVar[bool] = False
    """A content header and a body follow."""
    replies: ClassVar[tuple[type[Method], ...]] = ()
    """Which methods answer it. A dialect has those of them that are in its ``methods``."""
    meaning: ClassVar[type[Method]]
    """The method that sessions handle it as: itself, unless one version has another number or shape for it."""


@dataclass_transform(frozen_default=True)
def method(
    class_id: int,
    method_id: int,
    *,
    answers: Iterable[type[Method]] = (),
    content: bool = False,
    like: type[Method] | None = None,
) -> Callable[[type[_T]], type[_T]]:
    """Declare a method with its numbers.

    Args:
        answers: which methods it is a synchronous reply to; it becomes one of their :attr:`Method.replies`.
        content: a content header and a body follow.
        like: its :attr:`Method.meaning`, where that is not the method itself.
    """

    def make(cls: type[_T]) -> type[_T]:
        made = declared(prefix=struct.pack(">HH", class_id, method_id))(cls)
        made.class_id, made.method_id, made.key = class_id, method_id, class_id << 16 | method_id
        made.title = titled(made.__name__)
        made.content = content
        made.meaning = like or made
        made.replies = ()
        for asked in answers:
            asked.replies = (*asked.replies, made)
        return made

    return make


_WORD: Final = re.compile(r"[A-Z][a-z]*")


def titled(name: str) -> str:
    """``BasicGetOk`` as ``basic.get-ok``. A version at the end (``ConnectionClose08``) is no part of it."""
    first, *others = (word.lower() for word in _WORD.findall(name))
    return f"{first}.{'-'.join(others)}"


# ---------------------------------------------------------------------------------------------- connection


@method(10, 10)
class ConnectionStart(Method):
    """Server: version, properties, security mechanisms."""

    version_major: Octet
    version_minor: Octet
    server_properties: FieldTable
    mechanisms: LongStr
    locales: LongStr = b"en_US"


@method(10, 11, answers=(ConnectionStart,))
class ConnectionStartOk(Method):
    """Client: properties, the mechanism chosen and its first response."""

    client_properties: FieldTable
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr = "en_US"


@method(10, 20)
class ConnectionSecure(Method):
    """Server: a security challenge."""

    challenge: LongStr


@method(10, 21, answers=(ConnectionSecure,))
class ConnectionSecureOk(Method):
    """Client: the response to it."""

    response: LongStr


@method(10, 30)
class ConnectionTune(Method):
    """Server: the limits it proposes; 0 is no limit."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 31, answers=(ConnectionTune,))
class ConnectionTuneOk(Method):
    """Client: the limits both will keep."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 40)
class ConnectionOpen(Method):
    """Client: the virtual host."""

    virtual_host: ShortStr
    capabilities: ShortStr = ""
    insist: Bit = False


@method(10, 41, answers=(ConnectionOpen,))
class ConnectionOpenOk(Method):
    """Server: the connection is open."""

    known_hosts: ShortStr = ""


@method(10, 50, answers=(ConnectionOpen,))
class ConnectionRedirect(Method):
    """Server, 0-8: try another host."""

    host: ShortStr
    known_hosts: ShortStr = ""


@method(10, 42, answers=(ConnectionOpen,), like=ConnectionRedirect)
class ConnectionRedirect09(ConnectionRedirect):
    """connection.redirect under the number of 0-9, and of the draft of 0-10."""


@method(10, 50)
class ConnectionClose(Method):
    """Either side, 0-9-1: the connection ends."""

    reply_code: Short
    reply_text: ShortStr
    class_id_: Short = 0
    method_id_: Short = 0


@method(10, 51, answers=(ConnectionClose,))
class ConnectionCloseOk(Method):
    """The answer to it."""


@method(10, 60, like=ConnectionClose)
class ConnectionClose08(ConnectionClose):
    """connection.close under 0-8's number."""


@method(10, 61, answers=(ConnectionClose08,), like=ConnectionCloseOk)
class ConnectionCloseOk08(ConnectionCloseOk):
    """connection.close-ok under 0-8's number."""


@method(10, 60)
class ConnectionBlocked(Method):
    """Server, RabbitMQ's extension of 0-9-1: publishers must wait."""

    reason: ShortStr


@method(10, 61)
class ConnectionUnblocked(Method):
    """Server: they may go on."""


@method(10, 70)
class ConnectionUpdateSecret(Method):
    """Client, RabbitMQ's extension of 0-9-1: new credentials for the running connection."""

    new_secret: LongStr
    reason: ShortStr


@method(10, 71, answers=(ConnectionUpdateSecret,))
class ConnectionUpdateSecretOk(Method):
    """The answer to it."""


# ------------------------------------------------------------------------------------------ channel, access


@method(20, 10)
class ChannelOpen(Method):
    """Client."""

    out_of_band: ShortStr = ""


@method(20, 11, answers=(ChannelOpen,))
class ChannelOpenOk(Method):
    """Server, 0-9-1."""

    channel_id: LongStr = b""


@method(20, 11, answers=(ChannelOpen,), like=ChannelOpenOk)
class ChannelOpenOk08(Method):
    """Server, 0-8: without the argument."""


@method(20, 20)
class ChannelFlow(Method):
    """Either side: stop or go on sending content."""

    active: Bit


@method(20, 21, answers=(ChannelFlow,))
class ChannelFlowOk(Method):
    """The answer to it."""

    active: Bit


@method(20, 30)
class ChannelAlert(Method):
    """Server, 0-8: a warning."""

    reply_code: Short
    reply_text: ShortStr
    details: FieldTable


@method(20, 40)
class ChannelClose(Method):
    """Either side: the channel ends."""

    reply_code: Short
    reply_text: ShortStr
    class_id_: Short = 0
    method_id_: Short = 0


@method(20, 41, answers=(ChannelClose,))
class ChannelCloseOk(Method):
    """The answer to it."""


@method(30, 10)
class AccessRequest(Method):
    """Client, 0-8: ask for a ticket."""

    realm: ShortStr
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(30, 11, answers=(AccessRequest,))
class AccessRequestOk(Method):
    """Server, 0-8: the ticket."""

    ticket: Short


# ------------------------------------------------------------------------------------------------ exchange


@method(40, 10)
class ExchangeDeclare(Method):
    ticket: Short
    exchange: ShortStr
    type: ShortStr
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    nowait: Bit
    arguments: FieldTable


@method(40, 11, answers=(ExchangeDeclare,))
class ExchangeDeclareOk(Method):
    pass


@method(40, 20)
class ExchangeDelete(Method):
    ticket: Short
    exchange: ShortStr
    if_unused: Bit
    nowait: Bit


@method(40, 21, answers=(ExchangeDelete,))
class ExchangeDeleteOk(Method):
    pass


@method(40, 22)
class ExchangeBound(Method):
    """Client, Qpid: does the binding exist?"""

    exchange: ShortStr
    routing_key: ShortStr
    queue: ShortStr


@method(40, 23, answers=(ExchangeBound,))
class ExchangeBoundOk(Method):
    """Server, Qpid: 0, or what was missing."""

    reply_code: Short
    reply_text: ShortStr


@method(40, 30)
class ExchangeBind(Method):
    """Client, RabbitMQ's extension of 0-9-1: exchange to exchange."""

    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    nowait: Bit
    arguments: FieldTable


@method(40, 31, answers=(ExchangeBind,))
class ExchangeBindOk(Method):
    pass


@method(40, 40)
class ExchangeUnbind(Method):
    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    nowait: Bit
    arguments: FieldTable


@method(40, 51, answers=(ExchangeUnbind,))
class ExchangeUnbindOk(Method):
    pass


# --------------------------------------------------------------------------------------------------- queue


@method(50, 10)
class QueueDeclare(Method):
    ticket: Short
    queue: ShortStr
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    nowait: Bit
    arguments: FieldTable


@method(50, 11, answers=(QueueDeclare,))
class QueueDeclareOk(Method):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(50, 20)
class QueueBind(Method):
    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    nowait: Bit
    arguments: FieldTable


@method(50, 21, answers=(QueueBind,))
class QueueBindOk(Method):
    pass


@method(50, 30)
class QueuePurge(Method):
    ticket: Short
    queue: ShortStr
    nowait: Bit


@method(50, 31, answers=(QueuePurge,))
class QueuePurgeOk(Method):
    message_count: Long


@method(50, 40)
class QueueDelete(Method):
    ticket: Short
    queue: ShortStr
    if_unused: Bit
    if_empty: Bit
    nowait: Bit


@method(50, 41, answers=(QueueDelete,))
class QueueDeleteOk(Method):
    message_count: Long


@method(50, 50)
class QueueUnbind(Method):
    """Client; both products know it in 0-8 too."""

    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: FieldTable


@method(50, 51, answers=(QueueUnbind,))
class QueueUnbindOk(Method):
    pass


# --------------------------------------------------------------------------------------------------- basic


@method(60, 10)
class BasicQos(Method):
    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(60, 11, answers=(BasicQos,))
class BasicQosOk(Method):
    pass


@method(60, 20)
class BasicConsume(Method):
    """Client, with the arguments that 0-9-1 and Qpid's 0-8 have."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit
    arguments: FieldTable


@method(60, 20, like=BasicConsume)
class BasicConsume08(Method):
    """Client, as 0-8 defines it."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit


@method(60, 21, answers=(BasicConsume, BasicConsume08))
class BasicConsumeOk(Method):
    consumer_tag: ShortStr


@method(60, 30)
class BasicCancel(Method):
    """Client; from a server: the consumer's queue is gone."""

    consumer_tag: ShortStr
    nowait: Bit = False


@method(60, 31, answers=(BasicCancel,))
class BasicCancelOk(Method):
    consumer_tag: ShortStr


@method(60, 40, content=True)
class BasicPublish(Method):
    """Client; content follows."""

    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit
    immediate: Bit


@method(60, 50, content=True)
class BasicReturn(Method):
    """Server: a message that could not be routed; content follows."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 60, content=True)
class BasicDeliver(Method):
    """Server: a message for one of the channel's consumers; content follows."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 70)
class BasicGet(Method):
    ticket: Short
    queue: ShortStr
    no_ack: Bit


@method(60, 71, answers=(BasicGet,), content=True)
class BasicGetOk(Method):
    """Server: the message; content follows."""

    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@method(60, 72, answers=(BasicGet,))
class BasicGetEmpty(Method):
    cluster_id: ShortStr = ""


@method(60, 80)
class BasicAck(Method):
    """Client: a delivery is settled. Server: a publish is safe."""

    delivery_tag: LongLong
    multiple: Bit = False


@method(60, 90)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit


@method(60, 100)
class BasicRecoverAsync(Method):
    """Client: redeliver what is out. 0-8 calls it basic.recover; Qpid's 0-8 answers with 60/101."""

    requeue: Bit


@method(60, 110)
class BasicRecover(Method):
    requeue: Bit


@method(60, 111, answers=(BasicRecover,))
class BasicRecoverOk(Method):
    pass


@method(60, 101, answers=(BasicRecoverAsync,), like=BasicRecoverOk)
class BasicRecoverOk08(BasicRecoverOk):
    """Server, Qpid's 0-8."""


@method(60, 120)
class BasicNack(Method):
    """Client: reject, for more than one too. Server: a publish was refused."""

    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True


# ---------------------------------------------------------------------------------------------- confirm, tx


@method(85, 10)
class ConfirmSelect(Method):
    nowait: Bit = False


@method(85, 11, answers=(ConfirmSelect,))
class ConfirmSelectOk(Method):
    pass


@method(90, 10)
class TxSelect(Method):
    pass


@method(90, 11, answers=(TxSelect,))
class TxSelectOk(Method):
    pass


@method(90, 20)
class TxCommit(Method):
    pass


@method(90, 21, answers=(TxCommit,))
class TxCommitOk(Method):
    pass


@method(90, 30)
class TxRollback(Method):
    pass


@method(90, 31, answers=(TxRollback,))
class TxRollbackOk(Method):
    pass


SHARED: tuple[type[Method], ...] = (
    ConnectionStart, ConnectionStartOk, ConnectionSecure, ConnectionSecureOk, ConnectionTune, ConnectionTuneOk,
    ConnectionOpen, ConnectionOpenOk, ChannelOpen, ChannelFlow, ChannelFlowOk, ChannelClose, ChannelCloseOk,
    ExchangeDeclare, ExchangeDeclareOk, ExchangeDelete, ExchangeDeleteOk, ExchangeBound, ExchangeBoundOk,
    QueueDeclare, QueueDeclareOk, QueueBind, QueueBindOk, QueuePurge, QueuePurgeOk, QueueDelete, QueueDeleteOk,
    QueueUnbind, QueueUnbindOk, BasicQos, BasicQosOk, BasicConsume, BasicConsumeOk, BasicCancel, BasicCancelOk,
    BasicPublish, BasicReturn, BasicDeliver, BasicGet, BasicGetOk, BasicGetEmpty, BasicAck, BasicReject,
    BasicRecoverAsync, BasicRecover, BasicRecoverOk, BasicNack, ConfirmSelect, ConfirmSelectOk,
    TxSelect, TxSelectOk, TxCommit, TxCommitOk, TxRollback, TxRollbackOk,
)  # fmt: skip
"""What both versions speak under the same numbers, products' extensions included."""

"""The methods of the classes that our sessions serve, in the order of the wire. ``connection`` and ``access`` are the
same as in the versions before; their classes are :mod:`gateway.classic.methods`'s.

``ticket`` is 0-8's access ticket. The methods of ``connection``, ``channel``, ``session`` and ``execution`` are about
commands, and none themselves (:data:`NO_COMMANDS`); ``message.ok``, ``empty``, ``reject`` and ``offset`` are responses.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import (
    AccessRequest,
    AccessRequestOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionRedirect09,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    method,
)
from gateway.v010_draft.fields import Content, SerialSet, Uuid
from gateway.wire.types import Bit, FieldTable, Long, LongLong, LongStr, Octet, Short, ShortStr

# -------------------------------------------------------------------------------------------------------------- session


@method(20, 10)
class SessionOpen(Method):
    """Client: attach a new session to the channel. Detached-lifetime is how many seconds it may outlive that."""

    detached_lifetime: Long


@method(20, 50)
class SessionResume(Method):
    """Client: attach a session that exists already."""

    session_id: Uuid


@method(20, 11, answers=(SessionOpen, SessionResume))
class SessionAttached(Method):
    """Server: it is attached."""

    session_id: Uuid
    detached_lifetime: Long


@method(20, 20)
class SessionFlow(Method):
    """Either side: stop or go on sending messages."""

    active: Bit


@method(20, 21, answers=(SessionFlow,))
class SessionFlowOk(Method):
    """The answer to it."""

    active: Bit


@method(20, 40)
class SessionClose(Method):
    """Either side: the session is to end."""


@method(20, 41, answers=(SessionClose,))
class SessionClosed(Method):
    """The answer to it; and, unasked, what ends a session in which something went wrong."""

    reply_code: Short
    reply_text: ShortStr


@method(20, 60)
class SessionPing(Method):
    """Either side: ask for a pong."""


@method(20, 70)
class SessionPong(Method):
    """Either side, after a ping."""


@method(20, 90)
class SessionSuspend(Method):
    """Client: detach the session and keep it."""


@method(20, 100, answers=(SessionSuspend,))
class SessionDetached(Method):
    """Server: it is detached."""


@method(20, 110)
class SessionAck(Method):
    """Either side: which frames have come."""

    cumulative_seen_mark: Long
    seen_frame_set: SerialSet


@method(20, 120)
class SessionHighWaterMark(Method):
    """Either side: which frame was the last one sent."""

    last_sent_mark: Long


@method(20, 130)
class SessionSolicitAck(Method):
    """Either side: ask for an ack."""


# ------------------------------------------------------------------------------------------------------------- exchange


@method(40, 10)
class ExchangeDeclare(Method):
    """Client."""

    ticket: Short
    exchange: ShortStr
    type: ShortStr
    alternate_exchange: ShortStr
    passive: Bit
    durable: Bit
    auto_delete: Bit
    arguments: FieldTable


@method(40, 20)
class ExchangeDelete(Method):
    """Client."""

    ticket: Short
    exchange: ShortStr
    if_unused: Bit


@method(40, 30)
class ExchangeQuery(Method):
    """Client: does it exist?"""

    ticket: Short
    name_: ShortStr


@method(40, 31, answers=(ExchangeQuery,))
class ExchangeQueryOk(Method):
    """Server."""

    type: ShortStr
    durable: Bit
    not_found: Bit
    arguments: FieldTable


# ---------------------------------------------------------------------------------------------------------------- queue


@method(50, 10)
class QueueDeclare(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    alternate_exchange: ShortStr
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    nowait: Bit
    arguments: FieldTable


@method(50, 11, answers=(QueueDeclare,))
class QueueDeclareOk(Method):
    """Server."""

    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(50, 20)
class QueueBind(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: FieldTable


@method(50, 30)
class QueuePurge(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    nowait: Bit


@method(50, 31, answers=(QueuePurge,))
class QueuePurgeOk(Method):
    """Server."""

    message_count: Long


@method(50, 40)
class QueueDelete(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    if_unused: Bit
    if_empty: Bit
    nowait: Bit


@method(50, 41, answers=(QueueDelete,))
class QueueDeleteOk(Method):
    """Server."""

    message_count: Long


@method(50, 50)
class QueueUnbind(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: FieldTable


# ------------------------------------------------------------------------------------------------------------------- tx


@method(90, 10)
class TxSelect(Method):
    """Client."""


@method(90, 20)
class TxCommit(Method):
    """Client."""


@method(90, 30)
class TxRollback(Method):
    """Client."""


# -------------------------------------------------------------------------------------------------------------- message


@method(120, 10)
class MessageTransfer(Method):
    """Either side: a message. Its properties are arguments; one that is empty or 0 is absent."""

    ticket: Short
    destination: ShortStr
    redelivered: Bit
    reject_unroutable: Bit
    immediate: Bit
    ttl: LongLong
    priority: Octet
    timestamp: LongLong
    delivery_mode: Octet
    expiration: LongLong
    exchange: ShortStr
    routing_key: ShortStr
    message_id: ShortStr
    correlation_id: ShortStr
    reply_to: ShortStr
    content_type: ShortStr
    content_encoding: ShortStr
    content_length: LongLong
    type: ShortStr
    user_id: ShortStr
    app_id: ShortStr
    transaction_id: ShortStr
    security_token: LongStr
    application_headers: FieldTable
    body: Content


@method(120, 20)
class MessageConsume(Method):
    """Client: start a consumer, which is called a destination."""

    ticket: Short
    queue: ShortStr
    destination: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    filter: FieldTable


@method(120, 30)
class MessageCancel(Method):
    """Client: end a consumer."""

    destination: ShortStr


@method(120, 40)
class MessageGet(Method):
    """Client: one message, now, to that destination."""

    ticket: Short
    queue: ShortStr
    destination: ShortStr
    no_ack: Bit


@method(120, 50)
class MessageRecover(Method):
    """Client: what is out is to be delivered once more."""

    requeue: Bit


@method(120, 60)
class MessageOpen(Method):
    """Either side: a body comes in pieces, under that name."""

    reference: LongStr


@method(120, 70)
class MessageClose(Method):
    """Either side: it is whole."""

    reference: LongStr


@method(120, 80)
class MessageAppend(Method):
    """Either side: a piece of it."""

    reference: LongStr
    bytes: LongStr


@method(120, 90)
class MessageCheckpoint(Method):
    """Either side: remember what came so far, under that identifier."""

    reference: LongStr
    identifier: ShortStr


@method(120, 100)
class MessageResume(Method):
    """Either side: go on with what was remembered."""

    reference: LongStr
    identifier: ShortStr


@method(120, 110)
class MessageQos(Method):
    """Client: the prefetch."""

    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(120, 500, answers=(MessageTransfer, MessageGet))
class MessageOk(Method):
    """The answer to a transfer, which is accepted by it, or to a get."""


@method(120, 510, answers=(MessageGet,))
class MessageEmpty(Method):
    """The answer to a get: there is nothing."""


@method(120, 520, answers=(MessageTransfer,))
class MessageReject(Method):
    """The answer to a transfer: it is not accepted."""

    code: Short
    text: ShortStr


@method(120, 530, answers=(MessageResume,))
class MessageOffset(Method):
    """The answer to a resume: how much of the body is there."""

    value: LongLong


# -------------------------------------------------------------------------------------------------------------- binding


@method(130, 10)
class BindingQuery(Method):
    """Client: is there such a binding?"""

    ticket: Short
    exchange: ShortStr
    queue: ShortStr
    routing_key: ShortStr
    arguments: FieldTable


@method(130, 11, answers=(BindingQuery,))
class BindingQueryOk(Method):
    """Server: what of it is not there."""

    exchange_not_found: Bit
    queue_not_found: Bit
    queue_not_matched: Bit
    key_not_matched: Bit
    args_not_matched: Bit


# ------------------------------------------------------------------------------------------------------------ execution


@method(140, 10)
class ExecutionFlush(Method):
    """Either side: ask for a complete."""


@method(140, 20)
class ExecutionComplete(Method):
    """Either side: which commands are carried out: all up to the mark, and those of the set."""

    cumulative_execution_mark: Long
    ranged_execution_set: SerialSet


# -------------------------------------------------------------------------------------------------------------- channel


@method(21, 10)
class ChannelOpen(Method):
    """Client: the older way to open a session."""

    out_of_band: ShortStr


@method(21, 11, answers=(ChannelOpen,))
class ChannelOpenOk(Method):
    """Server."""


@method(21, 20)
class ChannelFlow(Method):
    """Either side: stop or go on sending messages."""

    active: Bit


@method(21, 21, answers=(ChannelFlow,))
class ChannelFlowOk(Method):
    """The answer to it."""

    active: Bit


@method(21, 40)
class ChannelClose(Method):
    """Either side: it ends."""

    reply_code: Short
    reply_text: ShortStr
    class_id_: Short
    method_id_: Short


@method(21, 41, answers=(ChannelClose,))
class ChannelCloseOk(Method):
    """The answer to it."""


SHARED: Final[tuple[type[Method], ...]] = (
    ConnectionStart, ConnectionStartOk, ConnectionSecure, ConnectionSecureOk, ConnectionTune,
    ConnectionTuneOk, ConnectionOpen, ConnectionOpenOk, ConnectionRedirect09, ConnectionClose,
    ConnectionCloseOk, AccessRequest, AccessRequestOk,
)  # fmt: skip
"""What is the same as in the versions before."""

OWN: Final[tuple[type[Method], ...]] = (
    SessionOpen, SessionAttached, SessionFlow, SessionFlowOk, SessionClose, SessionClosed, SessionResume,
    SessionPing, SessionPong, SessionSuspend, SessionDetached, SessionAck, SessionHighWaterMark,
    SessionSolicitAck, ExchangeDeclare, ExchangeDelete, ExchangeQuery, ExchangeQueryOk, QueueDeclare,
    QueueDeclareOk, QueueBind, QueuePurge, QueuePurgeOk, QueueDelete, QueueDeleteOk, QueueUnbind, TxSelect,
    TxCommit, TxRollback, MessageTransfer, MessageConsume, MessageCancel, MessageGet, MessageRecover,
    MessageOpen, MessageClose, MessageAppend, MessageCheckpoint, MessageResume, MessageQos, MessageOk,
    MessageEmpty, MessageReject, MessageOffset, BindingQuery, BindingQueryOk, ExecutionFlush, ExecutionComplete,
    ChannelOpen, ChannelOpenOk, ChannelFlow, ChannelFlowOk, ChannelClose, ChannelCloseOk,
)  # fmt: skip
"""What the draft has of its own, or under other numbers."""

NO_COMMANDS: Final = frozenset({10, 20, 21, 140})
"""The classes whose methods have no command id."""
RESPONSES: Final = frozenset({MessageOk.key, MessageEmpty.key, MessageReject.key, MessageOffset.key})
"""The methods that come in a response frame, which names the command they answer."""

"""The methods of the classes that our sessions do not serve: 540 answers them."""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import Bit, FieldTable, Long, LongLong, LongStr, Short, ShortStr

# ---------------------------------------------------------------------------------------------------------------- basic


@method(60, 10)
class BasicQos(Method):
    """Client."""

    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(60, 20)
class BasicConsume(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit
    arguments: FieldTable


@method(60, 21, answers=(BasicConsume,))
class BasicConsumeOk(Method):
    """Server."""

    consumer_tag: ShortStr


@method(60, 30)
class BasicCancel(Method):
    """Client."""

    consumer_tag: ShortStr
    nowait: Bit


@method(60, 31, answers=(BasicCancel,))
class BasicCancelOk(Method):
    """Server."""

    consumer_tag: ShortStr


@method(60, 40, content=True)
class BasicPublish(Method):
    """Client."""

    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    reject_unroutable: Bit
    immediate: Bit


@method(60, 60, content=True)
class BasicDeliver(Method):
    """Server."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 70)
class BasicGet(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    no_ack: Bit


@method(60, 71, answers=(BasicGet,), content=True)
class BasicGetOk(Method):
    """Server."""

    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@method(60, 72, answers=(BasicGet,))
class BasicGetEmpty(Method):
    """Server."""

    cluster_id: ShortStr


@method(60, 80)
class BasicAck(Method):
    """Client."""

    delivery_tag: LongLong
    multiple: Bit


@method(60, 90)
class BasicReject(Method):
    """Client."""

    delivery_tag: LongLong
    requeue: Bit


@method(60, 100)
class BasicRecover(Method):
    """Client."""

    requeue: Bit


# ----------------------------------------------------------------------------------------------------------------- file


@method(70, 10)
class FileQos(Method):
    """Client."""

    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(70, 11, answers=(FileQos,))
class FileQosOk(Method):
    """Server."""


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
    filter: FieldTable


@method(70, 21, answers=(FileConsume,))
class FileConsumeOk(Method):
    """Server."""

    consumer_tag: ShortStr


@method(70, 30)
class FileCancel(Method):
    """Client."""

    consumer_tag: ShortStr
    nowait: Bit


@method(70, 31, answers=(FileCancel,))
class FileCancelOk(Method):
    """Server."""

    consumer_tag: ShortStr


@method(70, 40)
class FileOpen(Method):
    """Either side."""

    identifier: ShortStr
    content_size: LongLong


@method(70, 41, answers=(FileOpen,))
class FileOpenOk(Method):
    """Either side."""

    staged_size: LongLong


@method(70, 50, answers=(FileOpenOk,), content=True)
class FileStage(Method):
    """Either side."""


@method(70, 60)
class FilePublish(Method):
    """Client."""

    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit
    immediate: Bit
    identifier: ShortStr


@method(70, 70, content=True)
class FileReturn(Method):
    """Server."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(70, 80)
class FileDeliver(Method):
    """Server."""

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
    multiple: Bit


@method(70, 100)
class FileReject(Method):
    """Client."""

    delivery_tag: LongLong
    requeue: Bit


# --------------------------------------------------------------------------------------------------------------- stream


@method(80, 10)
class StreamQos(Method):
    """Client."""

    prefetch_size: Long
    prefetch_count: Short
    consume_rate: Long
    global_: Bit


@method(80, 11, answers=(StreamQos,))
class StreamQosOk(Method):
    """Server."""


@method(80, 20)
class StreamConsume(Method):
    """Client."""

    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    exclusive: Bit
    nowait: Bit
    filter: FieldTable


@method(80, 21, answers=(StreamConsume,))
class StreamConsumeOk(Method):
    """Server."""

    consumer_tag: ShortStr


@method(80, 30)
class StreamCancel(Method):
    """Client."""

    consumer_tag: ShortStr
    nowait: Bit


@method(80, 31, answers=(StreamCancel,))
class StreamCancelOk(Method):
    """Server."""

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
    """Server."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(80, 60, content=True)
class StreamDeliver(Method):
    """Server."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    exchange: ShortStr
    queue: ShortStr


# ------------------------------------------------------------------------------------------------------ dtx-demarcation


@method(100, 10)
class DtxDemarcationSelect(Method):
    """Client."""


@method(100, 20)
class DtxDemarcationStart(Method):
    """Client."""

    ticket: Short
    xid: LongStr
    join: Bit
    resume: Bit


@method(100, 21, answers=(DtxDemarcationStart,))
class DtxDemarcationStartOk(Method):
    """Server."""

    status: Short


@method(100, 30)
class DtxDemarcationEnd(Method):
    """Client."""

    ticket: Short
    xid: LongStr
    fail: Bit
    suspend: Bit


@method(100, 31, answers=(DtxDemarcationEnd,))
class DtxDemarcationEndOk(Method):
    """Server."""

    status: Short


# ----------------------------------------------------------------------------------------------------- dtx-coordination


@method(105, 10)
class DtxCoordinationCommit(Method):
    """Client."""

    ticket: Short
    xid: LongStr
    one_phase: Bit


@method(105, 11, answers=(DtxCoordinationCommit,))
class DtxCoordinationCommitOk(Method):
    """Server."""

    status: Short


@method(105, 20)
class DtxCoordinationForget(Method):
    """Client."""

    ticket: Short
    xid: LongStr


@method(105, 30)
class DtxCoordinationGetTimeout(Method):
    """Client."""

    xid: LongStr


@method(105, 31, answers=(DtxCoordinationGetTimeout,))
class DtxCoordinationGetTimeoutOk(Method):
    """Server."""

    timeout: Long


@method(105, 40)
class DtxCoordinationPrepare(Method):
    """Client."""

    ticket: Short
    xid: LongStr


@method(105, 41, answers=(DtxCoordinationPrepare,))
class DtxCoordinationPrepareOk(Method):
    """Server."""

    status: Short


@method(105, 50)
class DtxCoordinationRecover(Method):
    """Client."""

    ticket: Short
    startscan: Bit
    endscan: Bit


@method(105, 51, answers=(DtxCoordinationRecover,))
class DtxCoordinationRecoverOk(Method):
    """Server."""

    in_doubt: FieldTable


@method(105, 60)
class DtxCoordinationRollback(Method):
    """Client."""

    ticket: Short
    xid: LongStr


@method(105, 61, answers=(DtxCoordinationRollback,))
class DtxCoordinationRollbackOk(Method):
    """Server."""

    status: Short


@method(105, 70)
class DtxCoordinationSetTimeout(Method):
    """Client."""

    ticket: Short
    xid: LongStr
    timeout: Long


# --------------------------------------------------------------------------------------------------------------- tunnel


@method(110, 10, content=True)
class TunnelRequest(Method):
    """Client."""

    meta_data: FieldTable


UNSERVED: Final[tuple[type[Method], ...]] = (
    BasicQos, BasicConsume, BasicConsumeOk, BasicCancel, BasicCancelOk, BasicPublish, BasicDeliver, BasicGet,
    BasicGetOk, BasicGetEmpty, BasicAck, BasicReject, BasicRecover, FileQos, FileQosOk, FileConsume,
    FileConsumeOk, FileCancel, FileCancelOk, FileOpen, FileOpenOk, FileStage, FilePublish, FileReturn,
    FileDeliver, FileAck, FileReject, StreamQos, StreamQosOk, StreamConsume, StreamConsumeOk, StreamCancel,
    StreamCancelOk, StreamPublish, StreamReturn, StreamDeliver, DtxDemarcationSelect, DtxDemarcationStart,
    DtxDemarcationStartOk, DtxDemarcationEnd, DtxDemarcationEndOk, DtxCoordinationCommit,
    DtxCoordinationCommitOk, DtxCoordinationForget, DtxCoordinationGetTimeout, DtxCoordinationGetTimeoutOk,
    DtxCoordinationPrepare, DtxCoordinationPrepareOk, DtxCoordinationRecover, DtxCoordinationRecoverOk,
    DtxCoordinationRollback, DtxCoordinationRollbackOk, DtxCoordinationSetTimeout, TunnelRequest,
)  # fmt: skip

for _method in UNSERVED:
    if _method.class_id in (100, 105):  # the only classes with a name of two words
        _first, _second, _rest = _method.title.replace(".", "-").split("-", 2)
        _method.title = f"{_first}-{_second}.{_rest}"

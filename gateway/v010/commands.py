"""The commands of AMQP 0-10: execution, message, tx, exchange, queue (section 10 of the specification).

A command travels on the command track and has an id that nobody writes: it is counted, from the session's
command point. Each starts with the session header, whose one bit ``sync`` asks for completion at once. The
classes below read like the specification; those of dtx, file and stream are in modules of their own.
:data:`COMMANDS` finds all of them by class and code.
"""

from __future__ import annotations

from typing import Final

from gateway.v010.domains import (
    AcceptMode,
    AcquireMode,
    Commands,
    CreditUnit,
    Destination,
    ErrorCode,
    ExchangeName,
    FlowMode,
    QueueName,
    RejectCode,
    ResumeId,
)
from gateway.v010.dtx import DtxCommit as DtxCommit
from gateway.v010.dtx import DtxEnd as DtxEnd
from gateway.v010.dtx import DtxForget as DtxForget
from gateway.v010.dtx import DtxGetTimeout as DtxGetTimeout
from gateway.v010.dtx import DtxPrepare as DtxPrepare
from gateway.v010.dtx import DtxRecover as DtxRecover
from gateway.v010.dtx import DtxRollback as DtxRollback
from gateway.v010.dtx import DtxSelect as DtxSelect
from gateway.v010.dtx import DtxSetTimeout as DtxSetTimeout
from gateway.v010.dtx import DtxStart as DtxStart
from gateway.v010.fields import EITHER, Bit, Map, SequenceNo, Str8, Str16, Struct32, Uint8, Uint32, Uint64
from gateway.v010.segments import COMMANDS as COMMANDS
from gateway.v010.segments import Command as Command
from gateway.v010.segments import command
from gateway.v010.segments import decode_command as decode_command
from gateway.v010.structs import (
    DELIVERY_PROPERTIES,
    FRAGMENT_PROPERTIES,
    MESSAGE_PROPERTIES,
    Acquired,
    ExchangeBoundResult,
    ExchangeQueryResult,
    MessageResumeResult,
    QueueQueryResult,
)
from gateway.v010.unserved import UNSERVED as UNSERVED

# ----------------------------------------------------------------------------------------------- execution


@command(0x0301, "execution.sync", to=EITHER)
class ExecutionSync(Command):
    """Completes when everything before it has."""


@command(0x0302, "execution.result", to=EITHER)
class ExecutionResult(Command):
    """The answer to a command that has one."""

    command_id: SequenceNo = 0
    value: Struct32 | None = None


@command(0x0303, "execution.exception", to=EITHER)
class ExecutionException(Command):
    """A command failed; the session ends."""

    error_code: ErrorCode = 541
    command_id: SequenceNo | None = None
    class_code: Uint8 | None = None
    command_code: Uint8 | None = None
    field_index: Uint8 | None = None
    description: Str16 | None = None
    error_info: Map | None = None


# ------------------------------------------------------------------------------------------------- message

EXPLICIT: Final = 0
NONE: Final = 1
"""accept-mode: the receiver settles each transfer, or it is settled as it is sent."""
PRE_ACQUIRED: Final = 0
NOT_ACQUIRED: Final = 1
"""acquire-mode: the message belongs to the receiver, or is only shown to it."""
UNSPECIFIED: Final = 0
UNROUTABLE: Final = 1
IMMEDIATE: Final = 2
"""The codes of message.reject."""
CREDIT: Final = 0
WINDOW: Final = 1
"""flow-mode: credit is used up, or comes back by completion."""
MESSAGES: Final = 0
OCTETS: Final = 1
"""The units of credit."""
UNLIMITED: Final = 0xFFFFFFFF
"""As much credit as one wants."""

TRANSFER: Final = 0x0401
"""The code of message.transfer."""


@command(
    TRANSFER,
    "message.transfer",
    to=EITHER,
    header=(DELIVERY_PROPERTIES, FRAGMENT_PROPERTIES, MESSAGE_PROPERTIES),
)
class MessageTransfer(Command):
    """A message, either way."""

    destination: Destination = ""
    accept_mode: AcceptMode = EXPLICIT
    acquire_mode: AcquireMode = PRE_ACQUIRED


@command(0x0402, "message.accept", to=EITHER)
class MessageAccept(Command):
    """The receiver has taken over."""

    transfers: Commands = ()


@command(0x0403, "message.reject", to=EITHER)
class MessageReject(Command):
    """The receiver will never take them."""

    transfers: Commands = ()
    code_: RejectCode = UNSPECIFIED
    text: Str8 | None = None


@command(0x0404, "message.release", to=EITHER)
class MessageRelease(Command):
    """Back to the queue."""

    transfers: Commands = ()
    set_redelivered: Bit = False


@command(0x0405, "message.acquire", result=Acquired)
class MessageAcquire(Command):
    """Take what was only shown. Its result is ``Acquired``."""

    transfers: Commands = ()


@command(0x0406, "message.resume", to=EITHER, result=MessageResumeResult)
class MessageResume(Command):
    """Go on with an interrupted message."""

    destination: Destination = ""
    resume_id: ResumeId = ""


@command(0x0407, "message.subscribe")
class MessageSubscribe(Command):
    """A subscription, without credit at first."""

    queue: QueueName = ""
    destination: Destination = ""
    accept_mode: AcceptMode = EXPLICIT
    acquire_mode: AcquireMode = PRE_ACQUIRED
    exclusive: Bit = False
    resume_id: ResumeId | None = None
    resume_ttl: Uint64 | None = None
    arguments: Map | None = None


@command(0x0408, "message.cancel")
class MessageCancel(Command):
    """The end of a subscription."""

    destination: Destination = ""


@command(0x0409, "message.set-flow-mode", to=EITHER)
class MessageSetFlowMode(Command):
    """Credit or window."""

    destination: Destination = ""
    flow_mode: FlowMode = CREDIT


@command(0x040A, "message.flow", to=EITHER)
class MessageFlow(Command):
    """More credit."""

    destination: Destination = ""
    unit: CreditUnit = MESSAGES
    value: Uint32 = 0


@command(0x040B, "message.flush")
class MessageFlush(Command):
    """Send what is there, then the credit is gone."""

    destination: Destination = ""


@command(0x040C, "message.stop", to=EITHER)
class MessageStop(Command):
    """The credit is gone at once."""

    destination: Destination = ""


# ------------------------------------------------------------------------------------------------------ tx


@command(0x0501, "tx.select")
class TxSelect(Command):
    """The session is transacted from here."""


@command(0x0502, "tx.commit")
class TxCommit(Command):
    """Commit and begin the next."""


@command(0x0503, "tx.rollback")
class TxRollback(Command):
    """Roll back and begin the next."""


# ------------------------------------------------------------------------------------------------ exchange


@command(0x0701, "exchange.declare")
class ExchangeDeclare(Command):
    """Create it or verify it."""

    exchange: ExchangeName = ""
    type: Str8 | None = None
    alternate_exchange: ExchangeName | None = None
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    arguments: Map | None = None


@command(0x0702, "exchange.delete")
class ExchangeDelete(Command):
    """Delete it."""

    exchange: ExchangeName = ""
    if_unused: Bit = False


@command(0x0703, "exchange.query", result=ExchangeQueryResult)
class ExchangeQuery(Command):
    """Its result is ``ExchangeQueryResult``."""

    name: Str8 | None = None


@command(0x0704, "exchange.bind")
class ExchangeBind(Command):
    """Bind a queue to it."""

    queue: QueueName = ""
    exchange: ExchangeName = ""
    binding_key: Str8 = ""
    arguments: Map | None = None


@command(0x0705, "exchange.unbind")
class ExchangeUnbind(Command):
    """Unbind a queue from it."""

    queue: QueueName = ""
    exchange: ExchangeName = ""
    binding_key: Str8 = ""


@command(0x0706, "exchange.bound", result=ExchangeBoundResult)
class ExchangeBound(Command):
    """Its result is ``ExchangeBoundResult``."""

    exchange: Str8 | None = None
    queue: Str8 | None = None
    binding_key: Str8 | None = None
    arguments: Map | None = None


# --------------------------------------------------------------------------------------------------- queue


@command(0x0801, "queue.declare")
class QueueDeclare(Command):
    """Create it or verify it."""

    queue: QueueName = ""
    alternate_exchange: ExchangeName | None = None
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    arguments: Map | None = None


@command(0x0802, "queue.delete")
class QueueDelete(Command):
    """Delete it."""

    queue: QueueName = ""
    if_unused: Bit = False
    if_empty: Bit = False


@command(0x0803, "queue.purge")
class QueuePurge(Command):
    """Delete what is in it."""

    queue: QueueName = ""


@command(0x0804, "queue.query", result=QueueQueryResult)
class QueueQuery(Command):
    """Its result is ``QueueQueryResult``."""

    queue: QueueName = ""

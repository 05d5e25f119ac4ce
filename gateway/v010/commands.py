"""The commands of AMQP 0-10: execution, message, tx, exchange, queue (section 10 of the specification).

A command travels on the command track and has an id that nobody writes: it is counted, from the session's
command point. Each starts with the session header, whose one bit ``sync`` asks for completion at once. The
classes below read like the specification; :data:`COMMANDS` finds them by class and code, and a class that is
not in it is answered with ``not-implemented``. ``message.transfer`` alone is followed by a header and a body
segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, TypeVar, dataclass_transform

from gateway.errors import FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.v010.fields import (
    Bit,
    Fields,
    Map,
    SequenceNo,
    SequenceSet,
    Str8,
    Str16,
    Struct32,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    declare,
)


class Command(Fields):
    """Anything on the command track."""

    __slots__ = ()
    code: ClassVar[int] = 0
    """Class in the high octet, command in the low one."""

    def encode(self, sync: bool = False) -> bytes:
        """The whole command segment. Raises :class:`~gateway.errors.EncodeError`."""
        return b"%b\x01%c%b" % (self.code.to_bytes(2, "big"), sync, self.encode_fields())


COMMANDS: Final[dict[int, type[Command]]] = {}
"""(class << 8 | command) -> declared class."""

_C = TypeVar("_C", bound=Command)


@dataclass_transform(frozen_default=True)
def command(code: int, name: str) -> Callable[[type[_C]], type[_C]]:
    """Declare a command: its class and code in one number, and its name in the specification."""

    def make(cls: type[_C]) -> type[_C]:
        made = declare(cls, name)
        made.code = code
        COMMANDS[code] = made
        return made

    return make


def decode_command(segment: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[Command | None, bool]:
    """The command in a segment, None where its code is unknown, and its sync bit. Raises
    :class:`~gateway.errors.FrameSyntaxError`."""
    if len(segment) < 3 or len(segment) < (at := 3 + segment[2]):
        raise FrameSyntaxError(f"no command begins with {segment[:4].hex() or 'nothing'}")
    sync = segment[2] > 0 and segment[3] & 1 != 0
    kind = COMMANDS.get(segment[0] << 8 | segment[1])
    if kind is None:
        return None, sync
    return kind.decode_fields(segment, at, len(segment), limits), sync


# ----------------------------------------------------------------------------------------------- execution


@command(0x0301, "execution.sync")
class ExecutionSync(Command):
    """Completes when everything before it has."""


@command(0x0302, "execution.result")
class ExecutionResult(Command):
    """The answer to a command that has one."""

    command_id: SequenceNo = 0
    value: Struct32 | None = None


@command(0x0303, "execution.exception")
class ExecutionException(Command):
    """A command failed; the session ends."""

    error_code: Uint16 = 541
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


@command(TRANSFER, "message.transfer")
class MessageTransfer(Command):
    """A message, either way."""

    destination: Str8 = ""
    accept_mode: Uint8 = EXPLICIT
    acquire_mode: Uint8 = PRE_ACQUIRED


@command(0x0402, "message.accept")
class MessageAccept(Command):
    """The receiver has taken over."""

    transfers: SequenceSet = ()


@command(0x0403, "message.reject")
class MessageReject(Command):
    """The receiver will never take them."""

    transfers: SequenceSet = ()
    reject_code: Uint16 = UNSPECIFIED
    text: Str8 | None = None


@command(0x0404, "message.release")
class MessageRelease(Command):
    """Back to the queue."""

    transfers: SequenceSet = ()
    set_redelivered: Bit = False


@command(0x0405, "message.acquire")
class MessageAcquire(Command):
    """Take what was only shown. Its result is ``Acquired``."""

    transfers: SequenceSet = ()


@command(0x0406, "message.resume")
class MessageResume(Command):
    """Go on with an interrupted message."""

    destination: Str8 = ""
    resume_id: Str16 = ""


@command(0x0407, "message.subscribe")
class MessageSubscribe(Command):
    """A subscription, without credit at first."""

    queue: Str8 = ""
    destination: Str8 = ""
    accept_mode: Uint8 = EXPLICIT
    acquire_mode: Uint8 = PRE_ACQUIRED
    exclusive: Bit = False
    resume_id: Str16 | None = None
    resume_ttl: Uint64 | None = None
    arguments: Map | None = None


@command(0x0408, "message.cancel")
class MessageCancel(Command):
    """The end of a subscription."""

    destination: Str8 = ""


@command(0x0409, "message.set-flow-mode")
class MessageSetFlowMode(Command):
    """Credit or window."""

    destination: Str8 = ""
    flow_mode: Uint8 = CREDIT


@command(0x040A, "message.flow")
class MessageFlow(Command):
    """More credit."""

    destination: Str8 = ""
    unit: Uint8 = MESSAGES
    value: Uint32 = 0


@command(0x040B, "message.flush")
class MessageFlush(Command):
    """Send what is there, then the credit is gone."""

    destination: Str8 = ""


@command(0x040C, "message.stop")
class MessageStop(Command):
    """The credit is gone at once."""

    destination: Str8 = ""


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

    exchange: Str8 = ""
    type: Str8 | None = None
    alternate_exchange: Str8 | None = None
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    arguments: Map | None = None


@command(0x0702, "exchange.delete")
class ExchangeDelete(Command):
    """Delete it."""

    exchange: Str8 = ""
    if_unused: Bit = False


@command(0x0703, "exchange.query")
class ExchangeQuery(Command):
    """Its result is ``ExchangeQueryResult``."""

    exchange: Str8 | None = None


@command(0x0704, "exchange.bind")
class ExchangeBind(Command):
    """Bind a queue to it."""

    queue: Str8 = ""
    exchange: Str8 = ""
    binding_key: Str8 = ""
    arguments: Map | None = None


@command(0x0705, "exchange.unbind")
class ExchangeUnbind(Command):
    """Unbind a queue from it."""

    queue: Str8 = ""
    exchange: Str8 = ""
    binding_key: Str8 = ""


@command(0x0706, "exchange.bound")
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

    queue: Str8 = ""
    alternate_exchange: Str8 | None = None
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    arguments: Map | None = None


@command(0x0802, "queue.delete")
class QueueDelete(Command):
    """Delete it."""

    queue: Str8 = ""
    if_unused: Bit = False
    if_empty: Bit = False


@command(0x0803, "queue.purge")
class QueuePurge(Command):
    """Delete what is in it."""

    queue: Str8 = ""


@command(0x0804, "queue.query")
class QueueQuery(Command):
    """Its result is ``QueueQueryResult``."""

    queue: Str8 = ""

"""The coded structs of AMQP 0-10 that the session reads and writes field by field.

Results of commands come as struct32: code, presence bits, fields. The properties of a message are three structs,
one after the other, in the header segment; ``translate.py`` handles the two that matter on the hot path by hand,
and these classes say what they look like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias, TypeVar, dataclass_transform

from gateway.errors import FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.v010.domains import Commands, DeliveryMode, DeliveryPriority, ExchangeName, QueueName, ResumeId
from gateway.v010.fields import (
    Bit,
    ByteRanges,
    Datetime,
    Fields,
    FieldType,
    Map,
    SequenceNo,
    Str8,
    Uint32,
    Uint64,
    Uuid,
    Vbin16,
    declare,
)

_T = TypeVar("_T", bound="Struct")
_F = TypeVar("_F", bound=Fields)


class Struct(Fields):
    """A struct with a code, on the wire with a size in front of it."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Code, presence bits and fields: what a struct32 holds behind its size. Raises
        :class:`~gateway.errors.EncodeError`."""
        return self.code.to_bytes(2, "big") + self.encode_fields()

    @classmethod
    def decode(cls: type[_T], octets: bytes | None, limits: Limits = DEFAULT_LIMITS) -> _T:
        """The struct in a struct32; an empty or missing one has no fields. Raises
        :class:`~gateway.errors.FrameSyntaxError`."""
        if not octets:
            return cls()
        if len(octets) < 4 or octets[0] << 8 | octets[1] != cls.code:
            raise FrameSyntaxError(f"a struct that begins with {octets[:4].hex()} where {cls.spelled} belongs")
        return cls.decode_fields(octets, 2, len(octets), limits)


STRUCTS: Final[dict[int, type[Struct]]] = {}
"""(class << 8 | struct) -> declared class."""
UNCODED: Final[dict[str, type[Fields]]] = {}
"""``class.name`` -> declared class, for the structs without a code."""


@dataclass_transform(frozen_default=True)
def coded(code: int, name: str) -> Callable[[type[_T]], type[_T]]:
    """Declare a coded struct."""

    def make(cls: type[_T]) -> type[_T]:
        made = declare(cls, name, code, size=4)
        STRUCTS[code] = made
        return made

    return make


@dataclass_transform(frozen_default=True)
def uncoded(name: str, size: int, pack: int = 2) -> Callable[[type[_F]], type[_F]]:
    """Declare a struct without a code, with a length of ``size`` octets in front of it and ``pack`` octets of presence
    bits."""

    def make(cls: type[_F]) -> type[_F]:
        UNCODED[name] = made = declare(cls, name, size=size, pack=pack)
        return made

    return make


def struct_type(kind: type[_F]) -> FieldType:
    """A field that is a struct with its length."""
    return FieldType(kind.spelled.partition(".")[2], kind.decode_sized, lambda value: value.encode_sized())


# -------------------------------------------------------------------------------------------------- session


@uncoded("session.header", size=1, pack=1)
class SessionHeader(Fields):
    """What stands between the code of a command and its fields."""

    sync: Bit = False
    """Completion is asked for at once."""


@uncoded("session.command-fragment", size=0, pack=0)
class CommandFragment(Fields):
    """Parts of a command: an element of session.expected and session.confirmed."""

    command_id: SequenceNo = 0
    byte_ranges: ByteRanges = ()


# -------------------------------------------------------------------------------------------------- results


@coded(0x0404, "message.acquired")
class Acquired(Struct):
    """The result of message.acquire."""

    transfers: Commands = ()


@coded(0x0405, "message.message-resume-result")
class MessageResumeResult(Struct):
    """The result of message.resume."""

    offset: Uint64 | None = None


@coded(0x0701, "exchange.exchange-query-result")
class ExchangeQueryResult(Struct):
    """The result of exchange.query."""

    type: Str8 | None = None
    durable: Bit = False
    not_found: Bit = False
    arguments: Map | None = None


@coded(0x0702, "exchange.exchange-bound-result")
class ExchangeBoundResult(Struct):
    """The result of exchange.bound: nothing set is a match."""

    exchange_not_found: Bit = False
    queue_not_found: Bit = False
    queue_not_matched: Bit = False
    key_not_matched: Bit = False
    args_not_matched: Bit = False


@coded(0x0801, "queue.queue-query-result")
class QueueQueryResult(Struct):
    """The result of queue.query. Without a name the queue does not exist."""

    queue: QueueName | None = None
    alternate_exchange: ExchangeName | None = None
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    arguments: Map | None = None
    message_count: Uint32 | None = None
    subscriber_count: Uint32 | None = None


# --------------------------------------------------------------------------------------- message properties

DELIVERY_PROPERTIES: Final = 0x0401
FRAGMENT_PROPERTIES: Final = 0x0402
MESSAGE_PROPERTIES: Final = 0x0403
"""The codes of the three structs of a header segment."""


@coded(DELIVERY_PROPERTIES, "message.delivery-properties")
class DeliveryProperties(Struct):
    """What is true of this transfer of the message."""

    discard_unroutable: Bit = False
    immediate: Bit = False
    redelivered: Bit = False
    priority: DeliveryPriority | None = None
    delivery_mode: DeliveryMode | None = None
    ttl: Uint64 | None = None
    """Milliseconds."""
    timestamp: Datetime | None = None
    expiration: Datetime | None = None
    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None
    resume_id: ResumeId | None = None
    resume_ttl: Uint64 | None = None


@coded(FRAGMENT_PROPERTIES, "message.fragment-properties")
class FragmentProperties(Struct):
    """Which part of a message this is."""

    first: Bit = False
    last: Bit = False
    fragment_size: Uint64 | None = None


@uncoded("message.reply-to", size=2)
class ReplyToStruct(Fields):
    """Where a reply goes; on the wire with a size of two octets and without a code."""

    exchange: ExchangeName | None = None
    routing_key: Str8 | None = None


ReplyToField: TypeAlias = Annotated[ReplyToStruct, struct_type(ReplyToStruct)]


@coded(MESSAGE_PROPERTIES, "message.message-properties")
class MessageProperties(Struct):
    """What the publisher says of the message."""

    content_length: Uint64 | None = None
    message_id: Uuid | None = None
    correlation_id: Vbin16 | None = None
    reply_to: ReplyToField | None = None
    content_type: Str8 | None = None
    content_encoding: Str8 | None = None
    user_id: Vbin16 | None = None
    app_id: Vbin16 | None = None
    application_headers: Map | None = None

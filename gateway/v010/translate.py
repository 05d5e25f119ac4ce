"""Message <-> the header segment of AMQP 0-10: delivery-properties and message-properties.

The octets of a header segment are kept as they came (:class:`~gateway.amqp.message.RawProperties`) and decoded when
someone asks. Sent on to a peer of 0-10 they pass unchanged but for the delivery-properties, which belong to the
transfer: priority, delivery-mode, ttl and timestamp are copied out of them, the rest is written again. What 0-10 has no
place for travels as :func:`home` and :mod:`gateway.fidelity` say; ``ttl`` and ``expiration`` are the same thing, a
``message-id`` is a UUID there, ``type`` is a header, and the ``timestamp`` is the broker's: shown
(:class:`~gateway.amqp.message.ArrivalTime`) where the publisher gave none and no gateway has carried the message, which
would know.

Both structs are taken apart by hand: this is work per message. ``structs.py`` has them as declared classes, and
the tests hold one against the other.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import sha1
from typing import Any, Final

from gateway.amqp.message import ArrivalTime, Message, Properties, RawProperties, ReplyTo, UuidMessageId
from gateway.amqp.values import INT64_MAX, Timestamp, Value
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import (
    GZIP,
    ITEM,
    KEY,
    NO_HOME,
    RESERVED,
    Home,
    address_of,
    arrival_in_native,
    fit,
    is_of_jms,
    restore,
    uuid_of,
    x_gzip,
)
from gateway.v010.codec import READ_ERRORS, read_map
from gateway.v010.encoders import carries, write_map
from gateway.v010.spans import STRUCT, each_struct, spans
from gateway.v010.splice import SEAM
from gateway.v010.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES

DIALECT: Final = "0-10"
"""The name of this encoding in :class:`~gateway.amqp.message.RawProperties`."""
DIALECT_OF_BROKER_J: Final = "0-10 Broker-J"
"""The same from a broker that has made every header value one of :data:`BROKER_J_KEEPS`."""
DIALECTS: Final = frozenset({DIALECT, DIALECT_OF_BROKER_J})
BROKER_J_KEEPS: Final = frozenset(
    {
        "void", "bool", "int8", "int16", "int32", "int64", "float", "double",
        "char", "uuid", "string", "bytes", "table", "array",
    }
)  # fmt: skip
"""Broker-J reads headers into Java objects and writes them again: a value of any other type leaves it as one of
these (a timestamp as int64, an uint8 as int16, a decimal as octets). They travel reshaped."""

DISCARD_UNROUTABLE: Final = 0x0100
IMMEDIATE: Final = 0x0200
REDELIVERED: Final = 0x0400
_PRIORITY, _DELIVERY_MODE, _TTL, _TIMESTAMP, _EXPIRATION = 0x0800, 0x1000, 0x2000, 0x4000, 0x8000
_EXCHANGE, _ROUTING_KEY, _RESUME_ID, _RESUME_TTL = 0x0001, 0x0002, 0x0004, 0x0008
RESUME: Final = _RESUME_ID | _RESUME_TTL
_KEPT = _PRIORITY | _DELIVERY_MODE | _TTL | _TIMESTAMP
"""Presence bits of the delivery-properties; kept are those that belong to the message, which come first."""

_CONTENT_LENGTH, _MESSAGE_ID, _CORRELATION_ID, _REPLY_TO = 0x0100, 0x0200, 0x0400, 0x0800
_CONTENT_TYPE, _CONTENT_ENCODING, _USER_ID, _APP_ID = 0x1000, 0x2000, 0x4000, 0x8000
_HEADERS = 0x0001
"""Presence bits of the message-properties."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_MESSAGE_CODE: Final = MESSAGE_PROPERTIES.to_bytes(2, "big")
_SKIP: Final = tuple(sum(width for bit, width in enumerate((1, 1, 8, 8, 8)) if bits >> bit & 1) for bits in range(32))
"""Octets of priority, delivery-mode, ttl, timestamp and expiration by their five presence bits."""
_UINT64_MAX = (1 << 64) - 1
_NAMESPACE: Final = bytes.fromhex("8a6d5a0e5f0c5d0b9b1e2f3f6f4c8d11")
"""Of the UUIDs that stand for message ids that are no UUIDs (version 5, RFC 9562 section 5.5)."""
_TYPE_HEADER: Final = "x-jms-type"
"""Where Qpid's JMS client keeps what the other versions call ``type``."""
_SIMPLE = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
"""Header values that always fit, if they are not too long."""
_PLAIN: Final[frozenset[type]] = frozenset({str, bool, float, bytes, type(None)})
"""Of these even Broker-J keeps every value."""
_TEXT_MAX = 0xFFFF // 4
_EMPTY_ARRAY: Final = b"\xa9\x00\x00\x00\x04\x00\x00\x00\x00"
"""A list without items (its size and count, section 2), which Broker-J keeps in memory and cannot store."""
_OWN: Final = frozenset({DELIVERY_PROPERTIES, MESSAGE_PROPERTIES})
"""The structs that are written again, or passed on separately."""


# ------------------------------------------------------------------------------------------------ what fits


def _uuid_text(text: str) -> UuidMessageId:
    """``text`` where it is a UUID in canonical form, alone or as JMS writes it, else the UUID that stands for it."""
    if type(text) is UuidMessageId:
        return text
    if _uuid_octets(text):
        return UuidMessageId(text)
    if uuid := uuid_of(text):
        return UuidMessageId(uuid)
    name = text.encode("utf-8", "surrogateescape").hex().encode()
    octets = bytearray(sha1(_NAMESPACE + name, usedforsecurity=False).digest()[:16])
    octets[6] = octets[6] & 0x0F | 0x50
    octets[8] = octets[8] & 0x3F | 0x80
    return UuidMessageId(_uuid_name(octets))


def _uuid_octets(text: str) -> bytes | None:
    """The 16 octets of a UUID in canonical form (lower case, four hyphens)."""
    if len(text) != 36:
        return None
    try:
        octets = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return octets if len(octets) == 16 and _uuid_name(octets) == text else None


def _uuid_name(octets: bytes | bytearray) -> str:
    digits = octets.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _ttl(text: str) -> str | object:
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _UINT64_MAX:
        return str(int(text))
    return NO_HOME


def _octet_string(value: str | bytes) -> str | bytes:
    """A text that is not UTF-8 comes back from a vbin16 as octets."""
    if isinstance(value, bytes):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")
    return value


def _utf8(text: str) -> str | object:
    """A str8 is UTF-8, and readers change what is not."""
    return text if text.isascii() or _octet_string(text) is text else NO_HOME


def _reply_to(to: str | ReplyTo) -> str | ReplyTo | object:
    if isinstance(to, str):
        address = address_of(to)
        if address is None:
            return _utf8(to)
        to = address
    if _utf8(to.exchange) is NO_HOME or _utf8(to.routing_key) is NO_HOME:
        return NO_HOME
    return to if to.exchange else to.routing_key


def _nowhere(value: Any) -> object:
    return NO_HOME


def _broker_j_carries(kind: str, value: Value) -> bool:
    if kind == "array" and value == []:  # it ends the session (541) where its virtual host is on a disk
        return False
    return (kind in BROKER_J_KEEPS or kind in (KEY, ITEM)) and carries(kind, value)


@lru_cache(maxsize=64)
def home(user: str | None, broker_j: bool = False) -> Home:
    """What 0-10 can carry for a login; None is the server, whose word on ``user-id`` stands. ``broker_j``: to a
    broker that rewrites header values."""
    return Home(
        properties={
            "delivery_mode": lambda mode: mode if mode in (1, 2) else NO_HOME,
            "priority": lambda priority: min(priority, 9),
            "correlation_id": _octet_string,
            "content_type": _utf8,
            "content_encoding": (lambda name: _utf8(x_gzip(name))) if broker_j else _utf8,
            "reply_to": _reply_to,
            "expiration": _ttl,
            "message_id": _uuid_text,
            "timestamp": lambda time: time if type(time) is ArrivalTime else NO_HOME,
            "user_id": lambda name: name if user is None or name == user else NO_HOME,
            "app_id": _octet_string,
            "cluster_id": _nowhere,
        },
        carries=_broker_j_carries if broker_j else carries,
        plain=_PLAIN,
        type_header=_TYPE_HEADER,
        timed=frozenset({"expiration"}),
    )


_READING: Final = home(None, True)
"""So it is always read this way: a broker that does not rewrite headers may have got them from one that does, and the
gateway's clients take the embedded one for Broker-J."""


# -------------------------------------------------------------------------------------------------- reading


_NAMED: dict[int, dict[bytes, tuple[str, str]]] = {_EXCHANGE | _ROUTING_KEY: {}, _ROUTING_KEY: {}}
"""Presence bits and octets of an exchange and a routing key -> the two, for those seen lately."""
_WRITTEN: dict[tuple[str | None, str], bytes] = {}
"""The other way round; without an exchange, only the key."""
_CACHED_MAX: Final = 1_024


def read_delivery(header: bytes) -> tuple[int, str, str]:
    """The presence bits of the delivery-properties, exchange and routing key; 0 and empty without them.

    Raises:
        FrameSyntaxError: the header segment is malformed.
    """
    start, stop, _, _ = spans(header)
    if start < 0:
        return 0, "", ""
    flags = header[start + 6] << 8 | header[start + 7]
    at = start + 8 + _SKIP[flags >> 11]
    named = _NAMED.get(flags & 0xFF)
    if named is None:
        return flags, *_read_names(flags, header, at, stop)
    octets = header[at:stop]
    names = named.get(octets)
    if names is None:
        if len(named) >= _CACHED_MAX:
            named.clear()
        names = named[octets] = _read_names(flags, header, at, stop)
    return flags, names[0], names[1]


def _read_names(flags: int, header: bytes, at: int, stop: int) -> tuple[str, str]:
    """Exchange and routing key, which begin at ``at``."""
    exchange = routing_key = ""
    try:
        if flags & _EXCHANGE:
            exchange, at = _str8(header, at)
        if flags & _ROUTING_KEY:
            routing_key, at = _str8(header, at)
    except IndexError:
        raise FrameSyntaxError("delivery-properties that end within a name") from None
    resumed = flags & (_RESUME_ID | _RESUME_TTL)  # what is behind the key, then, is of no use here
    if (at > stop if resumed else at != stop) or flags & 0xF0:
        raise FrameSyntaxError(f"delivery-properties with presence bits {flags:04x} that do not fill their size")
    return exchange, routing_key


def _bytes_or_text(octets: bytes) -> str | bytes:
    try:
        return str(octets, "utf-8")
    except UnicodeDecodeError:
        return octets


def _vbin16(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    return data[at + 2 : end], end


def _str8(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return str(data[at + 1 : end], "utf-8", "surrogateescape"), end


def _read_reply_to(data: bytes, at: int) -> tuple[str | ReplyTo | None, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    if end == at + 2:
        return None, end
    flags = data[at + 2] << 8 | data[at + 3]
    at += 4
    exchange = routing_key = ""
    if flags & 0x0100:
        exchange, at = _str8(data, at)
    if flags & 0x0200:
        routing_key, at = _str8(data, at)
    if at != end or flags & ~0x0300:
        raise FrameSyntaxError(f"a reply-to with presence bits {flags:04x} that does not fill its size")
    return (ReplyTo(exchange, routing_key) if exchange else routing_key), end


def decode(header: bytes, broker_j: bool = False, restored: bool = True) -> Properties:
    """All properties in a header segment.

    Args:
        broker_j: Broker-J wrote it, which keeps its own timestamp in milliseconds, and of headers
            :data:`BROKER_J_KEEPS`.
        restored: What travelled in the reserved header is put back.

    Raises:
        FrameSyntaxError: the header segment is malformed.
    """
    properties = Properties()
    try:
        start, _, begin, stop = spans(header)
        broker_time = _decode_delivery(header, start, properties) if start >= 0 else None
        if begin >= 0:
            _decode_message(header, begin, stop, properties)
    except READ_ERRORS as error:
        raise FrameSyntaxError(f"a broken header segment: {error}") from None
    headers = properties.headers
    if headers is not None:
        kind = headers.get(_TYPE_HEADER)
        if restored and isinstance(kind, str):
            properties.type = kind
    if broker_time is not None and (headers is None or RESERVED not in headers or not restored):
        properties.timestamp = ArrivalTime(broker_time // (1000 if broker_j else 1))
    if not restored:
        return properties
    properties = restore(properties, _READING)
    is_unsaid = properties.timestamp is None or type(properties.timestamp) is ArrivalTime
    if broker_j and broker_time is not None and is_unsaid and is_of_jms(properties):
        properties.timestamp = ArrivalTime.of(broker_time // 1000, broker_time)
    return properties


def decode_milliseconds(header: bytes) -> Properties:
    """:func:`decode` for Broker-J."""
    return decode(header, True)


def _decode_delivery(header: bytes, start: int, properties: Properties) -> int | None:
    """Fill in what the delivery-properties say, and return the broker's timestamp."""
    flags = header[start + 6] << 8 | header[start + 7]
    at = start + 8
    if flags & _PRIORITY:
        properties.priority = header[at]
        at += 1
    if flags & _DELIVERY_MODE:
        properties.delivery_mode = header[at]
        at += 1
    if flags & _TTL:
        properties.expiration = str(_U64.unpack_from(header, at)[0])
        at += 8
    return _U64.unpack_from(header, at)[0] if flags & _TIMESTAMP else None


def _decode_message(header: bytes, start: int, stop: int, properties: Properties) -> None:
    """Fill in what the message-properties say."""
    flags = header[start + 6] << 8 | header[start + 7]
    at = start + 8
    if flags & _CONTENT_LENGTH:
        at += 8
    if flags & _MESSAGE_ID:
        properties.message_id = UuidMessageId(_uuid_name(header[at : at + 16]))
        at += 16
    if flags & _CORRELATION_ID:
        octets, at = _vbin16(header, at)
        properties.correlation_id = _bytes_or_text(octets)
    if flags & _REPLY_TO:
        properties.reply_to, at = _read_reply_to(header, at)
    if flags & _CONTENT_TYPE:
        properties.content_type, at = _str8(header, at)
    if flags & _CONTENT_ENCODING:
        properties.content_encoding, at = _str8(header, at)
    if flags & _USER_ID:
        octets, at = _vbin16(header, at)
        properties.user_id = _bytes_or_text(octets)
    if flags & _APP_ID:
        octets, at = _vbin16(header, at)
        properties.app_id = _bytes_or_text(octets)
    if flags & _HEADERS:
        properties.headers, at = read_map(header, at)
    if at != stop or flags & 0xFE:
        raise FrameSyntaxError(f"message-properties with presence bits {flags:04x} in {stop - start - 8} octets")


# -------------------------------------------------------------------------------------------------- writing


_MISFITS: Final = (struct.error, OverflowError, TypeError, ValueError, AttributeError, FrameSyntaxError)
"""Errors of properties of the wrong kind, and of malformed ones that were received."""


def _write_str8(field: str, text: str) -> bytes:
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, AttributeError) as error:
        raise EncodeError(f"{field}: {error}") from None
    if len(octets) > 255:
        raise EncodeError(f"{field}: {len(octets)} octets are more than 255: {text!r:.80}")
    return b"%c%b" % (len(octets), octets)


def _write_vbin16(field: str, value: str | bytes) -> bytes:
    octets = value.encode() if isinstance(value, str) else value
    if len(octets) > 0xFFFF:
        raise EncodeError(f"{field}: {len(octets)} octets are more than 65535")
    return _U16.pack(len(octets)) + octets


def _fits(properties: Properties, user: str | None, broker_j: bool) -> bool:
    """Whether 0-10 carries these properties as they are; False may also mean: look closer."""
    if (
        properties.type is not None
        or (properties.timestamp is not None and type(properties.timestamp) is not ArrivalTime)
        or properties.cluster_id is not None
        or (properties.priority is not None and properties.priority > 9)
        or properties.delivery_mode not in (None, 1, 2)
        or (properties.user_id is not None and user is not None and properties.user_id != user)
        or ((to := properties.reply_to) is not None and (type(to) is not str or not to.isascii() or "://" in to))
        or ((kind := properties.content_type) is not None and not kind.isascii())
        or ((coding := properties.content_encoding) is not None and (coding == GZIP or not coding.isascii()))
        or (properties.message_id is not None and type(properties.message_id) is not UuidMessageId)
        or ((ttl := properties.expiration) is not None and (type(ttl) is not str or _ttl(ttl) != ttl))
        or ((app_id := properties.app_id) is not None and (type(app_id) is not str or not app_id.isascii()))
        or ((cid := properties.correlation_id) is not None and (type(cid) is not str or not cid.isascii()))
    ):
        return False
    if properties.headers:
        if _TYPE_HEADER in properties.headers:
            return False
        for key, value in properties.headers.items():
            type_ = type(value)
            if type_ not in _SIMPLE or (type_ is str and len(value) > _TEXT_MAX) or not key.isascii():
                return False
            if broker_j and (type_ is Timestamp or (type_ is int and value > INT64_MAX)):
                return False
    return True


def _write_reply_to(to: str | ReplyTo) -> bytes:
    if isinstance(to, str):
        octets = b"\x02\x00" + _write_str8("reply_to", to)
    else:
        octets = b"\x03\x00" + _write_str8("reply_to", to.exchange) + _write_str8("reply_to", to.routing_key)
    return _U16.pack(len(octets)) + octets


def _pack(properties: Properties, time: int | None, length: int) -> tuple[int, bytes, bytes]:
    """Presence bits and octets of what the delivery-properties keep, ``time`` among it, and the message-properties."""
    kept_flags = 0
    kept = b""
    if (priority := properties.priority) is not None:
        kept_flags = _PRIORITY
        kept = bytes((priority,))
    if (mode := properties.delivery_mode) is not None:
        kept_flags |= _DELIVERY_MODE
        kept += bytes((mode,))
    if (ttl := properties.expiration) is not None:
        kept_flags |= _TTL
        kept += _U64.pack(int(ttl))
    if time is not None:
        kept_flags |= _TIMESTAMP
        kept += _U64.pack(time)
    flags = _CONTENT_LENGTH
    parts = [b"", _U64.pack(length)]
    if (message_id := properties.message_id) is not None:
        flags |= _MESSAGE_ID
        parts.append(bytes.fromhex(message_id.replace("-", "")))
    if (correlation_id := properties.correlation_id) is not None:
        flags |= _CORRELATION_ID
        parts.append(_write_vbin16("correlation_id", correlation_id))
    if (reply_to := properties.reply_to) is not None:
        flags |= _REPLY_TO
        parts.append(_write_reply_to(reply_to))
    if (content_type := properties.content_type) is not None:
        flags |= _CONTENT_TYPE
        parts.append(_write_str8("content_type", content_type))
    if (content_encoding := properties.content_encoding) is not None:
        flags |= _CONTENT_ENCODING
        parts.append(_write_str8("content_encoding", content_encoding))
    if (user_id := properties.user_id) is not None:
        flags |= _USER_ID
        parts.append(_write_vbin16("user_id", _octet_string(user_id)))
    if (app_id := properties.app_id) is not None:
        flags |= _APP_ID
        parts.append(_write_vbin16("app_id", app_id))
    if (headers := properties.headers) is not None:
        flags |= _HEADERS
        parts.append(write_map(headers))
    parts[0] = STRUCT.pack(4 + sum(map(len, parts)), MESSAGE_PROPERTIES, flags)
    return kept_flags, kept, b"".join(parts)


def _may_pass(message: Message, octets: bytes, at: int, user: str | None) -> bool:
    """Whether raw message-properties are still true: of this body, and of this login."""
    flags = octets[at + 6] << 8
    if flags & _CONTENT_LENGTH and octets[at + 8 : at + 16] != _U64.pack(len(message.body)):
        return False
    return user is None or not flags & _USER_ID or message.properties.user_id == user


def _parts(message: Message, user: str | None, broker_j: bool) -> tuple[int, bytes, bytes]:
    """As :func:`_pack`, out of the raw octets where they may be passed on."""
    raw = message.raw
    if raw is not None and (same := passes(raw, broker_j)) is not None:
        octets = raw.octets
        start, stop, first, end = spans(octets)
        if first < 0 or _may_pass(message, octets, first, user):
            rest = octets[first:end] if first >= 0 else b""
            if start or stop != first or end != len(octets):
                rest += _others(octets)
            if start < 0:
                return 0, b"", rest
            flags = (octets[start + 6] << 8) & (_KEPT if same else _KEPT ^ _TIMESTAMP)
            return flags, octets[start + 8 : start + 8 + _SKIP[flags >> 11]], rest
    properties = message.properties
    time = properties.timestamp  # the publisher's, too: it is kept besides, and clients look for it here
    if time is not None:
        time = arrival_in_native(time, 1000 if broker_j else 1)
    if not _fits(properties, user, broker_j):
        properties = fit(properties, home(user, broker_j), message.left_out is None)
    flags, kept, rest = _pack(properties, time, len(message.body))
    origin = message.origin
    if origin is not None and origin.dialect in DIALECTS:
        rest += _others(origin.octets)
    return flags, kept, rest


def _others(octets: bytes) -> bytes:
    """The structs of a header segment that are neither delivery-properties nor message-properties; they go along."""
    return b"".join([octets[at:after] for kind, at, after in each_struct(octets) if kind not in _OWN])


def passes(raw: RawProperties, broker_j: bool) -> bool | None:
    """Whether undecoded message-properties may be sent as the octets they are: True if the broker's timestamp, too,
    means the same there, None if they may not."""
    if raw.dialect == (DIALECT_OF_BROKER_J if broker_j else DIALECT):
        return None if broker_j and _EMPTY_ARRAY in raw.octets else True
    return False if not broker_j and raw.dialect == DIALECT_OF_BROKER_J else None


def untouched(message: Message, user: str | None, broker_j: bool) -> bool:
    """Whether the message-properties of a message are sent as the octets they are."""
    raw = message.raw
    if raw is None or passes(raw, broker_j) is None:
        return False
    first = spans(raw.octets)[2]
    return first < 0 or _may_pass(message, raw.octets, first, user)


def _write_names(exchange: str | None, routing_key: str) -> bytes:
    names = _write_str8("routing_key", routing_key)
    if exchange is not None:
        names = _write_str8("exchange", exchange) + names
    if len(_WRITTEN) >= _CACHED_MAX:
        _WRITTEN.clear()
    _WRITTEN[exchange, routing_key] = names
    return names


def write_header(
    message: Message, routing_key: str, flags: int, exchange: str | None, user: str | None, broker_j: bool = False
) -> bytes:
    """The header segment of a transfer.

    ``flags`` are presence bits of the delivery-properties without a field (``IMMEDIATE``, ``REDELIVERED``, …);
    ``exchange`` is named on deliveries, and to a broker that does not name it; ``user`` is the login that
    publishes, None in the server role; ``broker_j``: the broker rewrites header values.

    Raises:
        EncodeError: a property or header does not fit. The text names it.
    """
    try:
        kept_flags, kept, rest = _parts(message, user, broker_j)
    except _MISFITS as error:
        raise EncodeError(f"the properties do not fit: {error}") from None
    if message.expires_at is not None and kept_flags & _TTL:
        kept_flags |= _EXPIRATION
        kept += _U64.pack(message.expires_at)
    names = _WRITTEN.get((exchange, routing_key)) or _write_names(exchange, routing_key)
    flags |= kept_flags | (_ROUTING_KEY if exchange is None else _EXCHANGE | _ROUTING_KEY)
    return b"%b%b%b%b" % (STRUCT.pack(4 + len(kept) + len(names), DELIVERY_PROPERTIES, flags), kept, names, rest)


def read_message(header: bytes, body: bytes, broker_j: bool = False) -> Message:
    """A message that was received; its properties wait until they are asked for."""
    if broker_j:
        return Message(body, None, RawProperties(header, DIALECT_OF_BROKER_J, decode_milliseconds, SEAM))
    return Message(body, None, RawProperties(header, DIALECT, decode, SEAM))

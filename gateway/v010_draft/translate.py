"""Message <-> the arguments of message.transfer.

The properties of a message are arguments of the method that transfers it, between some that belong to the transfer
alone. They stay octets until someone asks for them (:class:`~gateway.amqp.message.RawProperties`):
:func:`read_transfer` takes the arguments apart by hand and leaves out those of the transfer; ``methods.py`` has the
method as a declared class, and the tests hold one against the other. Sent on within the dialect those octets pass
unchanged, but for a user-id that is not the login's.

There are no presence bits: what is empty or 0 is absent. What this makes ambiguous, and what the draft has no place
for, travels in the reserved header as :mod:`gateway.fidelity` says. ``ttl`` is the message's ``expiration``, the
``timestamp`` is the broker's, ``transaction-id`` and ``security-token`` belong to the draft alone and pass only within
it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final, NamedTuple

from gateway.amqp.message import ArrivalTime, Message, Properties, RawProperties, ReplyTo, with_headers
from gateway.amqp.values import UINT64_MAX
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import NO_HOME, RESERVED, Home, fit, restore
from gateway.v010_draft.fields import ReferenceTo, read_content, write_content
from gateway.v010_draft.layout import FIXED, LENGTH, headers_at, sized, skip, string
from gateway.v010_draft.methods import MessageTransfer
from gateway.v010_draft.splice import SEAM
from gateway.v010_draft.tables import Tables, carries

DIALECT: Final = "0-10 transitional"
"""The name of this encoding in :class:`~gateway.amqp.message.RawProperties`."""

REDELIVERED: Final = 0x01
REJECT_UNROUTABLE: Final = 0x02
IMMEDIATE: Final = 0x04
"""The three bits of a transfer."""

_CONTENT_LENGTH: Final = struct.Struct(">Q")
_HEAD: Final = struct.pack(">IH", MessageTransfer.key, 0)
"""Class, method and ticket."""
_READ_ERRORS: Final = (IndexError, struct.error)


class Transfer(NamedTuple):
    """A message.transfer, as far as it has to be looked into."""

    destination: str
    flags: int
    exchange: str
    routing_key: str
    properties: bytes
    """The arguments that belong to the message, as they came; without the names between them and the body."""
    body: bytes
    """Or a :class:`~gateway.v010_draft.fields.ReferenceTo` one."""


# ------------------------------------------------------------------------------------------------ what fits


def _text(value: Any) -> Any:
    """A short string that is not taken for absent."""
    if isinstance(value, bytes) or not value:
        return NO_HOME
    return NO_HOME if len(value) > 63 and len(value.encode("utf-8", "surrogateescape")) > 255 else value


def _ttl(text: str) -> Any:
    if text.isascii() and text.isdigit() and len(text) <= 20 and 0 < int(text) <= UINT64_MAX:
        return str(int(text))
    return NO_HOME


def _user(login: str | None, name: Any) -> Any:
    return _text(name) if login is None or name == login else NO_HOME


_PLAIN: Final[frozenset[type]] = frozenset({bool, float, bytes, NoneType})


@lru_cache(maxsize=64)
def home(login: str | None) -> Home:
    """What the draft can carry for a login; None is the server, whose word on ``user-id`` stands."""
    texts = ("correlation_id", "content_type", "content_encoding", "message_id", "type", "app_id")
    properties: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(texts, _text),
        "delivery_mode": lambda mode: mode if mode in (1, 2) else NO_HOME,
        "priority": lambda priority: min(priority, 9) or NO_HOME,
        "reply_to": lambda to: NO_HOME if isinstance(to, ReplyTo) else _text(to),
        "expiration": _ttl,
        "timestamp": lambda time: time if type(time) is ArrivalTime and time else NO_HOME,
        "user_id": partial(_user, login),
        "cluster_id": lambda name: NO_HOME,
    }
    return Home(properties, carries, plain=_PLAIN, timed=frozenset({"expiration"}))


_READING: Final = home(None)
_EMPTY: Final = {RESERVED: {"empty": "1"}}
"""How headers travel that are there, and none."""


# -------------------------------------------------------------------------------------------------- reading


def read_transfer(data: bytes, at: int, end: int) -> Transfer:
    """The arguments of message.transfer that fill ``data[at:end]``.

    Raises:
        FrameSyntaxError: they are malformed. What is in the application-headers is looked at later.
    """
    try:
        destination, at = string(data, at + 2)
        flags = data[at]
        fixed, at = at + 1, at + 1 + FIXED.size
        between = at
        exchange, at = string(data, at)
        routing_key, begin = string(data, at)
        at = skip(data, begin, 5) + 8
        at = sized(data, skip(data, at, 4), end)
        stop = sized(data, at, end)
        body, at = read_content(data, stop, end)
    except _READ_ERRORS as error:
        raise FrameSyntaxError(f"message.transfer cannot be decoded: {error}", 502) from None
    if at != end:
        raise FrameSyntaxError(f"message.transfer is followed by {end - at} octets that belong to nothing", 502)
    return Transfer(destination, flags, exchange, routing_key, data[fixed:between] + data[begin:stop], body)


_tables: Final = Tables()


def decode(octets: bytes, restored: bool = True) -> Properties:
    """The properties of a message.

    Args:
        octets: see :class:`Transfer`.
        restored: What travelled in the reserved header is put back.

    Raises:
        FrameSyntaxError: they are malformed.
    """
    ttl, priority, timestamp, mode, _ = FIXED.unpack_from(octets)
    texts = []
    at = FIXED.size
    for _ in range(5):
        text, at = string(octets, at)
        texts.append(text or None)
    at += 8
    for _ in range(4):
        text, at = string(octets, at)
        texts.append(text or None)
    headers, _ = _tables.read(octets, headers_at(octets), len(octets))
    message_id, correlation_id, reply_to, content_type, content_encoding, type_, user_id, app_id, _ = texts
    properties = Properties(
        content_type,
        content_encoding,
        headers or None,
        mode or None,
        priority or None,
        correlation_id,
        reply_to,
        str(ttl) if ttl else None,
        message_id,
        ArrivalTime(timestamp) if timestamp else None,
        type_,
        user_id,
        app_id,
    )
    if not restored:
        return properties
    properties = restore(properties, _READING)
    if properties.headers == _EMPTY:
        properties.headers = {}
    return properties


def of_its_own(octets: bytes) -> tuple[str, ...]:
    """Which of the properties that the draft alone has are there."""
    at = skip(octets, skip(octets, FIXED.size, 5) + 8, 3)
    token = skip(octets, at, 1)
    there = (("transaction_id", octets[at] > 0), ("security_token", any(octets[token : token + LENGTH.size])))
    return tuple(name for name, present in there if present)


def message_of(properties: bytes, body: bytes) -> Message:
    """A message of properties as octets, see :class:`Transfer`."""
    return Message(body, None, RawProperties(properties, DIALECT, decode, SEAM))


def read_message(transfer: Transfer, body: bytes) -> Message:
    """A message that was received; its properties wait until they are asked for."""
    return message_of(transfer.properties, body)


# -------------------------------------------------------------------------------------------------- writing

_MISFITS: Final = (struct.error, OverflowError, TypeError, ValueError, AttributeError, FrameSyntaxError)
"""Errors of properties of the wrong kind, and of malformed ones that were received."""


def _write_string(field: str, text: str | None) -> bytes:
    octets = (text or "").encode("utf-8", "surrogateescape")
    if len(octets) > 255:
        raise EncodeError(f"{field}: {len(octets)} octets are more than 255: {text!r:.80}")
    return b"%c%b" % (len(octets), octets)


def pack(properties: Properties, length: int) -> bytes:
    """Properties that fit, and the length of the body, as octets."""
    ttl = int(properties.expiration or 0)
    fixed = FIXED.pack(ttl, properties.priority or 0, properties.timestamp or 0, properties.delivery_mode or 0, 0)
    names = ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding")
    strings = [_write_string(name, getattr(properties, name)) for name in names]
    more = [_write_string(name, getattr(properties, name)) for name in ("type", "user_id", "app_id")]
    headers = _tables.encode(properties.headers or {})
    return b"".join((fixed, *strings, _CONTENT_LENGTH.pack(length), *more, b"\x00\x00\x00\x00\x00", headers))


def passes(message: Message, login: str | None) -> bool:
    """Whether the properties of a message are sent as the octets they are: they came off a connection of the draft, say
    how long this body is, and name no user but the login."""
    raw = message.raw
    if raw is None or raw.dialect != DIALECT:
        return False
    octets = raw.octets
    at = skip(octets, FIXED.size, 5)
    if _CONTENT_LENGTH.unpack_from(octets, at)[0] != len(message.body):
        return False
    user, _ = string(octets, skip(octets, at + 8, 1))
    return login is None or user in ("", login)


def write_properties(message: Message, login: str | None) -> bytes:
    """The properties as octets. Raises :class:`~gateway.errors.EncodeError`, which names what does not fit."""
    try:
        if passes(message, login):
            assert message.raw is not None
            return message.raw.octets
        carry = message.left_out is None
        properties = fit(message.properties, home(login), carry)
        if properties.headers == {} and carry:
            properties = with_headers(properties, _EMPTY)
        return pack(properties, len(message.body))
    except _MISFITS as error:
        raise EncodeError(f"the properties do not fit: {error}") from None


def write_transfer(destination: str, flags: int, exchange: str, routing_key: str, properties: bytes) -> bytes:
    """A message.transfer up to its body. Raises :class:`~gateway.errors.EncodeError` where a name does not fit."""
    try:
        to = _write_string("destination", destination)
        between = _write_string("exchange", exchange) + _write_string("routing_key", routing_key)
    except (UnicodeEncodeError, AttributeError) as error:
        raise EncodeError(f"message.transfer: {error}") from None
    size = FIXED.size
    return b"%b%b%c%b%b%b" % (_HEAD, to, flags, properties[:size], between, properties[size:])


def inline(body: bytes) -> bytes:
    """A body as the last argument."""
    return write_content(body)


def by_reference(name: bytes) -> bytes:
    """The name of a reference as the last argument."""
    return write_content(ReferenceTo(name))

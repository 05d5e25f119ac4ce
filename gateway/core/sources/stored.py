"""A message as the ledger keeps it for a subscription: what was taken from a broker is handed out exactly as it came.

MessagePack of ``[form, body, properties, exchange, routing_key, redelivered, resent]``. Names are octets, since they
need not be UTF-8. The properties are those of :mod:`gateway.core.publishing.envelopes`, decoded, so that they can be
read after any release or connection; octets that are no property list are kept as they are, beside the name of their
dialect, and are as unreadable afterwards as they were before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.core.publishing.envelopes import DAMAGED, NOT_AS_WRITTEN, EnvelopeError, pack, unpack
from gateway.errors import FrameSyntaxError

DECODED: Final = 1
"""The properties are packed."""
UNDECODABLE: Final = 2
"""The properties are ``[dialect, octets]``."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Stored:
    """A message, and how it came."""

    message: Message
    exchange: str
    routing_key: str
    redelivered: bool
    """The broker said so when it was taken."""
    resent: bool
    """It was published again after an unknown outcome: it may be there twice."""


class Arrived(Protocol):
    """What is needed of a delivery: :class:`gateway.upstreams.Delivery` has it."""

    @property
    def message(self) -> Message: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def redelivered(self) -> bool: ...


def envelope(delivery: Arrived, *, redelivered: bool | None = None, resent: bool = False) -> bytes:
    """What the ledger keeps of a delivery, or of anything of its shape (a :class:`Stored`, say).

    Args:
        redelivered: in place of what the broker said.
        resent: what its reserved header says.
    """
    message = delivery.message
    form = DECODED
    try:
        properties: object = pack(message.properties)
    except FrameSyntaxError:
        raw = message.raw
        form, properties = UNDECODABLE, [raw.dialect, raw.octets] if raw is not None else ["", b""]
    return _encode(
        (
            form,
            message.body,
            properties,
            _octets(delivery.exchange),
            _octets(delivery.routing_key),
            delivery.redelivered if redelivered is None else redelivered,
            resent,
        )
    )


def open_envelope(payload: bytes) -> Stored:
    """What :func:`envelope` kept. Raises :class:`~gateway.core.publishing.envelopes.EnvelopeError`."""
    if not payload:
        raise EnvelopeError(NOT_AS_WRITTEN)
    try:
        form, body, properties, exchange, routing_key, redelivered, resent = _decode(payload)
        if form == DECODED:
            message = Message(body, unpack(properties), relayed=True)
        elif form == UNDECODABLE:
            dialect, octets = properties
            message = Message(body, None, RawProperties(octets, dialect, _undecodable))
        else:
            raise EnvelopeError(f"not a stored message: form {form!r:.20} is not known to this release")
        return Stored(message, _text(exchange), _text(routing_key), bool(redelivered), bool(resent))
    except DAMAGED as error:
        raise EnvelopeError(f"not a stored message: {error}") from error


def _undecodable(octets: bytes) -> Properties:
    raise FrameSyntaxError(f"the {len(octets)} octets are no property list; they are kept as they came")


def _octets(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")

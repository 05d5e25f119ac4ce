"""The domains of AMQP 0-10: types with a name of their own, and the numbers that have names.

:data:`DOMAINS` is the specification's list of them: the type behind each, and its choices where it has some. The
aliases are what the fields of declared classes are annotated with, so that ``Fields.domains`` says which field holds
which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

from gateway.v010.fields import Array, SequenceSet, Str8, Str16, Uint8, Uint16, Vbin16
from gateway.v010.frames import BODY, COMMAND, CONTROL, FRAME_MIN, HEADER


class Domain(NamedTuple):
    """A type with a name."""

    type: str
    """The type of the specification behind it."""
    choices: Mapping[str, int] = {}
    """Name -> value; empty: any value."""


_RETURN_CODES: Final = {"content-too-large": 311, "no-route": 312, "no-consumers": 313}

DOMAINS: Final[Mapping[str, Domain]] = {
    "segment-type": Domain("uint8", {"control": CONTROL, "command": COMMAND, "header": HEADER, "body": BODY}),
    "track": Domain("uint8", {"control": CONTROL, "command": COMMAND}),
    "str16-array": Domain("array"),
    "connection.close-code": Domain(
        "uint16", {"normal": 200, "connection-forced": 320, "invalid-path": 402, "framing-error": 501}
    ),
    "connection.amqp-host-url": Domain("str16"),
    "connection.amqp-host-array": Domain("array"),
    "session.name": Domain("vbin16"),
    "session.detach-code": Domain(
        "uint8", {"normal": 0, "session-busy": 1, "transport-busy": 2, "not-attached": 3, "unknown-ids": 4}
    ),
    "session.commands": Domain("sequence-set"),
    "session.command-fragments": Domain("array"),
    "execution.error-code": Domain(
        "uint16",
        {
            "unauthorized-access": 403,
            "not-found": 404,
            "resource-locked": 405,
            "precondition-failed": 406,
            "resource-deleted": 408,
            "illegal-state": 409,
            "command-invalid": 503,
            "resource-limit-exceeded": 506,
            "not-allowed": 530,
            "illegal-argument": 531,
            "not-implemented": 540,
            "internal-error": 541,
            "invalid-argument": 542,
        },
    ),
    "message.destination": Domain("str8"),
    "message.accept-mode": Domain("uint8", {"explicit": 0, "none": 1}),
    "message.acquire-mode": Domain("uint8", {"pre-acquired": 0, "not-acquired": 1}),
    "message.reject-code": Domain("uint16", {"unspecified": 0, "unroutable": 1, "immediate": 2}),
    "message.resume-id": Domain("str16"),
    "message.delivery-mode": Domain("uint8", {"non-persistent": 1, "persistent": 2}),
    "message.delivery-priority": Domain(
        "uint8",
        {
            "lowest": 0,
            "lower": 1,
            "low": 2,
            "below-average": 3,
            "medium": 4,
            "above-average": 5,
            "high": 6,
            "higher": 7,
            "very-high": 8,
            "highest": 9,
        },
    ),
    "message.flow-mode": Domain("uint8", {"credit": 0, "window": 1}),
    "message.credit-unit": Domain("uint8", {"message": 0, "byte": 1}),
    "dtx.xa-status": Domain(
        "uint16",
        {
            "xa-ok": 0,
            "xa-rbrollback": 1,
            "xa-rbtimeout": 2,
            "xa-heurhaz": 3,
            "xa-heurcom": 4,
            "xa-heurrb": 5,
            "xa-heurmix": 6,
            "xa-rdonly": 7,
        },
    ),
    "exchange.name": Domain("str8"),
    "queue.name": Domain("str8"),
    "file.return-code": Domain("uint16", _RETURN_CODES),
    "stream.return-code": Domain("uint16", _RETURN_CODES),
}
"""Name, behind its class where it belongs to one -> what it is."""

CONSTANTS: Final[Mapping[str, int]] = {"MIN-MAX-FRAME-SIZE": FRAME_MIN}
"""The constants of the specification."""

CloseCode: TypeAlias = Annotated[Uint16, "connection.close-code"]
AmqpHostUrl: TypeAlias = Annotated[Str16, "connection.amqp-host-url"]
"""``amqp:`` and addresses with commas between them, each ``tcp:host[:port]``, ``tls:host[:port]`` or without a word in
front."""
AmqpHostArray: TypeAlias = Annotated[Array, "connection.amqp-host-array"]
"""``hosts.py`` takes it apart."""
SessionName: TypeAlias = Annotated[Vbin16, "session.name"]
DetachCode: TypeAlias = Annotated[Uint8, "session.detach-code"]
Commands: TypeAlias = Annotated[SequenceSet, "session.commands"]
CommandFragments: TypeAlias = Annotated[Array, "session.command-fragments"]
"""Opaque: its elements are structs without a code, and no type code says so."""
ErrorCode: TypeAlias = Annotated[Uint16, "execution.error-code"]
Destination: TypeAlias = Annotated[Str8, "message.destination"]
AcceptMode: TypeAlias = Annotated[Uint8, "message.accept-mode"]
AcquireMode: TypeAlias = Annotated[Uint8, "message.acquire-mode"]
RejectCode: TypeAlias = Annotated[Uint16, "message.reject-code"]
ResumeId: TypeAlias = Annotated[Str16, "message.resume-id"]
DeliveryMode: TypeAlias = Annotated[Uint8, "message.delivery-mode"]
DeliveryPriority: TypeAlias = Annotated[Uint8, "message.delivery-priority"]
FlowMode: TypeAlias = Annotated[Uint8, "message.flow-mode"]
CreditUnit: TypeAlias = Annotated[Uint8, "message.credit-unit"]
XaStatus: TypeAlias = Annotated[Uint16, "dtx.xa-status"]
ExchangeName: TypeAlias = Annotated[Str8, "exchange.name"]
QueueName: TypeAlias = Annotated[Str8, "queue.name"]
FileReturnCode: TypeAlias = Annotated[Uint16, "file.return-code"]
StreamReturnCode: TypeAlias = Annotated[Uint16, "stream.return-code"]

"""What a dead letter says of itself, as JSON: one object wherever a message is shown.

What a message tells comes from its headers, and anybody may write those: it is data, of bounded length. Texts that are
not UTF-8 are shown with escapes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.amqp.message import Message
from gateway.errors import FrameSyntaxError
from gateway.fidelity.deaths import CODES, UNKNOWN, Death, death_of, written

REASON_MAX: Final = 500
"""Longest reason that is shown, in characters."""
NAME_MAX: Final = 255
"""Longest name that is shown, in characters."""
Code = Annotated[
    str,
    Meta(
        description="Why, in one stable word.",
        extra_json_schema={"enum": list(CODES)},
    ),
]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message is a dead letter, when it died, and where it came from; ``null``: that is not known."""

    reason: str
    """Why, for people."""
    code: Code
    exchange: str | None = None
    """The exchange that it was published to."""
    routing_key: str | None = None
    """The routing key that it was published with."""
    queue: str | None = None
    """The queue that it died in."""
    at: str | None = None
    """When, RFC 3339."""


def dead_letter_of(message: Message) -> DeadLetter | None:
    """Return what a message says of its death; None where it is no dead letter, or its properties cannot be read."""
    try:
        headers = message.properties.headers
    except FrameSyntaxError:
        return None
    death = death_of(headers) if headers else None
    return dead_letter_json(death) if death is not None else None


def dead_letter_json(death: Death) -> DeadLetter:
    """Return a death as it is shown."""
    return DeadLetter(
        reason=_shown(death.reason, REASON_MAX) or CODES[UNKNOWN],
        code=death.code,
        exchange=_shown(death.exchange, NAME_MAX),
        routing_key=_shown(death.routing_key, NAME_MAX),
        queue=_shown(death.queue, NAME_MAX),
        at=written(death.at) if death.at is not None else None,
    )


def _shown(text: str | None, most: int) -> str | None:
    """A text without lone surrogates, and no longer than that."""
    if text is None:
        return None
    text = text[:most]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()[:most]

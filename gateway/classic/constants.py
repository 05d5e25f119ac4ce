"""The constants of 0-8 and 0-9-1, by the names that the definitions give them.

A reply code is a soft error where it ends a channel and a hard one where it ends the connection (0-9-1 section 1.2).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Error(Enum):
    """How much a reply code ends."""

    SOFT = "soft-error"
    """The channel."""
    HARD = "hard-error"
    """The connection."""


class Constant(NamedTuple):
    """One constant of a definition."""

    name: str
    value: int
    error: Error | None = None
    """None: no error."""


FRAMES: Final = (
    Constant("frame-method", 1),
    Constant("frame-header", 2),
    Constant("frame-body", 3),
    Constant("frame-heartbeat", 8),
    Constant("frame-min-size", 4096),
    Constant("frame-end", 206),
)
"""Types of frames, the smallest frame that both sides must take, and the octet behind each."""
FRAMES_OF_0_8: Final = (
    Constant("frame-oob-method", 4),
    Constant("frame-oob-header", 5),
    Constant("frame-oob-body", 6),
    Constant("frame-trace", 7),
)
"""Names of 0-8 without a form: a peer that sends one breaks the framing (501)."""

REPLIES: Final = (
    Constant("reply-success", 200),
    Constant("content-too-large", 311, Error.SOFT),
    Constant("connection-forced", 320, Error.HARD),
    Constant("invalid-path", 402, Error.HARD),
    Constant("access-refused", 403, Error.SOFT),
    Constant("not-found", 404, Error.SOFT),
    Constant("resource-locked", 405, Error.SOFT),
    Constant("frame-error", 501, Error.HARD),
    Constant("syntax-error", 502, Error.HARD),
    Constant("command-invalid", 503, Error.HARD),
    Constant("channel-error", 504, Error.HARD),
    Constant("resource-error", 506, Error.HARD),
    Constant("not-allowed", 530, Error.HARD),
    Constant("not-implemented", 540, Error.HARD),
    Constant("internal-error", 541, Error.HARD),
)
"""Reply codes of both versions."""
REPLIES_OF_0_8: Final = (Constant("not-delivered", 310, Error.SOFT),)
REPLIES_OF_0_9_1: Final = (
    Constant("no-consumers", 313, Error.SOFT),
    Constant("precondition-failed", 406, Error.SOFT),
    Constant("unexpected-frame", 505, Error.HARD),
)
"""RabbitMQ and Broker-J send them in 0-8 too."""
REPLIES_OF_RABBITMQ: Final = (Constant("no-route", 312, Error.SOFT),)
"""RabbitMQ's extension; Broker-J returns messages with it as well."""

OF_0_8: Final = (*FRAMES, *FRAMES_OF_0_8, *REPLIES, *REPLIES_OF_0_8)
OF_0_9_1: Final = (*FRAMES, *REPLIES, *REPLIES_OF_0_9_1, *REPLIES_OF_RABBITMQ)

SPARED: Final = frozenset({506})
"""Hard errors over which our own server ends no more than the channel: one queue too many is no reason to take a
client's other channels from it."""

"""Publishes that wait for their outcome, and what became of one that did not fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeAlias

from gateway.amqp.message import Message
from gateway.amqp.operations import Publish


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """The broker has taken responsibility for the message, or has said that nobody wants it."""

    routed: bool
    """False: no queue took it and the broker kept no copy."""
    reply_code: int = 0
    """Why it was not routed: 312 NO_ROUTE mostly, 313 NO_CONSUMERS for ``immediate``."""
    reply_text: str = ""
    resent: bool = False
    """It was sent again, since its channel died before its first outcome: there may be a second copy, and the one that
    this receipt is for is marked. See :mod:`gateway.upstreams.publishing.isolation`."""


ROUTED: Final = PublishReceipt(True)
"""The receipt of nearly every message, made once."""

Entry: TypeAlias = tuple[asyncio.Future[PublishReceipt], int, float, Publish]
"""A publish in a window: its future, octets of body, deadline, and what is sent again if the channel dies."""
Waiting: TypeAlias = tuple[asyncio.Future[PublishReceipt], float, str, Message, bool, str | None]
"""A publish in a line: its future, deadline, routing key, message, immediate, order."""

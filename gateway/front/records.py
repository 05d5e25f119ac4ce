"""Timelines of what clients of a front publish (``record = "publish"``).

The front gives the message an id, in the header ``x-gateway``, and writes what became of it when that is known. The
ledger is written in the background: a publish does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.amqp.operations import Publish
from gateway.core.gateway import Gateway
from gateway.core.publishing.publisher import Publication, describe
from gateway.front.channels.messages import noted
from gateway.front.shares import label
from gateway.ledger import EventKind, LogEntry, id_text
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from gateway.amqp.message import Message
    from gateway.front.client import FrontClient

TEXT_MAX = 500
"""Longest reason of a refusal that is kept, in characters."""


class FrontRecords:
    """What one front writes."""

    def __init__(self, front: str, gateway: Gateway) -> None:
        self._front = front
        self._gateway = gateway

    def begin(self, message: Message) -> tuple[bytes, Message]:
        """Give a message an id; the message with it."""
        message_id = self._gateway.ids()
        return message_id, noted(message, id=id_text(message_id))

    def resent(self, client: FrontClient, message_id: bytes) -> None:
        """It is sent to the broker again."""
        self._add(
            [
                LogEntry(
                    message_id, EventKind.RESENT, clock.now_ns() // 1000, client.access.broker, self._version(client)
                )
            ]
        )

    def end(self, client: FrontClient, message_id: bytes, request: Publish, outcome: str, code: int, text: str) -> None:
        """This became of it: ``confirmed``, ``unroutable``, ``refused`` or ``unknown``."""
        version, at = self._version(client), clock.now_ns() // 1000
        item = Publication(request.routing_key, request.message, request.mandatory, message_id, id_text(message_id))
        who = label(self._front, client.user)
        detail: dict[str, Any] | None = None
        if outcome != "confirmed":
            detail = {"text": f"{code or ''} {text}".strip().encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]}
        message = describe(client.access.broker, version, request.exchange, item, who, "front")
        self._add([LogEntry(message_id, EventKind(outcome), at, client.access.broker, version, detail, message)])

    def _add(self, entries: list[LogEntry]) -> None:
        self._gateway.parts.recorder.add(entries)

    @staticmethod
    def _version(client: FrontClient) -> str:
        return client.link.target.version

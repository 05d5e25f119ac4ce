"""Timelines of what clients of a front publish (``record = "publish"``), and of what they consume (``"all"``).

The front gives a message that is published an id, in the header ``x-gateway``, and writes what became of it when that
is known. A delivery is written under that id, or under a new one. The ledger is written in the background: neither
publishes nor deliveries wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp.operations import Deliver, Got, Publish, Settlement
from gateway.core.gateway import Gateway
from gateway.core.publishing.publisher import Publication, describe
from gateway.core.sources.arrivals import own_id, printable
from gateway.errors import FrameSyntaxError
from gateway.fidelity.reserved import raw_annotations
from gateway.front.channels.messages import noted
from gateway.front.shares import label
from gateway.ledger import EventKind, LogEntry, id_text
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from gateway.amqp.message import Message
    from gateway.front.client import FrontClient

TEXT_MAX: Final = 500
"""Longest reason of a refusal that is kept, in characters."""
_SETTLED: Final[Mapping[Settlement, EventKind]] = {
    Settlement.ACCEPT: EventKind.ACKNOWLEDGED,
    Settlement.RELEASE: EventKind.RELEASED,
    Settlement.REJECT: EventKind.REJECTED,
}
"""What the client says of a delivery -> its event."""


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

    def delivered(self, client: FrontClient, operation: Deliver | Got, queue: str) -> bytes:
        """A message was written for the client. Returns its id."""
        message, broker, version = operation.message, client.access.broker, self._version(client)
        try:
            found = own_id(raw_annotations(message).get("id"))
        except FrameSyntaxError:
            found = None
        message_id, at = found or self._gateway.ids(), clock.now_ns() // 1000
        item = Publication(operation.routing_key, message, False, message_id)
        described = describe(broker, version, operation.exchange, item, "", "broker")
        detail = {**self._detail(client), "queue": printable(queue), "redelivered": operation.redelivered}
        entries = [LogEntry(message_id, EventKind.DELIVERED, at, broker, version, detail, described)]
        if found is None:
            entries.insert(0, LogEntry(message_id, EventKind.RECEIVED, at, broker, version, None, described))
        self._add(entries)
        return message_id

    def settled(self, client: FrontClient, ids: Iterable[bytes], settlement: Settlement) -> None:
        """The client has settled these, and the front tells the broker."""
        self._all(client, ids, _SETTLED[settlement])

    def lost(self, client: FrontClient, ids: Iterable[bytes]) -> None:
        """The client's channel is over, or the broker's: these are in their queues again."""
        self._all(client, ids, EventKind.LEASE_LOST)

    def _all(self, client: FrontClient, ids: Iterable[bytes], kind: EventKind) -> None:
        at, broker, version, detail = (
            clock.now_ns() // 1000, client.access.broker, self._version(client), self._detail(client)
        )  # fmt: skip
        self._add([LogEntry(message_id, kind, at, broker, version, detail) for message_id in ids if message_id])

    def _detail(self, client: FrontClient) -> dict[str, Any]:
        return {"front": self._front, "client": printable(label(self._front, client.user))}

    def _add(self, entries: list[LogEntry]) -> None:
        self._gateway.parts.recorder.add(entries)

    @staticmethod
    def _version(client: FrontClient) -> str:
        return client.link.target.version

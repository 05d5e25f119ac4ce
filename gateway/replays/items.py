"""One message on its way through a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.amqp.message import Message
from gateway.errors import GatewayError
from gateway.ledger import NewMessage, id_text
from gateway.replays.places import ReplayPlace, new_id

if TYPE_CHECKING:
    from gateway.ledger.pending.owed import BacklogEntry
    from gateway.upstreams import Delivery

NAMELESS: Final = "sha256:"
"""What the key of a message without any id begins with."""


def nameless(digest: str, token: str) -> str:
    """The key of a message that has no id: that of its body, and one that no other message gets, equal or not."""
    return f"{NAMELESS}{digest}#{token}"


def name_of(key: str) -> str:
    """Key that recognizes a message when it comes again: all of the key, but for messages without an id, which differ
    by their bodies alone."""
    if not key.startswith(NAMELESS):
        return key
    head, at, place = key.partition("@")
    return head.partition("#")[0] + at + place


class ReplayItem:
    """A message that is to be sent once more."""

    __slots__ = (
        "counted", "delivery", "error", "exchange", "id", "is_copy", "key", "message", "name", "new", "original",
        "place", "recorded", "resent", "routing_key", "row", "sha256", "status", "text", "to", "tries",
    )  # fmt: skip

    def __init__(self, key: str, id: bytes, message: Message, place: ReplayPlace | None) -> None:
        self.key = key
        """What the inbox remembers it by; only copies of one message share it."""
        self.name = name_of(key)
        """What it is known by when it comes again."""
        self.id = id
        """The ledger's id of the original."""
        self.message = message
        self.place = place
        """Where it came from; None: that is not known."""
        self.exchange = place.exchange if place is not None else ""
        self.routing_key = place.routing_key if place is not None else ""
        """As it came last."""
        self.sha256 = b""
        self.new = b""
        """The id of what is sent."""
        self.text = ""
        """The same as text."""
        self.resent = False
        """It may have been sent before."""
        self.is_copy = False
        """Another copy of the same message was sent by this replay, under the same id."""
        self.counted = False
        """It may be one that was counted as sent before."""
        self.recorded = False
        """The ledger knows that it was sent."""
        self.tries = 0
        """How often it was sent in vain."""
        self.error: GatewayError | None = None
        """Why it was not sent, for good."""
        self.to: ReplayPlace | None = None
        """Where it went."""
        self.status: int | None = None
        """What the endpoint answered."""
        self.original: NewMessage | None = None
        """The original, where the ledger may not know it."""
        self.row: BacklogEntry | None = None
        """What the ledger owes of it."""
        self.delivery: Delivery | None = None
        """What its broker holds of it."""

    @property
    def is_marked(self) -> bool:
        """Whether it goes out with the mark of what may have been sent before."""
        return self.resent or self.is_copy

    @property
    def told(self) -> str:
        """The id by which a refusal names it: of the delivery, or of the message."""
        return self.key if self.row is not None else id_text(self.id)

    def named(self, job: str, created_at: int) -> None:
        """Give it the id that it has in this replay."""
        self.new = new_id(created_at, job, self.key)
        self.text = id_text(self.new)

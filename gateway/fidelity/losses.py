"""Every way in which a message can arrive as less than it was, by name.

What has no home travels in the reserved header and comes back, and is no loss. Here is the rest. The names are stable:
the ledger records them, bridges count them, ``on_loss`` decides what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of :data:`LOSSES`."""

    what: str
    """What is lost."""
    when: str
    """In which case."""
    classic_only: bool = False
    """Only towards the classic versions: they alone have a content header that must fit one frame, and field tables."""
    stops: bool = False
    """The message cannot be sent at all; in every other case it goes, without what is lost."""


@dataclass(frozen=True, slots=True)
class Lost:
    """One message's loss."""

    name: str
    """A key of :data:`LOSSES`."""
    field: str
    """Property, or path of a header: ``headers/a/b``."""
    detail: str
    """What is lost of it, in a sentence."""

    @property
    def stops(self) -> bool:
        """Whether the message cannot be sent at all."""
        return LOSSES[self.name].stops


LOSSES: Final[Mapping[str, Loss]] = {
    "user_id": Loss(
        "The user-id is no property any more: it travels as a claim in the reserved header and is never put back.",
        "It is not the login that the gateway has at the target; brokers refuse such a message.",
    ),
    "content_header": Loss(
        "The whole message.",
        "Properties, headers and reserved header together are larger than one frame: `frame_max` less 8 octets.",
        classic_only=True,
        stops=True,
    ),
    "untranslatable": Loss(
        "The whole message.",
        "Its properties are malformed, or something in them has no form in the target's version; the detail names it.",
        stops=True,
    ),
    "fragment": Loss(
        "Which part of a larger message this was (fragment-properties of 0-10).",
        "The message came with them.",
        classic_only=True,
    ),
    "resume": Loss(
        "resume-id and resume-ttl of 0-10's delivery-properties, which belong to the transfer.",
        "The message came with them.",
    ),
    "struct": Loss(
        "A struct in the header segment of 0-10 that the specification does not name.",
        "The message came with one.",
        classic_only=True,
    ),
    "property": Loss(
        "The original value of a property.",
        "The target's version cannot carry it, and the reserved header is left out (`strip`, `annotate = false`).",
    ),
    "header_type": Loss(
        "The type of a header value; the value arrives as another type.",
        "The target's version lacks the type, and the reserved header is left out (`strip`, `annotate = false`).",
    ),
    "held_header": Loss(
        "A header that brokers act upon.",
        "The reserved header in which it travels is left out (`strip`, `annotate = false`).",
    ),
}
"""Name -> what is lost, and when."""

"""What the ledger promised and cannot account for, asked for at once and without pauses."""

from __future__ import annotations

from gateway.ledger import Ledger
from gateway.ledger.pending.promises import Missing

ON_PURPOSE: set[bytes] = set()
"""Ids of messages that a test took from the ledger behind its back."""


async def missing(ledger: Ledger) -> list[Missing]:
    """Everything that is missing; ask when nothing is under way any more."""
    found: list[Missing] = []
    _, extents = await ledger.promises.survey()
    for each in extents:
        after = each.floor - 1
        while after < each.head:
            page = await ledger.promises.page(each.shard, after, each.head)
            found += page.missing
            after = page.end
        number: int | None = 0
        while number is not None:
            page = await ledger.promises.spooled(each.shard, number)
            found += page.missing
            number = page.end
    place: bytes | None = b""
    while place is not None:
        page = await ledger.promises.bodies(place)
        found += page.missing
        place = page.end
    return found

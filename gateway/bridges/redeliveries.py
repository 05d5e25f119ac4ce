"""Which deliveries the target has already, or may have.

A delivery may be one that was forwarded before if its broker says so, if it is marked ``resent``, or if it is among the
first of a consumer, since brokers have been seen that forget in a crash what they had delivered, and the last of what
was acknowledged. The first are a prefetch of them, and a prefetch after each that turned out to be known. Such a one is
looked for among what is under way, and then in the ledger. It is dropped only if what was recorded has the same origin
id and the same body, and its broker or its mark says that it comes again. One of which nobody says so may be another
message of the same id: it is forwarded, with the mark. So may one of which its broker says so, where its id is its
publisher's and the same channel has brought one of its id and body before: a channel brings nothing twice, and what was
recorded stands for one of them. A queue that is only looked at shows everything again at each start, and what was
forwarded before that is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import IN_DOUBT, BridgeJournal
from gateway.core.arrivals import Brought
from gateway.ledger import Seen
from gateway.runtime.clock import clock


class RedeliveryOutcome(NamedTuple):
    """What became of doubtful deliveries; the others are to be forwarded."""

    joined: list[BridgeDelivery]
    """The first delivery was lost while its publish had no outcome yet: it shares that."""
    duplicates: list[BridgeDelivery]
    """The target has them."""


class Redeliveries:
    """What is under way, and what the ledger remembers."""

    def __init__(self, journal: BridgeJournal, prefetch: int) -> None:
        self.browses = False
        """The source shows messages that were forwarded before, again and again."""
        self.trusts = False
        """An id is taken at its word: what has the id and the body of a message that the target had before this
        consumer's channel began is that message, whether or not anybody says that it comes again."""
        self._journal = journal
        self._prefetch = prefetch
        self._flying: dict[str, BridgeDelivery] = {}
        self._brought = Brought()
        self._channel: object = None
        self._since = 0
        self._fresh = 0
        self._late: set[str] = set()
        """Recorded since the present channel began, of what an earlier one had brought."""

    def __len__(self) -> int:
        return len(self._flying)

    def launched(self, item: BridgeDelivery) -> None:
        """It is published."""
        if item.key:
            self._flying[item.key] = item
            self._brings(item)

    def landed(self, item: BridgeDelivery) -> None:
        """It is recorded, or no longer the bridge's."""
        if item.key and item.delivery.channel is not self._channel:
            self._late.add(item.key)
        if item.key and self._flying.get(item.key) is item:
            del self._flying[item.key]

    def look(self, item: BridgeDelivery) -> None:
        """Whether it may be a redelivery."""
        channel = item.delivery.channel
        if channel is not self._channel:
            self._channel = channel
            self._since = clock.now_ns() // 1000
            self._fresh = self._prefetch
            self._late.clear()
            self._brought.begin(channel)
        if self._fresh:
            self._fresh -= 1
            item.doubtful = True
        elif item.delivery.redelivered or item.resent or self.browses:
            item.doubtful = True

    async def find(self, doubtful: Sequence[BridgeDelivery]) -> RedeliveryOutcome:
        """What the target has already. Marks those as ``resent`` that may be there, but nobody says so."""
        found = RedeliveryOutcome([], [])
        asked: list[BridgeDelivery] = []
        for item in doubtful:
            if not item.key:
                continue
            first = self._flying.get(item.key)
            if first is None or first.sha256 != item.sha256:
                asked.append(item)
            elif first.delivery.lost:
                if self._comes_again(item):
                    first.delivery = item.delivery
                    self._brings(item)
                    found.joined.append(item)
                else:
                    item.resent = True
        if not asked:
            return found
        seen = await self._journal.seen([item.key for item in asked])
        for item in asked:
            before = seen.get(item.key)
            if before is not None and before.body_sha256 == IN_DOUBT:
                item.resent = True
            if before is None or before.body_sha256 != item.sha256:
                continue
            # What the same channel has brought before it brings again only with a word of it: without, this is
            # another message whose publisher gives the same id to all.
            of_this_channel = before.at >= self._since and item.key not in self._late
            if of_this_channel and not (item.delivery.redelivered or item.resent):
                continue
            self._fresh = self._prefetch
            if self._is_another(item, before):
                item.resent = not of_this_channel  # else it is the other one that was recorded
            elif self._comes_again(item):
                self._brings(item)
                item.id = before.message_id
                item.reason = "it was forwarded before"
                found.duplicates.append(item)
            else:
                item.resent = True
        return found

    def _is_another(self, item: BridgeDelivery, before: Seen) -> bool:
        """Whether what was recorded stands for one that its channel has brought before."""
        if item.resent or item.key == item.text:
            return False
        return self._brought.has(item.delivery.channel, item.key, item.sha256, before.at)

    def _brings(self, item: BridgeDelivery) -> None:
        """Its channel has brought it. A gateway gives an id to one message only: two of it are one."""
        if item.key != item.text:
            self._brought.add(item.delivery.channel, item.key, item.sha256)

    def _comes_again(self, item: BridgeDelivery) -> bool:
        """Whether somebody says that it may have been delivered before. Being among the first of a consumer is no
        such word: a publisher may use an id again, with the same body."""
        return item.delivery.redelivered or item.resent or self.browses or self.trusts

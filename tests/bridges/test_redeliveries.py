"""What a source that forgets brings again: it is looked for, and marked where nobody says what it is."""

from __future__ import annotations

from time import time_ns
from types import SimpleNamespace
from typing import Any

from gateway.bridges.items import BridgeDelivery
from gateway.bridges.redeliveries import Redeliveries
from gateway.ledger import Seen
from gateway.message import Message

BODY = b"b" * 32
"""In place of a digest."""


class Source:
    """Deliveries of its channels, and what the ledger remembers of them."""

    def __init__(self, prefetch: int) -> None:
        self.rows: dict[str, Seen] = {}
        self.redeliveries = Redeliveries(self, prefetch)  # type: ignore[arg-type]
        self._number = 0

    async def seen(self, keys: list[str]) -> dict[str, Seen]:
        """As the journal's."""
        return {key: self.rows[key] for key in keys if key in self.rows}

    def bring(self, channel: object, key: str, *, redelivered: bool = False) -> BridgeDelivery:
        """A delivery, looked at as it comes."""
        self._number += 1
        message = Message(b"body")
        delivery: Any = SimpleNamespace(
            message=message, exchange="", routing_key="q", channel=channel, redelivered=redelivered, lost=False
        )
        item = BridgeDelivery(delivery, self._number)
        item.key, item.sha256 = key, BODY
        self.redeliveries.look(item)
        return item

    def record(self, item: BridgeDelivery) -> None:
        """Its target has it, and so has the ledger."""
        self.rows[item.key] = Seen(BODY, b"m" * 16, time_ns() // 1000)
        self.redeliveries.landed(item)

    async def forwarded(self, *items: BridgeDelivery) -> list[str]:
        """Forward what is to be; the keys of those that carry a mark."""
        found = await self.redeliveries.find([item for item in items if item.doubtful])
        assert not found.joined
        assert not found.duplicates
        for item in items:
            self.redeliveries.launched(item)
            self.record(item)
        return [item.key for item in items if item.resent]


async def test_what_is_recorded_after_its_channel_went_is_known_when_it_comes_again() -> None:
    """Its outcome came late, when the next channel had begun: it is not of that one."""
    source = Source(prefetch=10)
    one = source.bring("A", "one")
    source.redeliveries.launched(one)
    one.delivery.lost = True  # type: ignore[misc]
    assert await source.forwarded(source.bring("B", "two")) == []
    source.record(one)
    assert await source.forwarded(source.bring("B", "one")) == ["one"]


async def test_what_a_channel_brought_and_brings_again_without_a_word_is_another_message() -> None:
    source = Source(prefetch=10)
    assert await source.forwarded(source.bring("A", "one")) == []
    assert await source.forwarded(source.bring("A", "one")) == []


async def test_a_source_that_forgot_more_than_a_prefetch() -> None:
    """It had not written down yet what was acknowledged last."""
    source = Source(prefetch=3)
    keys = [f"m{number}" for number in range(10)]
    for key in keys:
        assert await source.forwarded(source.bring("A", key)) == []
    marked = []
    for key in keys:
        marked += await source.forwarded(source.bring("B", key))
    assert marked == keys


async def test_only_the_first_of_a_channel_are_looked_for() -> None:
    source = Source(prefetch=3)
    assert [source.bring("A", f"m{number}").doubtful for number in range(5)] == [True] * 3 + [False] * 2


async def test_twins_that_come_again_on_one_channel_are_two() -> None:
    """Nothing of them was recorded before: what is recorded of the first says nothing of the second."""
    source = Source(prefetch=10)
    assert await source.forwarded(source.bring("A", "one", redelivered=True)) == []
    assert await source.forwarded(source.bring("A", "one", redelivered=True)) == []


async def test_what_was_recorded_before_stands_for_one_of_twins() -> None:
    """The other one may be at the target, too, and may not: it is forwarded, with the mark."""
    source = Source(prefetch=10)
    source.record(source.bring("A", "one"))
    twins = [source.bring("B", "one", redelivered=True) for _ in range(3)]
    found = await source.redeliveries.find(twins)
    assert found.duplicates == twins[:1]
    assert [item.resent for item in twins] == [False, True, True]


async def test_a_twin_of_what_has_joined_its_first_delivery_is_another() -> None:
    source = Source(prefetch=10)
    one = source.bring("A", "one")
    source.redeliveries.launched(one)
    one.delivery.lost = True  # type: ignore[misc]
    again = source.bring("B", "one", redelivered=True)
    assert (await source.redeliveries.find([again])).joined == [again]
    source.record(one)
    assert await source.forwarded(source.bring("B", "one", redelivered=True)) == []

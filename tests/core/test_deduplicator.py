"""Whether a delivery was seen before: the truth table, and what a source that forgets brings again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.bridges.items import BridgeDelivery
from gateway.core.sources import deduplicator
from gateway.core.sources.deduplicator import ChannelMemory, Deduplicator, Judgement, PullMemory, judge
from gateway.ledger import Seen

BODY = b"b" * 32
"""In place of a digest."""


class Source:
    """Deliveries of its channels, and what the ledger remembers of them."""

    def __init__(self, prefetch: int) -> None:
        self.rows: dict[str, Seen] = {}
        self.deduplicator: Deduplicator[BridgeDelivery] = Deduplicator(self.seen, prefetch)
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
        item.doubtful = self.deduplicator.is_doubtful(item)
        return item

    def record(self, item: BridgeDelivery) -> None:
        """Its target has it, and so has the ledger."""
        self.rows[item.key] = Seen(BODY, b"m" * 16, time_ns() // 1000)
        self.deduplicator.landed(item)

    async def forwarded(self, *items: BridgeDelivery) -> list[str]:
        """Forward what is to be; the keys of those that carry a mark."""
        found = await self.deduplicator.find([item for item in items if item.doubtful])
        assert not found.joined
        assert not found.known
        for item in items:
            self.deduplicator.launched(item)
            self.record(item)
        return [item.key for item in items if item.resent]


async def test_what_is_recorded_after_its_channel_went_is_known_when_it_comes_again() -> None:
    """Its outcome came late, when the next channel had begun: it is not of that one."""
    source = Source(prefetch=10)
    one = source.bring("A", "one")
    source.deduplicator.launched(one)
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
    found = await source.deduplicator.find(twins)
    assert found.known == twins[:1]
    assert [item.resent for item in twins] == [False, True, True]


async def test_a_twin_of_what_has_joined_its_first_delivery_is_another() -> None:
    source = Source(prefetch=10)
    one = source.bring("A", "one")
    source.deduplicator.launched(one)
    one.delivery.lost = True  # type: ignore[misc]
    again = source.bring("B", "one", redelivered=True)
    assert (await source.deduplicator.find([again])).joined == [again]
    source.record(one)
    assert await source.forwarded(source.bring("B", "one", redelivered=True)) == []


# ------------------------------------------------------------------------------------------ the truth table


def documented() -> dict[tuple[bool, bool, bool, bool], Judgement]:
    """The table of the module's docstring: resent, claimed, repeated, here -> judgement."""
    assert deduplicator.__doc__ is not None
    table = deduplicator.__doc__.split("======  =======  ========  ====  =========\n")[2]
    found: dict[tuple[bool, bool, bool, bool], Judgement] = {}
    for line in table.splitlines():
        *cells, judgement = line.split()
        choices = [{"yes": (True,), "no": (False,), "-": (True, False)}[cell] for cell in cells]
        for case in product(*choices):
            assert case not in found, f"{case} stands twice in the table"
            found[case] = Judgement[judgement]
    return found


def test_the_table_of_the_docs_is_what_the_rule_says_in_every_case() -> None:
    table = documented()
    assert len(table) == 16
    for (resent, claimed, repeated, here), judgement in table.items():
        assert judge(resent=resent, claimed=claimed, repeated=repeated, here=here) is judgement


@pytest.mark.parametrize(
    ("resent", "redelivered", "strange", "earlier", "here", "memory"),
    list(product((False, True), repeat=6)),
)
async def test_each_case_through_the_deduplicator(
    monkeypatch: pytest.MonkeyPatch,
    resent: bool,
    redelivered: bool,
    strange: bool,
    earlier: bool,
    here: bool,
    memory: bool,
) -> None:
    """``earlier``: the channel has brought one of this id and body; ``here``: the row is of its time; ``memory``: of
    pulls, which have no present channel."""
    monkeypatch.setattr(deduplicator, "stands", lambda channel: channel is not None)
    rows: dict[str, Seen] = {}

    async def seen(keys: Sequence[str]) -> dict[str, Seen]:
        return {key: rows[key] for key in keys if key in rows}

    subject: Deduplicator[BridgeDelivery] = Deduplicator(seen, 10, PullMemory() if memory else None)
    channel = object()

    def deliver(*, redelivered: bool) -> BridgeDelivery:
        delivery: Any = SimpleNamespace(
            message=Message(b"body"), exchange="", routing_key="q", channel=channel, redelivered=redelivered, lost=False
        )
        item = BridgeDelivery(delivery, 1)
        item.key, item.sha256 = "id", BODY
        item.text = "another" if strange else "id"
        subject.is_doubtful(item)
        return item

    first = deliver(redelivered=False)
    if earlier:
        subject.brought([first])
    rows["id"] = Seen(BODY, b"m" * 16, time_ns() // 1000 + (1_000_000 if here else -1_000_000))
    item = deliver(redelivered=redelivered)
    item.resent = resent
    found = await subject.find([item])
    repeated = strange and earlier
    expected = documented()[resent, redelivered, repeated, here and not memory]
    assert (item in found.known) is (expected is Judgement.KNOWN)
    assert item.resent is (resent or expected is Judgement.POSSIBLE)
    assert (item.id == b"m" * 16) is (expected is Judgement.KNOWN)


# ------------------------------------------------------------------------------------------ what a channel has brought


ONE, OTHER = b"1" * 32, b"2" * 32


def test_two_bodies_under_one_id_are_two_messages() -> None:
    brought, channel = ChannelMemory(), object()
    brought.begin(channel)
    brought.add(channel, "id", ONE)
    assert brought.has(channel, "id", ONE, 0)
    assert not brought.has(channel, "id", OTHER, 0)


def test_a_new_channel_has_forgotten_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a channel has forgotten may be anything that the inbox has since then; the next one knows all it brought."""
    monkeypatch.setattr(deduplicator, "BROUGHT_MAX", 1)
    brought, first, second = ChannelMemory(), object(), object()
    brought.begin(first)
    for key in ("a", "b"):
        brought.add(first, key, ONE)
    assert brought.has(first, "a", ONE, brought.since)
    assert not brought.has(first, "a", ONE, brought.since - 1)
    brought.begin(second)
    assert not brought.has(second, "a", ONE, brought.since)


def test_what_is_given_back_takes_no_other_of_its_id_and_body_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[object] = []
    monkeypatch.setattr(deduplicator, "stands", lambda channel: channel not in gone)
    pulled, first, second = PullMemory(), object(), object()
    pulled.forget(first, "id", ONE)
    assert not pulled.has(first, "id", ONE, 0)
    for channel in (first, first, second):
        pulled.add(channel, "id", ONE)
    for channel, left in ((first, True), (second, True), (second, True), (first, False)):
        pulled.forget(channel, "id", ONE)
        assert pulled.has(first, "id", ONE, 0) is left
    pulled.add(first, "id", ONE)
    gone.append(first)
    assert not pulled.has(first, "id", ONE, 0)
    pulled.add(second, "id", ONE)
    pulled.forget(second, "id", ONE)
    assert not pulled._channels, "the one that is gone is not kept"


def test_another_channel_has_brought_nothing() -> None:
    brought, channel = ChannelMemory(), object()
    brought.begin(channel)
    brought.add(channel, "id", ONE)
    brought.begin(object())
    assert not brought.has(channel, "id", ONE, 0)
    brought.begin(channel)
    assert not brought.has(channel, "id", ONE, 0), "it is a new one since"

"""Duplicates found: within one commit, under way, in the inbox, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.sources import deduplicator
from gateway.core.sources.deduplicator import IN_DOUBT, ChannelMemory, Deduplicator, PullMemory
from gateway.ledger import Seen

ONE, OTHER = b"1" * 32, b"2" * 32
A, B = object(), object()
"""Channels."""


class Item:
    """A delivery that may be a duplicate."""

    def __init__(self, key: str = "id", channel: object = A, **more: Any) -> None:
        self.key = key
        self.id: Any = object()
        self.sha256: bytes = more.get("sha256", ONE)
        self.resent: bool = more.get("resent", False)
        self.strange: bool = more.get("strange", False)
        self.delivery: Any = SimpleNamespace(channel=channel, redelivered=more.get("redelivered", False), lost=False)
        self.is_doubted = False

    def doubt(self) -> None:
        self.is_doubted = True


class Memory:
    """A memory that notes each call."""

    def __init__(self) -> None:
        self.since = 0
        self.said: list[tuple[str, str]] = []

    def begin(self, channel: object) -> bool:
        return False

    def add(self, channel: object, key: str, sha256: bytes) -> None:
        self.said.append(("add", key))

    def has(self, channel: object, key: str, sha256: bytes, at: int) -> bool:
        return False

    def forget(self, channel: object, key: str, sha256: bytes) -> None:
        self.said.append(("forget", key))


class Inbox:
    """What the ledger knows, and what it was asked for."""

    def __init__(self) -> None:
        self.rows: dict[str, Seen] = {}
        self.asked: list[list[str]] = []

    async def __call__(self, keys: Sequence[str]) -> dict[str, Seen]:
        self.asked.append(list(keys))
        return {key: self.rows[key] for key in keys if key in self.rows}

    def put(self, key: str = "id", *, at: int = 1, sha256: bytes = ONE) -> None:
        self.rows[key] = Seen(sha256, b"m" * 16, at)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def made(inbox: Inbox, first: int = 0, memory: Any = None) -> Deduplicator[Any]:
    return Deduplicator(inbox, first, memory)


# ------------------------------------------------------------------------------------------------ what is doubtful


@pytest.mark.parametrize(
    ("more", "repeats", "expected"),
    [
        ({}, False, False),
        ({"redelivered": True}, False, True),
        ({"resent": True}, False, True),
        ({}, True, True),
        ({"key": "", "redelivered": True, "resent": True}, True, False),
    ],
)
@pytest.mark.parametrize("memory", [None, PullMemory()])
def test_a_delivery_is_looked_for_where_anything_says_so(
    inbox: Inbox, more: dict[str, Any], repeats: bool, expected: bool, memory: Any
) -> None:
    subject = made(inbox, 0, memory)
    subject.repeats = repeats
    assert subject.is_doubtful(Item(**more)) is expected


def test_the_first_of_a_channel_are_looked_for_where_they_can_be_recognized(inbox: Inbox) -> None:
    subject = made(inbox, 2)
    assert [subject.is_doubtful(Item(key)) for key in ("a", "", "b")] == [True, False, False]
    assert [subject.is_doubtful(Item(key, B)) for key in ("a", "b", "c")] == [True, True, False]


async def test_only_ids_of_publishers_are_remembered(inbox: Inbox) -> None:
    """A gateway gives an id to one message only."""
    memory = Memory()
    subject = made(inbox, 0, memory)
    items = [Item("ours"), Item("strange", strange=True), Item("", strange=True)]
    subject.brought(items)
    subject.given_back(items)
    for item in items:
        subject.launched(item)
    assert memory.said == [("add", "strange"), ("forget", "strange"), ("add", "strange")]
    assert len(subject) == 2
    for item in items:
        subject.landed(item)
    assert len(subject) == 0


# -------------------------------------------------------------------------------------------------- in the inbox


@pytest.mark.parametrize("setting", ["repeats", "trusts_ids"])
async def test_a_source_may_claim_for_all_that_it_shows(inbox: Inbox, setting: str) -> None:
    """Each message that the inbox has from before its channel is known, though nobody says that it comes again."""
    inbox.put()
    subject = made(inbox, 5)
    item = Item()
    subject.is_doubtful(item)
    setattr(subject, setting, True)
    assert (await subject.find([item])).known == [item]
    assert item.id == b"m" * 16
    plain = made(inbox, 5)
    other = Item()
    plain.is_doubtful(other)
    assert (await plain.find([other])).known == []
    assert other.is_doubted


async def test_what_is_in_doubt_in_the_inbox_is_marked(inbox: Inbox) -> None:
    inbox.put("doubt", sha256=IN_DOUBT)
    inbox.put("other", sha256=OTHER)
    subject = made(inbox, 5)
    items = [Item("doubt", redelivered=True), Item("other", redelivered=True), Item("new", redelivered=True)]
    for item in items:
        subject.is_doubtful(item)
    assert (await subject.find(items)).known == []
    assert [item.is_doubted for item in items] == [True, False, False]


async def test_a_row_of_the_moment_at_which_the_channel_began_is_of_it(inbox: Inbox) -> None:
    subject = made(inbox, 5)
    item = Item()
    subject.is_doubtful(item)
    inbox.put(at=subject._memory.since)
    assert (await subject.find([item])).known == []
    assert not item.is_doubted, "it is another message"
    inbox.put(at=subject._memory.since - 1)
    await subject.find([item])
    assert item.is_doubted


async def test_a_source_that_brought_what_is_known_may_bring_more_of_it(inbox: Inbox) -> None:
    subject = made(inbox, 1)
    assert subject.is_doubtful(Item("first"))
    inbox.put(at=time_ns() // 1000 + 60_000_000)  # of the present channel
    new, known = Item(redelivered=False), Item(resent=True)
    assert not subject.is_doubtful(Item("x"))
    assert (await subject.find([new])).known == []
    assert not subject.is_doubtful(Item("x")), "another message says nothing of the next"
    assert (await subject.find([known])).known == [known]
    assert subject.is_doubtful(Item("x"))
    assert not subject.is_doubtful(Item("x"))


async def test_what_came_late_for_one_channel_is_not_late_for_the_next(inbox: Inbox) -> None:
    subject = made(inbox, 10)
    late = Item("id", A)
    subject.is_doubtful(late)
    subject.launched(late)
    subject.is_doubtful(Item("x", B))
    subject.landed(late)
    third = object()
    first, again = Item("id", third), Item("id", third)
    subject.is_doubtful(first)
    inbox.put(at=time_ns() // 1000 + 60_000_000)
    subject.is_doubtful(again)
    await subject.find([again])
    assert not again.is_doubted, "this channel has brought both"


async def test_what_is_given_back_is_known_when_it_comes_again(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicator, "stands", lambda channel: True)
    inbox.put()
    subject = made(inbox, 0, PullMemory())
    first, second, third = (Item(strange=True, redelivered=True) for _ in range(3))
    subject.brought([first])
    assert (await subject.find([second])).known == []
    assert second.is_doubted
    subject.given_back([first])
    assert (await subject.find([third])).known == [third]


# ---------------------------------------------------------------------------------------------------- under way


async def test_what_is_under_way_is_compared_with_what_comes(inbox: Inbox) -> None:
    subject = made(inbox, 10)
    first, lost = Item("kept", A), Item("lost", A)
    for item in (first, lost):
        subject.is_doubtful(item)
        subject.launched(item)
    lost.delivery.lost = True
    items = [
        Item("", B, redelivered=True),
        Item("kept", B, redelivered=True),
        Item("lost", B),
        Item("lost", B, redelivered=True, sha256=OTHER),
        Item("new", B, redelivered=True),
        again := Item("lost", B, redelivered=True),
    ]
    found = await subject.find(items)
    assert found.joined == [again]
    assert lost.delivery is again.delivery
    assert found.known == []
    assert [item.is_doubted for item in items] == [False, False, True, False, False, False]
    assert inbox.asked == [["lost", "new"]]


# ------------------------------------------------------------------------------------------------- of one commit


@pytest.mark.parametrize(
    ("more", "is_known", "is_doubted", "is_asked"),
    [
        ({"redelivered": True}, True, True, False),
        ({"resent": True}, True, True, False),
        ({}, False, True, True),
        ({"redelivered": True, "sha256": OTHER}, False, False, True),
        ({"redelivered": True, "strange": True}, False, True, False),  # on one channel its publisher sent both
        ({"redelivered": True, "strange": True, "channel": B}, True, True, False),
        ({"strange": True, "channel": B}, False, True, True),
        ({"resent": True, "strange": True}, True, True, False),
    ],
)
async def test_two_of_one_commit_are_compared(
    inbox: Inbox, more: dict[str, Any], is_known: bool, is_doubted: bool, is_asked: bool
) -> None:
    """Also with what stands before and behind them."""
    subject = made(inbox, 10)
    first, second = Item("id"), Item("id", **{"channel": A, **more})
    before, behind, unasked = Item("", redelivered=True), Item("z", redelivered=True), Item("y")
    batch = [before, first, second, unasked, behind]
    found = await subject.find([before, second, behind], batch)
    assert found.known == ([second] if is_known else [])
    assert (second.id is first.id) is is_known
    assert second.is_doubted is is_doubted
    assert not first.is_doubted
    assert inbox.asked == [["id", "z"] if is_asked else ["z"]]


async def test_what_is_dropped_as_known_of_one_commit_is_remembered(inbox: Inbox) -> None:
    memory = Memory()
    subject = made(inbox, 0, memory)
    first, second = Item("id", A, strange=True), Item("id", B, strange=True, redelivered=True)
    assert (await subject.find([second], [first, second])).known == [second]
    assert memory.said == [("add", "id")]
    assert inbox.asked == [], "there is nothing to ask for"


# ------------------------------------------------------------------------------------------------------ memories


def test_the_memory_of_a_channel_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicator, "BROUGHT_MAX", 2)
    memory = ChannelMemory()
    assert memory.begin(A)
    assert not memory.begin(A)
    for key in ("a", "b"):
        memory.add(A, key, ONE)
    assert not memory.has(A, "unknown", ONE, memory.since), "nothing was forgotten yet"
    memory.add(B, "c", ONE)
    assert not memory.has(A, "unknown", ONE, memory.since), "that is another channel's"
    memory.add(A, "c", ONE)
    assert memory.has(A, "unknown", ONE, memory.since)
    assert [memory.has(A, key, ONE, 0) for key in ("a", "b", "c")] == [False, True, True]


def test_the_memory_of_pulls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicator, "PULLED_MAX", 2)
    monkeypatch.setattr(deduplicator, "stands", lambda channel: True)
    memory = PullMemory()
    assert not memory.begin(A)
    for key in ("a", "b"):
        memory.add(A, key, ONE)
    assert [memory.has(A, key, ONE, 0) for key in ("a", "b")] == [True, True]
    memory.add(A, "c", ONE)
    assert [memory.has(A, key, ONE, 0) for key in ("a", "b", "c")] == [False, True, True]

"""The two sides of a bridge as piles of messages, and how a queue is looked into without taking anything."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.bridges import compare
from gateway.bridges.compare import KEPT_WITHIN, LedgerPiles, Pile, Sides, beside, look_into, origin_of
from gateway.errors import BrokerUnavailable
from gateway.fidelity import annotate
from gateway.ledger import EventKind, Happened, MessageIds, id_text

new_id = MessageIds()


def happened(kind: EventKind, message_id: bytes, bridge: str = "b") -> Happened:
    return Happened(kind, message_id, 0, {"bridge": bridge}, 1, sha256(b"x").digest())


def pile(*messages: tuple[str, bytes], most: int = 1_000) -> Pile:
    found = Pile(most)
    for key, body in messages:
        found.add(key, sha256(body).digest(), len(body))
    return found


def sides(one: Pile, two: Pile) -> Sides:
    return beside(one, one.side("a", "x", "browsed"), two, two.side("b", "y", "browsed"))


# ------------------------------------------------------------------------------------------------- piles


def test_a_pile_is_complete_until_there_is_more_than_it_holds() -> None:
    found = pile(("1", b"a"), ("2", b"bc"), most=2)
    assert (found.messages, found.octets, found.complete, found.nameless().complete) == (2, 3, True, True)
    found.add("3", b"", 1)
    assert (found.messages, found.octets, found.complete, found.nameless().complete) == (2, 3, False, False)
    assert found.nameless().messages == 2
    assert Pile(1).digest == "0" * 64


def test_events_behind_those_that_do_not_count_are_counted() -> None:
    one, two = new_id(), new_id()
    window = LedgerPiles("b")
    window.add(
        [
            happened(EventKind.FORWARDED, new_id(), bridge="another"), happened(EventKind.FORWARDED, one),
            happened(EventKind.FORWARDED, one), happened(EventKind.FORWARDED, two),
        ]
    )  # fmt: skip
    assert (window.forwarded.messages, window.counts[EventKind.FORWARDED]) == (2, 2)


def test_only_so_many_messages_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "LEDGER_MAX", 2)
    window = LedgerPiles("b")
    ids = [new_id() for _ in range(3)]
    for _ in range(2):
        window.add([happened(EventKind.FILTERED, message_id) for message_id in ids])
    assert window.counts[EventKind.FILTERED] == 4, "the last one is counted each time"


# ------------------------------------------------------------------------------------------------ compared


@pytest.mark.parametrize(
    ("one", "two", "missing", "extra", "changed", "copies"),
    [
        ([], [], 0, 0, 0, 0),
        ([("1", b"a")], [("1", b"a")], 0, 0, 0, 0),
        ([("1", b"a")], [], 1, 0, 0, 0),
        ([], [("1", b"a")], 0, 1, 0, 0),
        ([("1", b"a")], [("1", b"b")], 0, 0, 1, 0),
        ([("1", b"a")], [("1", b"a"), ("1", b"a")], 0, 1, 0, 1),
        ([("1", b"a")], [("1", b"a"), ("2", b"a")], 0, 1, 0, 0),
        ([("1", b"a"), ("1", b"a")], [("1", b"a")], 1, 0, 0, 0),
        ([("", b"a")], [("2", b"a")], 0, 0, 0, 0),  # the bridge gave it an id
        ([("", b"a")], [("2", b"b")], 1, 1, 0, 0),
        ([("", b"a")], [("", b"a"), ("", b"a")], 0, 1, 0, 0),
        ([("", b"a"), ("", b"a")], [("2", b"a")], 1, 0, 0, 0),
        ([("1", b"a"), ("", b"b")], [("2", b"b"), ("1", b"a"), ("1", b"a")], 0, 1, 0, 1),
    ],
)
def test_messages_are_matched_one_by_one(
    one: list[tuple[str, bytes]],
    two: list[tuple[str, bytes]],
    missing: int,
    extra: int,
    changed: int,
    copies: int,
) -> None:
    found = sides(pile(*one), pile(*two))
    assert (found.missing, found.extra, found.changed, found.copies) == (missing, extra, changed, copies)
    assert len(found.differences) == missing + extra + changed
    assert [bool(each.source) for each in found.differences] == [True] * missing + [False] * extra + [True] * changed
    assert [bool(each.target) for each in found.differences] == [False] * missing + [True] * (extra + changed)


def test_sides_are_equal_only_if_both_are_complete() -> None:
    assert sides(pile(("1", b"a")), pile(("1", b"a"))).equal
    full = pile(("1", b"a"), ("2", b"b"), most=1)
    assert not sides(full, pile(("1", b"a"))).equal
    assert not sides(pile(("1", b"a")), full).equal
    assert [row.equal for row in sides(pile(("1", b"a")), pile(("2", b"a"))).rows] == [True, True, False]


@pytest.mark.parametrize(
    ("properties", "origin"),
    [
        (Properties(), ""),
        (Properties(message_id="m"), "old/m"),
        (annotate(Properties(message_id="m"), origin="elsewhere/7"), "elsewhere/7"),
        (annotate(Properties(message_id="m"), id="forged"), "old/m"),
    ],
)
def test_what_a_message_is_known_by_at_the_target(properties: Properties, origin: str) -> None:
    assert origin_of(Message(b"x", properties), "old") == origin
    mine = id_text(new_id())
    assert origin_of(Message(b"x", annotate(Properties(message_id="m"), id=mine)), "old") == mine


# --------------------------------------------------------------------------------------------- looked into


class Shown:
    """A message of a queue that is looked into."""

    def __init__(self, queue: Queue, body: bytes) -> None:
        self.message = Message(body, Properties())
        self.body = body
        self.is_used_up = body == b"used up"
        self._queue = queue

    def settle(self, settlement: Settlement) -> None:
        """Note it."""
        self._queue.calls.append(f"{settlement.name} {self.body.decode()}")


class Queue:
    """A broker with one queue."""

    name, reason = "old", "it is gone"

    def __init__(self, *bodies: bytes, browse: bool, depth: int | None = None) -> None:
        self.calls: list[str] = []
        self.capabilities: Any = SimpleNamespace(browse=browse)
        self.shown = [Shown(self, body) for body in bodies]
        self.depth = len(bodies) if depth is None else depth

    async def query_queue(self, queue: str) -> Any:
        """Say how deep it is."""
        return SimpleNamespace(message_count=self.depth)

    async def consume(self, queue: str, prefetch: int, arrive: Any, *, acquired: bool) -> Any:
        """Show everything in the next turn of the loop."""
        self.calls.append(f"consume {prefetch} {acquired}")
        for number, shown in enumerate(self.shown):
            asyncio.get_running_loop().call_later(0.002 * number, arrive, shown)
        return self

    async def cancel(self) -> None:
        """Note it."""
        self.calls.append("cancel")

    async def close(self, *, drain: float) -> None:
        """Note it."""
        self.calls.append(f"close {drain:g}")


async def look(queue: Queue, most: int = 10) -> tuple[str, list[bytes], Pile]:
    """Look into it: how, what was seen, and the pile."""
    seen: list[bytes] = []
    found = Pile(most)
    upstream: Any = queue
    how = await look_into(upstream, "q", found, lambda delivery: seen.append(delivery.message.body))
    return how, seen, found


async def test_a_queue_that_shows_its_messages_keeps_them() -> None:
    queue = Queue(b"1", b"2", browse=True)
    how, seen, found = await look(queue)
    assert (how, seen, found.complete) == ("browsed", [b"1", b"2"], True)
    assert queue.calls == [
        "consume 2 False", "ACCEPT 1", "ACCEPT 2", "cancel", f"close {KEPT_WITHIN:g}",
    ]  # fmt: skip


async def test_no_more_is_seen_than_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before the consumer was cancelled is left there all the same."""
    queue = Queue(b"1", b"2", b"3", browse=True, depth=2)
    cancel = queue.cancel

    async def slow() -> None:
        await cancel()
        await asyncio.sleep(0.02)

    monkeypatch.setattr(queue, "cancel", slow)
    _, seen, found = await look(queue)
    assert (seen, found.complete) == ([b"1", b"2"], True)
    assert "ACCEPT 3" in queue.calls
    assert queue.calls[-1] == f"close {KEPT_WITHIN:g}"


async def test_a_queue_that_cannot_show_its_messages_gets_them_back_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(b"1", b"used up", b"3", browse=False)
    cancel = queue.cancel

    async def slow() -> None:
        await cancel()
        await asyncio.sleep(0.02)

    monkeypatch.setattr(queue, "cancel", slow)
    how, seen, found = await look(queue, 2)
    assert (how, seen, found.complete) == ("leased", [b"1", b"used up"], False)
    assert queue.calls == [
        "consume 2 True", "cancel", "RELEASE 3", "RELEASE used up", "RELEASE 1", f"close {KEPT_WITHIN:g}",
    ]  # fmt: skip
    assert [shown.message.body for shown in queue.shown] == [b"", b"used up", b""], "bodies that are not needed go"


async def test_a_queue_that_shows_less_than_it_holds_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "IDLE", 0.01)
    _, seen, found = await look(Queue(b"1", browse=True, depth=2))
    assert (seen, found.complete) == ([b"1"], False)


async def test_nothing_is_consumed_of_an_empty_queue() -> None:
    queue = Queue(b"1", browse=True, depth=0)
    assert (await look(queue))[:2] == ("browsed", [])
    assert queue.calls == []


async def test_a_broker_that_is_away_cannot_be_looked_into() -> None:
    queue = Queue(b"1", browse=True)
    queue.capabilities = None
    with pytest.raises(BrokerUnavailable, match="broker old: it is gone"):
        await look(queue)

"""Both sides of a bridge beside each other: from the ledger, and from the queues."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.bridges import compare
from gateway.bridges.compare import LedgerPiles, Pile, Report, SideMessage, beside, target_of
from gateway.bridges.routes import BridgeRoute
from gateway.core.leasing.consuming import own_id
from gateway.errors import EncodeError, NoSuchBridge, NotFound, Overloaded
from gateway.ledger import EventKind, Happened, MessageIds, id_text
from tests.bridges.conftest import Estate, bridge_settings

MIRROR = pytest.mark.parametrize("estate", [("0-10", "0-9-1")], indirect=True)
"""A source that shows its messages and keeps them."""
BOTH_VERSIONS = pytest.mark.parametrize("estate", [("0-9-1", "0-9-1"), ("0-10", "0-10")], indirect=True)
new_id = MessageIds()


async def report(estate: Estate, **options: Any) -> Report:
    return await estate.bridges.compare("b", **options)


def numbers(sides: Any) -> list[tuple[str, bool]]:
    return [(row.name, row.equal) for row in sides.rows]


ALL_EQUAL = [("messages", True), ("octets", True), ("digest", True)]


# ----------------------------------------------------------------------------------------------- the ledger


async def test_what_was_forwarded_is_what_was_taken(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(10, size=5)
    await estate.wait_for(forwarded=10)
    found = await report(estate)
    assert found.equal
    assert (found.bridge, found.mode, found.queues) == ("b", "move", None)
    assert numbers(found.ledger) == ALL_EQUAL
    assert (found.ledger.source.what, found.ledger.source.broker, found.ledger.source.how) == ("taken", "old", "ledger")
    assert (found.ledger.target.messages, found.ledger.target.octets) == (10, 9 * 6 + 7)
    assert found.ledger.differences == []


async def test_what_was_dead_lettered_is_missing(estate: Estate) -> None:
    await estate.bridge(target={"broker": "new", "routing_key": "{header:to}"})
    await estate.fill(3, headers={"to": "out"})
    await estate.fill(2)
    await estate.wait_for(forwarded=3, dead_lettered=2)
    found = await report(estate)
    assert not found.equal
    assert (found.dead_lettered, found.ledger.missing, found.ledger.extra, found.ledger.changed) == (2, 2, 0, 0)
    assert (found.ledger.source.messages, found.ledger.target.messages) == (5, 3)
    assert numbers(found.ledger) == [("messages", False), ("octets", False), ("digest", False)]
    (one, two) = found.ledger.differences
    assert one.source == sha256(b"4").hexdigest()
    assert (two.target, two.octets) == (None, 1)


async def test_the_window(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(4)
    await estate.wait_for(forwarded=4)
    middle = (await report(estate)).at_microseconds
    await asyncio.sleep(0.01)
    await estate.fill(3)
    await estate.wait_for(forwarded=7)
    assert (await report(estate)).ledger.target.messages == 7
    assert (await report(estate, until=middle)).ledger.target.messages == 4
    assert (await report(estate, since=middle)).ledger.target.messages == 3
    empty = await report(estate, since=middle, until=middle)
    assert (empty.ledger.target.messages, empty.ledger.target.digest, empty.equal) == (0, "0" * 64, True)


async def test_other_bridges_are_not_counted(estate: Estate) -> None:
    await estate.new.declare_queue("aside")
    await estate.old.declare_queue("second")
    await estate.bridge()
    await estate.bridge(
        "other", source={"broker": "old", "queue": "second"}, target={"broker": "new", "routing_key": "aside"}
    )
    await estate.fill(2)
    await estate.fill(3, queue="second")
    await estate.wait_for(forwarded=2)
    await estate.wait_for("other", forwarded=3)
    assert (await report(estate)).ledger.target.messages == 2


async def test_what_a_bridge_leaves_out_is_told(estate: Estate) -> None:
    await estate.bridge(selector="color = 'red'", unmatched="discard")
    await estate.fill(2, headers={"color": "red"})
    await estate.fill(3, headers={"color": "blue"})
    await estate.wait_for(forwarded=2, filtered=3)
    found = await report(estate)
    assert found.equal
    assert (found.filtered, found.looped, found.duplicates_dropped, found.reduced) == (3, 0, 0, 0)
    assert found.ledger.source.messages == 2


def happened(kind: EventKind, message_id: bytes, bridge: str = "b", body: bytes = b"x") -> Happened:
    return Happened(kind, message_id, 0, {"bridge": bridge}, len(body), sha256(body).digest())


def test_a_window_counts_each_message_once() -> None:
    one, two, three = new_id(), new_id(), new_id()
    window = LedgerPiles("b")
    window.add(
        [happened(EventKind.DEAD_LETTERED, one), happened(EventKind.FORWARDED, two), happened(EventKind.FORWARDED, two)]
    )
    window.add(
        [happened(EventKind.FORWARDED, one), happened(EventKind.DEAD_LETTERED, three), happened(EventKind.REDUCED, two)]
    )
    window.add([happened(EventKind.DUPLICATE_DROPPED, two), happened(EventKind.DUPLICATE_DROPPED, two)])
    window.add([happened(EventKind.FORWARDED, new_id(), bridge="c")])
    window.end()
    assert set(window.forwarded.known) == {id_text(one), id_text(two)}
    assert set(window.taken.known) == {id_text(one), id_text(two), id_text(three)}
    assert (window.forwarded.messages, window.taken.messages) == (2, 3)
    counts = [
        window.counts[kind]
        for kind in (EventKind.FORWARDED, EventKind.DEAD_LETTERED, EventKind.REDUCED, EventKind.DUPLICATE_DROPPED)
    ]
    assert counts == [2, 2, 1, 2]


def test_a_window_says_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "LEDGER_MAX", 3)
    window = LedgerPiles("b")
    window.add([happened(EventKind.FORWARDED, new_id()) for _ in range(5)])
    window.end()
    assert (window.forwarded.messages, window.forwarded.complete) == (3, False)


# ----------------------------------------------------------------------------------------------- the queues


@pytest.mark.parametrize(
    ("estate", "how"), [(("0-10", "0-9-1"), "leased"), (("0-10", "0-10"), "browsed")], indirect=["estate"]
)
async def test_a_mirror_has_the_same_on_both_sides(estate: Estate, how: str) -> None:
    await estate.bridge(mode="mirror")
    await estate.fill(20, headers={"color": "red", "n": 7}, type="order")
    await estate.wait_for(forwarded=20)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert found.equal, found.queues.differences[:2]
    assert numbers(found.queues) == ALL_EQUAL
    source, target = found.queues.source, found.queues.target
    assert (source.what, source.messages, target.what, target.messages) == ("in", 20, "out", 20)
    assert (source.how, target.how) == ("browsed", how)
    assert (await estate.depth(), await estate.depth("out", "new")) == (20, 20)
    assert {delivery.redelivered for delivery in await estate.take(20)} == {how == "leased"}


@MIRROR
async def test_missing_extra_and_changed(estate: Estate) -> None:
    await estate.bridge(mode="mirror")
    await estate.fill(6)
    await estate.wait_for(forwarded=6)
    await estate.bridges.pause("b")
    first, second, *rest = await estate.take(6)
    for delivery in rest:
        await estate.new.publish("", "out", delivery.message)
    await estate.new.publish("", "out", Message(b"other", second.message.properties))
    await estate.new.publish("", "out", Message(b"nobody's"))
    await estate.new.publish("", "out", rest[0].message)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert not found.equal
    assert found.ledger.equal
    assert (found.queues.missing, found.queues.changed, found.queues.extra) == (1, 1, 2)
    assert found.queues.copies == 1
    by_id = {each.id: each for each in found.queues.differences}
    assert set(by_id) == {"old/m-1", "old/m-2", "old/m-3", ""}
    missing, changed, copy, extra = (by_id[key] for key in ("old/m-1", "old/m-2", "old/m-3", ""))
    assert (missing.octets, missing.target) == (len(first.message.body), None)
    assert missing.source is not None
    assert changed.source is not None
    assert changed.target not in (None, changed.source)
    assert (copy.source, extra.source, extra.octets) == (None, None, len(b"nobody's"))


@MIRROR
async def test_messages_without_any_id_are_known_by_what_they_say(estate: Estate) -> None:
    await estate.bridge(mode="mirror")
    for _ in range(2):
        for body in (b"a", b"a", b"b"):
            await estate.old.publish("", "in", Message(body, Properties(delivery_mode=2)))
    await estate.wait_for(forwarded=6)
    await estate.bridges.pause("b")
    found = await report(estate, peek=True)
    assert found.queues is not None
    await estate.new.publish("", "out", Message(b"a", Properties(delivery_mode=2)))
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert (found.queues.missing, found.queues.changed, found.queues.extra) == (0, 0, 1)


@MIRROR
async def test_what_the_bridge_changes_is_no_change(estate: Estate) -> None:
    await estate.bridge(mode="mirror", set_headers={"from": "old", "n": 1}, remove_headers=["secret"], selector="n > 1")
    await estate.fill(5, headers={"n": 7, "secret": "s"})
    await estate.fill(4, headers={"n": 0, "secret": "s"})
    await estate.wait_for(forwarded=5)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert found.queues.equal, found.queues.differences[:2]
    assert found.queues.source.messages == 5


@BOTH_VERSIONS
async def test_a_move_is_compared_with_the_ledger(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(8, headers={"n": 7})
    await estate.wait_for(forwarded=8)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert found.equal
    assert (found.queues.source.what, found.queues.source.how) == ("forwarded", "ledger")
    (taken,) = await estate.new.fetch("out", 1)
    taken.settle(estate.accept)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert (found.queues.missing, found.queues.extra, found.queues.changed) == (1, 0, 0)
    assert found.queues.differences[0].source == sha256(taken.message.body).hexdigest()
    late = await report(estate, peek=True, since=found.at_microseconds)
    assert late.queues is not None
    assert (late.queues.missing, late.queues.extra) == (0, 7)


async def test_what_is_stripped_is_known_by_its_body(estate: Estate) -> None:
    await estate.bridge(strip=True)
    await estate.fill(5)
    await estate.wait_for(forwarded=5)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert found.queues.equal
    assert found.queues.source.digest != found.ledger.target.digest  # which knows the ids


async def test_a_mirror_with_a_queue_of_its_own(estate: Estate) -> None:
    """The bridge empties its own queue; the one that keeps the messages has to be named."""
    await estate.old.declare_exchange("orders", "fanout")
    await estate.old.bind_queue("in", "orders", "")
    await estate.bridge(
        mode="mirror", source={"broker": "old", "exchange": "orders"}, target={"broker": "new", "routing_key": "out"}
    )
    await estate.wait_for(state="running")
    for number in range(4):
        await estate.old.publish("orders", "k", Message(b"%d" % number, Properties(message_id=f"m-{number}")))
    await estate.wait_for(forwarded=4)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert (found.queues.source.how, found.queues.equal) == ("ledger", True)
    found = await report(estate, peek=True, source_queue="in")
    assert found.queues is not None
    assert (found.queues.source.how, found.queues.source.what, found.queues.equal) == ("leased", "in", True)


async def test_a_broker_that_cannot_show_messages(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken and given back."""
    await estate.bridge()
    await estate.fill(4)
    await estate.wait_for(forwarded=4)
    assert estate.new.capabilities is not None
    monkeypatch.setattr(estate.new.capabilities, "browse", False)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert (found.queues.target.how, found.queues.equal) == ("leased", True)
    deliveries = await estate.take(4)
    assert [delivery.message.properties.message_id for delivery in deliveries] == ["m-1", "m-2", "m-3", "m-4"]
    assert all(delivery.redelivered for delivery in deliveries)


async def test_no_more_than_the_limit_is_looked_at(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(9)
    await estate.wait_for(forwarded=9)
    found = await report(estate, peek=True, limit=5)
    assert found.queues is not None
    assert (found.queues.target.messages, found.queues.target.complete, found.queues.equal) == (5, False, False)
    assert (await report(estate, peek=True, limit=9)).equal


async def test_a_queue_that_others_empty_is_not_waited_for(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "IDLE", 0.05)
    await estate.bridge()
    await estate.fill(3)
    await estate.wait_for(forwarded=3)
    ask = estate.new.query_queue

    async def deeper(queue: str) -> Any:
        found = await ask(queue)
        return replace(found, message_count=found.message_count + 2)

    monkeypatch.setattr(estate.new, "query_queue", deeper)
    found = await report(estate, peek=True)
    assert found.queues is not None
    assert (found.queues.target.messages, found.queues.target.complete, found.equal) == (3, False, False)


async def test_an_empty_queue(estate: Estate) -> None:
    await estate.bridge()
    found = await report(estate, peek=True)
    assert found.equal
    assert found.queues is not None
    assert found.queues.target.digest == found.queues.source.digest == "0" * 64


@pytest.mark.parametrize(
    ("settings", "queue"),
    [
        ({"target": {"broker": "new", "routing_key": "out"}}, "out"),
        ({"target": {"broker": "new"}}, "in"),
        ({"target": {"broker": "new", "exchange": "x", "routing_key": "out"}}, None),
        ({"target": {"broker": "new", "routing_key": "{queue}"}}, None),
        ({"target": {"broker": "new"}, "source": {"broker": "old", "exchange": "x"}}, None),
    ],
)
def test_which_queue_the_target_is(settings: dict[str, Any], queue: str | None) -> None:
    route = BridgeRoute("b", bridge_settings(**settings), "b@1", own_id)
    if queue is not None:
        assert target_of(route) == queue
    else:
        with pytest.raises(EncodeError, match="target_queue: "):
            target_of(route)


async def test_what_cannot_be_compared(estate: Estate) -> None:
    with pytest.raises(NoSuchBridge):
        await report(estate)
    await estate.bridge(target={"broker": "new", "exchange": "amq.topic", "routing_key": "k"})
    with pytest.raises(EncodeError, match="target_queue"):
        await report(estate, peek=True)
    with pytest.raises(NotFound):
        await report(estate, peek=True, target_queue="missing")
    assert (await report(estate, peek=True, target_queue="out")).equal


async def test_one_at_a_time(estate: Estate) -> None:
    await estate.bridge()
    results = await asyncio.gather(report(estate), report(estate), return_exceptions=True)
    assert [type(result) for result in results] == [Report, Overloaded]
    assert (await report(estate)).equal


# ------------------------------------------------------------------------------------------------ piles


def pile(*messages: tuple[str, bytes]) -> Pile:
    found = Pile(1_000)
    for key, body in messages:
        found.add(key, sha256(body).digest(), len(body))
    return found


def differences(one: Pile, two: Pile) -> Any:
    return beside(one, one.side("a", "x", "browsed"), two, two.side("b", "y", "browsed"))


def test_the_digest_does_not_depend_on_the_order_and_counts_copies() -> None:
    assert pile(("1", b"a"), ("2", b"b")).digest == pile(("2", b"b"), ("1", b"a")).digest
    digests = {pile(*(("1", b"a"),) * count).digest for count in range(4)}
    digests |= {pile(("1", b"b")).digest, pile(("2", b"a")).digest, pile(("", b"a")).digest}
    assert len(digests) == 7


def test_copies_are_matched_one_by_one() -> None:
    found = differences(pile(("1", b"a"), ("1", b"b"), ("", b"x")), pile(("1", b"b"), ("1", b"c"), ("1", b"c")))
    assert (found.missing, found.extra, found.changed, found.equal) == (1, 1, 1, False)


def test_lists_are_bounded_and_counts_are_not() -> None:
    one = pile(*((f"{number}", b"a") for number in range(250)))
    two = pile(*((f"x{number}", b"a") for number in range(150)))
    found = differences(one, two)
    assert (found.missing, found.extra, len(found.differences)) == (250, 150, 200)
    assert found.rows[0].source == 250


def test_many_messages_without_an_id_take_no_square_of_time() -> None:
    one = pile(*(("", b"%d" % number) for number in range(1_000)))
    two = Pile(1_000)
    for known in reversed(one.known[""]):
        two.add("", *known)
    assert differences(one, two).equal
    assert one.nameless().digest == one.digest
    assert two.known[""][0] == SideMessage(sha256(b"999").digest(), 3)


def broken(octets: bytes) -> Properties:
    from gateway.errors import FrameSyntaxError

    raise FrameSyntaxError("no property list")


def test_octets_that_are_no_properties() -> None:
    message = Message(b"body", raw=RawProperties(b"\xff", "x", broken))
    assert compare.origin_of(message, "old") == ""
    assert compare._digest(message) == sha256(b"\xffbody").digest()
    settings = bridge_settings(set_headers={"a": 1})
    assert compare._as_sent(message, settings) is message


async def test_a_broker_that_delivers_late_is_waited_for() -> None:
    """Embedded brokers deliver before a consumer has begun."""
    shown: list[bytes] = []

    class Late:
        name = "late"
        capabilities = SimpleNamespace(browse=True)

        async def query_queue(self, queue: str) -> Any:
            return SimpleNamespace(message_count=2)

        async def consume(self, queue: str, prefetch: int, arrive: Any, *, acquired: bool) -> Any:
            for body in (b"1", b"2"):
                delivery = SimpleNamespace(message=Message(body, Properties()), is_used_up=False, settle=lambda _: None)
                asyncio.get_running_loop().call_later(0.05, arrive, delivery)
            return SimpleNamespace(cancel=done, close=done)

    async def done(**options: Any) -> None:
        return None

    late: Any = Late()
    pile = Pile(10)
    assert await compare.look_into(late, "q", pile, lambda delivery: shown.append(delivery.message.body)) == "browsed"
    assert (shown, pile.complete) == ([b"1", b"2"], True)

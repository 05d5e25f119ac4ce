"""A key for each message: published once, and every repeat is told so."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from time import time_ns
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import LedgerSettings
from gateway.core import Gateway, Publication, PublishOutcome
from gateway.core.publishing import envelopes, keyed_messages
from gateway.core.publishing.fingerprints import of_message
from gateway.core.publishing.publisher import describe
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EntriesRefused,
    GatewayError,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    OutcomeUnknown,
    Overloaded,
    PublishRefused,
    Unroutable,
)
from gateway.fidelity import annotation
from gateway.ledger import EndedKey, KeyLost, Ledger, MessageIds, New, OutboxEntry, Wanted, parse_id
from gateway.ledger.pending.keyring import Keyring
from gateway.ledger.pending.keys import ANSWERED
from gateway.observing.telemetry import Metrics
from gateway.upstreams import UpstreamState
from tests.audited import ON_PURPOSE
from tests.core.fakes import FakeUpstream
from tests.core.test_publishing import kinds
from tests.core.test_publishing import message as plain
from tests.ledgers import sqlite_ledger


def message(key: str, body: bytes = b"hello", **fields: Any) -> Publication:
    item = plain(body, **fields)
    item.key = key
    return item


def numbered(count: int, first: int = 0) -> list[Publication]:
    return [message(f"k{number}", b"%d" % number) for number in range(first, first + count)]


async def publish(gateway: Gateway, *messages: Publication, client: str = "alice", order: str | None = None) -> Any:
    return await gateway.publish("fake", "", messages, client, order)


def bodies(upstream: FakeUpstream) -> list[bytes]:
    return [sent.body for _, _, sent in upstream.published]


def errors(results: list[PublishOutcome]) -> list[type[GatewayError]]:
    return [type(result.error) for result in results if result.error is not None]


async def test_a_repeat_publishes_nothing(gateway: Gateway, upstream: FakeUpstream) -> None:
    first = await publish(gateway, *numbered(3))
    assert [result.key for result in first] == ["done"] * 3
    again = await publish(gateway, *numbered(4))
    assert [result.key for result in again] == ["repeated"] * 3 + ["done"]
    assert [result.id for result in again[:3]] == [result.id for result in first]
    assert [(result.routed, result.durable, result.resent) for result in again] == [(True, True, False)] * 4
    assert bodies(upstream) == [b"0", b"1", b"2", b"3"]
    for result in again:
        assert await kinds(gateway, result) == ["accepted", "confirmed"]


async def test_it_is_known_when_a_message_with_a_key_was_taken(gateway: Gateway, upstream: FakeUpstream) -> None:
    before = time_ns() // 1000
    (result,) = await publish(gateway, message("k"))
    timeline = await gateway.timeline(result.id)
    taken, confirmed = timeline.events
    assert before <= timeline.message.at == taken.at <= confirmed.at


async def test_a_final_error_is_repeated_too(gateway: Gateway, upstream: FakeUpstream) -> None:
    nowhere = {"key": "nowhere", "mandatory": True}
    item = plain(b"1", **nowhere)
    item.key = "k"
    [first] = await publish(gateway, item)
    again = plain(b"1", **nowhere)
    again.key = "k"
    [second] = await publish(gateway, again)
    assert [type(first.error), type(second.error)] == [Unroutable, Unroutable]
    assert (first.key, second.key, str(second.error)) == ("done", "repeated", str(first.error))
    assert len(upstream.published) == 1


async def test_keys_are_of_their_client(gateway: Gateway, upstream: FakeUpstream) -> None:
    await publish(gateway, message("k"))
    await publish(gateway, message("k"), client="bob")
    assert len(upstream.published) == 2


async def test_another_message_under_the_same_key(gateway: Gateway, upstream: FakeUpstream) -> None:
    results = await publish(gateway, message("k", b"1"), message("k", b"2"), message("k", b"1"))
    assert [(result.key, type(result.error)) for result in results] == [
        ("done", type(None)),
        ("", KeyReused),
        ("repeated", type(None)),
    ]
    assert errors(await publish(gateway, message("k", b"2"))) == [KeyReused]
    assert bodies(upstream) == [b"1"]


def test_what_tells_messages_apart() -> None:
    """Where it goes, and what it is; nothing can be moved from one to the other."""
    same = of_message("fake", "e", plain(key="k"))
    assert same == of_message("fake", "e", plain(key="k"))
    others = {
        of_message("fake2", "e", plain(key="k")),
        of_message("fake", "ek", plain(key="")),
        of_message("fake", "e", plain(key="k2")),
        of_message("fake", "e", plain(b"hello2", key="k")),
        of_message("fake", "e", plain(key="k", mandatory=False)),
        of_message("fake", "\udcff", plain(key="k")),
    }
    assert len(others) == 6
    assert same not in others


def test_the_order_of_headers_tells_nothing_apart() -> None:
    def digest(headers: dict[str, Any]) -> bytes:
        return of_message("fake", "e", Publication("k", Message(b"", Properties(headers=headers))))

    assert digest({"a": 1, "b": {"c": [{"x": 1, "y": 2}], "d": 2}}) == digest(
        {"b": {"d": 2, "c": [{"y": 2, "x": 1}]}, "a": 1}
    )
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


@pytest.mark.parametrize("mandatory", [None, True, False])
async def test_a_key_of_an_earlier_release(
    gateway: Gateway, upstream: FakeUpstream, ledger: Ledger, mandatory: bool | None
) -> None:
    """It holds a digest of the envelope, with ``mandatory`` false unless given."""

    def repeat(given: bool | None, body: bytes = b"hello") -> Publication:
        item = message("k", body)
        item.message.properties.headers = {"b": 1, "a": 2}
        item.is_mandatory_given = given is not None
        item.mandatory = given is not False
        return item

    item = repeat(mandatory)
    digest = sha256()
    for octets in (b"fake", b"", b"orders"):
        digest.update(len(octets).to_bytes(4, "big") + octets)
    digest.update(envelopes.encode(item.message, mandatory is True))
    (claimed,) = await ledger.keyring.claim("alice", [Wanted("k", digest.digest(), [])])
    assert claimed == New()
    body = msgspec.json.encode(["01a1fdfb-a830-7000-9cc7-b7a64e53b1b6", True, True, False, "", ""])
    assert await ledger.keyring.end("alice", [EndedKey("k", ANSWERED, (), 1, body)]) == [None]
    (result,) = await publish(gateway, item)
    assert (result.key, result.id) == ("repeated", "01a1fdfb-a830-7000-9cc7-b7a64e53b1b6")
    assert errors(await publish(gateway, repeat(mandatory, b"other"))) == [KeyReused]
    assert errors(await publish(gateway, repeat(mandatory is not True))) == [KeyReused]
    assert not upstream.published


async def test_fifty_at_once_publish_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    """All but one wait for the first."""
    found = await asyncio.gather(*(publish(gateway, *numbered(10)) for _ in range(50)))
    told = [result.key for results in found for result in results]
    assert (told.count("done"), told.count("repeated")) == (10, 490)
    assert len(upstream.published) == 10


async def test_a_caller_that_gives_up_lets_a_repeat_join(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.held = []
    first = asyncio.create_task(publish(gateway, *numbered(2)))
    while not upstream.held:
        await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    repeat = asyncio.create_task(publish(gateway, *numbered(2)))
    await asyncio.sleep(0.01)
    upstream.confirm_held()
    assert [result.key for result in await repeat] == ["repeated"] * 2
    assert len(upstream.published) == 2


async def test_a_late_confirm_holds_up_nobody(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.confirm_timeout = 0.3
    publish_nowait = upstream.publish_nowait
    held: list[Any] = []

    def hold_the_second(*args: Any, **more: Any) -> Any:
        upstream.held = held if args[2].body == b"1" else None
        return publish_nowait(*args, **more)

    upstream.publish_nowait = hold_the_second  # type: ignore[method-assign]
    results = await publish(gateway, *numbered(3))
    assert [result.key for result in results] == ["done", "", "done"]
    assert errors(results) == [OutcomeUnknown]
    assert [result.key for result in await publish(gateway, *numbered(3))] == ["repeated", "", "repeated"]
    gateway.confirm_timeout = 5.0
    repeat = asyncio.create_task(publish(gateway, *numbered(3)))
    await asyncio.sleep(0.01)
    upstream.held = held
    upstream.confirm_held()
    joined = await repeat
    assert [result.key for result in joined] == ["repeated"] * 3
    assert joined[1].id == results[1].id
    assert len(upstream.published) == 3


async def test_an_unknown_outcome_is_sent_again_with_the_same_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = OutcomeUnknown("the channel died")
    first = await publish(gateway, *numbered(2))
    assert errors(first) == [OutcomeUnknown] * 2
    upstream.failure = None
    second = await publish(gateway, *numbered(2))
    assert [(result.id, result.key, result.resent) for result in second] == [
        (result.id, "done", True) for result in first
    ]
    assert await kinds(gateway, second[0]) == ["accepted", "unknown", "resent", "confirmed"]
    assert all(annotation(sent.properties, "resent") == "1" for _, _, sent in upstream.published[-2:])
    third = await publish(gateway, *numbered(2))
    assert [(result.key, result.resent) for result in third] == [("repeated", True)] * 2


async def test_a_repeat_that_cannot_be_sent_stays_unknown(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = OutcomeUnknown("the channel died")
    [first] = await publish(gateway, message("k"))
    upstream.state, upstream.failure = UpstreamState.DOWN, None
    [second] = await publish(gateway, message("k"))
    assert (second.id, errors([second])) == (first.id, [OutcomeUnknown])
    upstream.state = UpstreamState.UP
    [third] = await publish(gateway, message("k"))
    assert (third.id, third.key, third.resent) == (first.id, "done", True)


@pytest.mark.parametrize("failure", [BrokerUnavailable("blocked"), PublishRefused("the queue is full")])
async def test_what_was_not_taken_frees_its_key(
    gateway: Gateway, upstream: FakeUpstream, failure: GatewayError
) -> None:
    upstream.failure = failure
    [first] = await publish(gateway, message("k", b"1"))
    assert (first.key, errors([first])) == ("", [type(failure)])
    upstream.failure = None
    [second] = await publish(gateway, message("k", b"2"))
    assert (second.key, second.error) == ("done", None)


async def test_messages_without_a_key_keep_their_place(gateway: Gateway, upstream: FakeUpstream) -> None:
    mixed = [plain(b"a"), message("1", b"b"), plain(b"c"), plain(b"d"), message("2", b"e")]
    results = await publish(gateway, *mixed)
    assert [result.key for result in results] == ["", "done", "", "", "done"]
    assert bodies(upstream) == [b"a", b"b", b"c", b"d", b"e"]
    for result in results:
        assert await kinds(gateway, result) == ["accepted", "confirmed"]
    again = await publish(gateway, plain(b"a"), message("1", b"b"))
    assert [result.key for result in again] == ["", "repeated"]
    assert bodies(upstream)[5:] == [b"a"]


async def test_calls_of_one_order_do_not_overtake(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has to wait for its claim, and the last for nothing of its own."""
    claim, slow = Keyring.claim, asyncio.Event()

    async def first_slowly(self: Keyring, client: str, wanted: Any) -> Any:
        if wanted[0].key == "k0":
            await slow.wait()
        return await claim(self, client, wanted)

    monkeypatch.setattr(Keyring, "claim", first_slowly)
    calls = [
        asyncio.create_task(publish(gateway, *some, order="o")) for some in (numbered(2), numbered(2, 2), [plain(b"4")])
    ]
    await asyncio.sleep(0.05)
    assert not upstream.published
    slow.set()
    await asyncio.gather(*calls)
    assert bodies(upstream) == [b"0", b"1", b"2", b"3", b"4"]


async def test_calls_of_one_order_do_not_wait_for_confirms(gateway: Gateway, upstream: FakeUpstream) -> None:
    """A call waits until the one before has sent its messages, and no longer."""
    upstream.held = []
    calls = []
    for number in range(3):
        calls.append(asyncio.create_task(publish(gateway, *numbered(2, 2 * number), order="o")))
        async with asyncio.timeout(10):
            while len(upstream.published) < 2 * (number + 1):
                await asyncio.sleep(0.005)
    assert not any(call.done() for call in calls)
    upstream.confirm_held()
    assert [result.key for results in await asyncio.gather(*calls) for result in results] == ["done"] * 6
    assert bodies(upstream) == [b"%d" % number for number in range(6)]


async def test_a_ledger_that_is_away_promises_nothing(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Keyring.claim

    async def one_of_two(self: Keyring, client: str, wanted: Any) -> Any:
        found = await claim(self, client, wanted[1:])
        return [EntriesRefused({0: "a bad row"}), *found]

    monkeypatch.setattr(Keyring, "claim", one_of_two)
    results = await publish(gateway, *numbered(2))
    assert errors(results) == [EntriesRefused]
    assert bodies(upstream) == [b"1"]

    async def away(*args: Any) -> Any:
        raise LedgerUnavailable("closed")

    monkeypatch.setattr(Keyring, "claim", away)
    assert errors(await publish(gateway, *numbered(2, 2))) == [LedgerUnavailable] * 2
    assert len(upstream.published) == 1


async def test_a_claim_that_may_have_happened_has_no_outcome(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Keyring.claim

    async def cut_off(self: Keyring, client: str, wanted: Any) -> Any:
        return [CommitUnknown("cut off"), *(await claim(self, client, wanted[1:]))]

    monkeypatch.setattr(Keyring, "claim", cut_off)
    results = await publish(gateway, *numbered(2))
    assert errors(results) == [OutcomeUnknown]
    assert [result.key for result in results] == ["", "done"]
    assert results[0].id
    assert bodies(upstream) == [b"1"]


async def test_a_claim_that_takes_too_long_is_given_up(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.confirm_timeout = 0.2
    claim, slow = Keyring.claim, asyncio.Event()

    async def slowly(self: Keyring, client: str, wanted: Any) -> Any:
        await slow.wait()
        return await claim(self, client, wanted)

    monkeypatch.setattr(Keyring, "claim", slowly)
    found = await publish(gateway, *numbered(2))
    assert errors(found) == [LedgerUnavailable] * 2
    assert "nothing was sent" in str(found[0].error)
    slow.set()
    gateway.confirm_timeout = 5.0
    assert [result.key for result in await publish(gateway, *numbered(2))] == ["done"] * 2
    assert len(upstream.published) == 2


async def test_an_outcome_waits_until_the_ledger_is_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of it was written; what was not is tried again, and what is another's is let go."""
    end = Keyring.end
    calls: list[list[str]] = []

    async def half(self: Keyring, client: str, ended: Any) -> Any:
        calls.append([each.key for each in ended])
        match len(calls):
            case 1:
                raise LedgerUnavailable("locked")
            case 2:
                return [LedgerUnavailable("locked"), *(await end(self, client, ended[1:]))]
            case 3:
                return [EntriesRefused({0: "a bad row"})]
            case _:
                assert ended[0].entries == ()
                await end(self, client, ended)
                return [KeyLost("taken over")]

    monkeypatch.setattr(Keyring, "end", half)
    results = await publish(gateway, *numbered(2))
    assert [result.key for result in results] == ["done"] * 2
    assert calls == [["k0", "k1"], ["k0", "k1"], ["k0"], ["k0"]]
    ON_PURPOSE.add(parse_id(results[0].id))  # its outcome could not be written
    assert [result.key for result in await publish(gateway, *numbered(2))] == ["repeated"] * 2


async def test_a_fault_while_it_is_sent_lets_the_keys_go(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(upstream, "publish_nowait", fail)
        first = await publish(gateway, *numbered(2), plain(b"x"))
    assert errors(first) == [OutcomeUnknown] * 3
    assert await kinds(gateway, first[0]) == ["accepted", "unknown"]
    again = await publish(gateway, *numbered(2))
    assert [(result.id, result.key) for result in again] == [(result.id, "done") for result in first[:2]]


async def test_a_key_that_another_process_works_on(gateway: Gateway, upstream: FakeUpstream, ledger: Ledger) -> None:
    item = message("k")
    wanted = Wanted("k", of_message("fake", "", item), [_intent(item)])
    assert await ledger.keyring.claim("alice", [wanted]) == [New()]
    assert errors(await publish(gateway, message("k"))) == [KeyRunning]
    assert not upstream.published


async def test_too_many_under_way(gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_messages, "UNDER_WAY_MAX", 3)
    upstream.held = []
    first = asyncio.create_task(publish(gateway, *numbered(2)))
    while not upstream.held:
        await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await publish(gateway, *numbered(2, 2))
    upstream.confirm_held()
    await first
    upstream.held = None
    assert [result.key for result in await publish(gateway, *numbered(2, 2))] == ["done"] * 2


async def test_what_a_dead_process_left_is_sent_again_and_told(tmp_path: Any) -> None:
    """As many keys as a stream has under way. Those of the dead process are sent once more, marked; a repeat publishes
    none of them."""
    url = sqlite_ledger(tmp_path)
    dead = await Ledger.open(url, LedgerSettings(), owner="dead")
    items = numbered(700)
    wanted = [
        Wanted(
            item.key,
            of_message("fake", "", item),
            [_intent(item)],
        )
        for item in items
    ]
    assert await dead.keyring.claim("alice", wanted) == [New()] * 700
    await dead.close()
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    async with asyncio.timeout(10):
        while len(upstream.published) < 700:
            await asyncio.sleep(0.01)
        while errors(results := await publish(gateway, *numbered(701))):  # some are not let go of yet
            await asyncio.sleep(0.01)
    assert [result.key for result in results[:700]] == ["repeated"] * 700
    assert all(result.resent for result in results[:700])
    assert sorted(bodies(upstream), key=int) == [b"%d" % number for number in range(701)]
    marked = [annotation(sent.properties, "resent") for _, _, sent in upstream.published]
    assert marked.count("1") == 700
    assert await kinds(gateway, results[0]) == ["accepted", "resent", "confirmed"]
    await gateway.close(1.0)
    await ledger.close()


def _intent(item: Publication) -> OutboxEntry:
    return OutboxEntry(
        message_id=MessageIds()(),
        broker="fake",
        exchange="",
        routing_key=item.routing_key,
        payload=envelopes.encode(item.message, False),
        message=describe("fake", "", "", item, "alice", "http"),
    )

"""Idempotency-Key: one publish, one answer."""

from __future__ import annotations

import asyncio
import logging
from time import time_ns
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import LedgerSettings
from gateway.core import Gateway, KeyedAnswer, KeyedRequest, Publication, PublishOutcome
from gateway.core.publishing import envelopes
from gateway.core.publishing.keys import finality
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    OutcomeUnknown,
    PublishRefused,
    Unroutable,
)
from gateway.fidelity import annotation
from gateway.ledger import KeyLost, Ledger, New, NewMessage, OutboxEntry
from gateway.observing.telemetry import Metrics
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream
from tests.core.test_publishing import kinds, message

REQUEST = KeyedRequest("alice", "key-1", b"f" * 32)


def render(results: list[PublishOutcome]) -> KeyedAnswer:
    errors = [type(result.error).__name__ for result in results if result.error is not None]
    resent = any(result.resent for result in results)
    return KeyedAnswer(504 if errors else 200, f"{[result.id for result in results]} {errors} {resent}".encode())


async def publish(gateway: Gateway, request: KeyedRequest = REQUEST, *messages: Publication) -> KeyedAnswer:
    return await gateway.publish_keyed(request, "fake", "", messages or [message()], render)


async def test_a_repeat_gets_the_first_answer(gateway: Gateway, upstream: FakeUpstream) -> None:
    first = await publish(gateway)
    again = await publish(gateway)
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    assert not first.replayed
    assert len(upstream.published) == 1


async def test_it_is_known_when_a_keyed_publish_was_taken(gateway: Gateway, upstream: FakeUpstream) -> None:
    before = time_ns() // 1000
    answer = await publish(gateway)
    timeline = await gateway.timeline(answer.body.decode().split("'")[1])
    taken, confirmed = timeline.events
    assert before <= timeline.message.at == taken.at <= confirmed.at


async def test_another_body_is_refused(gateway: Gateway, upstream: FakeUpstream) -> None:
    await publish(gateway)
    with pytest.raises(KeyReused):
        await publish(gateway, KeyedRequest("alice", "key-1", b"g" * 32))
    await publish(gateway, KeyedRequest("bob", "key-1", b"g" * 32))
    assert len(upstream.published) == 2


async def test_fifty_in_parallel_publish_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    outcomes = await asyncio.gather(*(publish(gateway) for _ in range(50)), return_exceptions=True)
    assert len(upstream.published) == 1
    assert sum(isinstance(outcome, KeyedAnswer) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, KeyRunning) for outcome in outcomes) == 49


async def test_a_repeat_joins_a_publish_that_is_late(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.confirm_timeout = 0.3
    upstream.held = []
    late = await publish(gateway)
    assert late.status == 504
    with pytest.raises(KeyReused):
        await publish(gateway, KeyedRequest("alice", "key-1", b"g" * 32))
    gateway.confirm_timeout = 5.0
    repeat = asyncio.create_task(publish(gateway))
    await asyncio.sleep(0.01)
    upstream.confirm_held()
    answer = await repeat
    assert answer.status == 200
    assert answer.body.split()[0] == late.body.split()[0], "the caller was told the id that it has"
    assert len(upstream.published) == 1
    assert (await publish(gateway)).replayed


async def test_a_caller_that_gives_up_lets_a_repeat_join(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.held = []
    first = asyncio.create_task(publish(gateway))
    while not upstream.held:
        await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    repeat = asyncio.create_task(publish(gateway))
    await asyncio.sleep(0.01)
    upstream.confirm_held()
    assert (await repeat).status == 200
    assert len(upstream.published) == 1


async def test_an_unknown_outcome_is_sent_again_with_the_same_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = OutcomeUnknown("the channel died")
    first = await publish(gateway)
    assert first.status == 504
    upstream.failure = None
    again = await publish(gateway, REQUEST, message(b"hello"))
    identity = first.body.split()[0]
    assert again.body.split()[0] == identity
    assert (again.status, again.body.endswith(b"True")) == (200, True)
    assert await kinds(gateway, PublishOutcome(identity.decode()[2:-2])) == [
        "accepted",
        "unknown",
        "resent",
        "confirmed",
    ]
    assert (await publish(gateway)).replayed
    [(_, _, sent)] = upstream.published
    assert annotation(sent.properties, "resent") == "1", "who receives it can tell that it may be a copy"


async def test_a_repeat_that_is_late_as_well_is_told_the_first_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = OutcomeUnknown("the channel died")
    first = await publish(gateway)
    upstream.failure = None
    upstream.held = []
    gateway.confirm_timeout = 0.3
    late = await publish(gateway)
    assert (late.status, late.body.split()[0]) == (504, first.body.split()[0])
    upstream.confirm_held()


async def test_of_a_batch_only_what_is_unknown_is_sent_again(gateway: Gateway, upstream: FakeUpstream) -> None:
    publish_nowait = upstream.publish_nowait

    def fail_the_second(*args: Any, **more: Any) -> Any:
        upstream.failure = OutcomeUnknown("died") if args[2].body == b"2" else None
        return publish_nowait(*args, **more)

    upstream.publish_nowait = fail_the_second  # type: ignore[method-assign]
    batch = [message(b"1"), message(b"2"), message(b"3", key="nowhere", mandatory=True)]
    assert (await publish(gateway, REQUEST, *batch)).status == 504
    upstream.publish_nowait = publish_nowait  # type: ignore[method-assign]
    upstream.failure = None
    again = await publish(gateway, REQUEST, *(message(item.message.body) for item in batch))
    assert b"['Unroutable']" in again.body
    assert [sent.body for _, _, sent in upstream.published] == [b"1", b"3", b"2"]


async def test_503_frees_the_key(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    assert (await publish(gateway)).status == 504
    upstream.state = UpstreamState.UP
    assert not (await publish(gateway, KeyedRequest("alice", "key-1", b"g" * 32))).replayed
    assert len(upstream.published) == 1


async def test_a_repeat_that_cannot_be_sent_leaves_the_first_attempt_unknown(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """The first attempt may have arrived: the key is not free, and no later repeat gets other ids."""
    upstream.failure = OutcomeUnknown("the channel died")
    first = await publish(gateway)
    identity = first.body.split()[0]
    for state, failure in (
        (UpstreamState.DOWN, None),
        (UpstreamState.UP, PublishRefused("the queue is full")),
    ):
        upstream.state, upstream.failure = state, failure
        second = await publish(gateway)
        assert second.body.split()[0] == identity
        assert b"OutcomeUnknown" in second.body
    upstream.failure = None
    third = await publish(gateway)
    assert third.body.split()[0] == identity
    assert (third.status, third.body.endswith(b"True")) == (200, True)
    assert (await kinds(gateway, PublishOutcome(identity.decode()[2:-2])))[-1] == "confirmed"
    assert "not_sent" not in await kinds(gateway, PublishOutcome(identity.decode()[2:-2]))


async def test_a_key_that_was_taken_over_is_let_go(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt at keeping the answer will ever succeed."""
    calls = []

    async def taken(self: Ledger, *args: Any, **more: Any) -> None:
        calls.append(args)
        raise KeyLost("taken over")

    monkeypatch.setattr(Ledger, "finish_key", taken)
    async with asyncio.timeout(30):
        assert (await publish(gateway)).status == 200
    assert len(calls) == 1


async def test_a_repeat_waits_for_a_timeline_that_cannot_be_read(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_nowait = upstream.publish_nowait

    def fail_the_second(*args: Any, **more: Any) -> Any:
        upstream.failure = OutcomeUnknown("died") if args[2].body == b"2" else None
        return publish_nowait(*args, **more)

    upstream.publish_nowait = fail_the_second  # type: ignore[method-assign]
    batch = [message(b"1"), message(b"2")]
    assert (await publish(gateway, REQUEST, *batch)).status == 504
    upstream.publish_nowait = publish_nowait  # type: ignore[method-assign]
    upstream.failure = None
    timeline = Ledger.timeline
    failures = [LedgerUnavailable("away")]

    async def sometimes(self: Ledger, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await timeline(self, *args)

    monkeypatch.setattr(Ledger, "timeline", sometimes)
    assert (await publish(gateway, REQUEST, *batch)).status == 200
    assert not failures
    assert (await publish(gateway, REQUEST, *batch)).replayed


async def test_a_fault_after_the_claim_lets_the_key_go(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Otherwise it would be running, and answered with 409, for as long as the process lives."""

    def fail(results: list[PublishOutcome]) -> KeyedAnswer:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError):
        await gateway.publish_keyed(REQUEST, "fake", "", [message()], fail)
    again = await publish(gateway)
    assert again.status == 200
    assert len(upstream.published) == 1


async def test_a_fault_while_it_is_sent_leaves_nothing_accepted(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("a fault of ours")

    batch = [message(b"1"), message(b"2")]
    with monkeypatch.context() as patch:
        patch.setattr(upstream, "publish_nowait", fail)
        with pytest.raises(RuntimeError):
            await publish(gateway, REQUEST, *batch)
    for item in batch:
        assert await kinds(gateway, PublishOutcome(item.text)) == ["accepted", "unknown"]
    assert (await publish(gateway, REQUEST, *batch)).status == 200


async def test_a_ledger_that_is_away_promises_nothing(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim_key(*args: Any) -> Any:
        raise LedgerUnavailable("locked")

    monkeypatch.setattr(Ledger, "claim_key", claim_key)
    with pytest.raises(LedgerUnavailable):
        await publish(gateway)
    assert not upstream.published


async def test_a_claim_that_may_have_happened_has_no_outcome(
    gateway: Gateway, upstream: FakeUpstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has, another process or the next start sends the message; a repeat finds out."""

    async def cut_off(*args: Any) -> Any:
        raise CommitUnknown("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "claim_key", cut_off)
        answer = await publish(gateway)
    assert answer.status == 504
    assert b"OutcomeUnknown" in answer.body
    assert upstream.published == []
    assert (await publish(gateway)).status == 200
    assert len(upstream.published) == 1


async def test_nothing_is_sent_before_the_ledger_knows_the_key(
    gateway: Gateway, upstream: FakeUpstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that takes too long is given up: the caller is told that nothing was sent, and that stays true."""
    gateway.confirm_timeout = 0.3
    claim, slow = ledger.claim_key, asyncio.Event()

    async def claim_slowly(*args: Any) -> Any:
        await slow.wait()
        return await claim(*args)

    monkeypatch.setattr(ledger, "claim_key", claim_slowly)
    with pytest.raises(LedgerUnavailable, match="nothing was sent"):
        await publish(gateway)
    slow.set()
    await asyncio.sleep(0.02)
    assert upstream.published == []
    gateway.confirm_timeout = 5.0
    assert (await publish(gateway)).status == 200  # the key is free
    assert len(upstream.published) == 1


async def test_who_joins_a_claim_that_is_given_up_is_told_so_too(
    gateway: Gateway, upstream: FakeUpstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def claim_never(*args: Any) -> Any:
        await never.wait()

    monkeypatch.setattr(ledger, "claim_key", claim_never)
    gone = asyncio.create_task(publish(gateway))
    await asyncio.sleep(0.01)
    gone.cancel()
    gateway.confirm_timeout = 0.3
    results = await asyncio.gather(publish(gateway), publish(gateway), return_exceptions=True)
    assert [type(result) for result in results] == [LedgerUnavailable, LedgerUnavailable]
    assert upstream.published == []


async def test_an_answer_waits_until_the_ledger_is_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish_key = Ledger.finish_key
    failures = [LedgerUnavailable("locked"), LedgerUnavailable("locked")]

    async def sometimes(self: Ledger, *args: Any, **more: Any) -> None:
        if failures:
            raise failures.pop()
        await finish_key(self, *args, **more)

    monkeypatch.setattr(Ledger, "finish_key", sometimes)
    assert (await publish(gateway)).status == 200
    assert not failures
    assert (await publish(gateway)).replayed
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []  # the ledger itself says it


async def test_what_a_dead_process_left_is_sent_again_at_start(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    dead = await Ledger.open(url, LedgerSettings(), owner="dead", migrate=True)
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    # claimed by a process that ended before the broker answered
    intent = _intent()
    gone = OutboxEntry(
        message_id=bytes.fromhex("0198" + "00" * 4 + "7001" + "80" + "00" * 7),
        broker="gone",
        exchange="",
        routing_key="orders",
        payload=intent.payload,
        message=intent.message,
    )
    assert isinstance(await dead.claim_key("alice", "key-1", b"f" * 32, [intent]), New)
    assert isinstance(await dead.claim_key("alice", "key-2", b"f" * 32, [gone]), New)
    await dead.close()
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    async with asyncio.timeout(10):
        while (await gateway.timeline("01980000-0000-7001-8000-000000000000")).message.state != "unknown":
            await asyncio.sleep(0.01)
        while not upstream.published:
            await asyncio.sleep(0.01)
    await gateway.close(1.0)
    assert [sent.body for _, _, sent in upstream.published] == [b"promised"]
    result = PublishOutcome("01980000-0000-7000-8000-000000000000")
    assert await kinds(gateway, result) == ["accepted", "resent", "confirmed"]
    again = await publish(gateway)
    assert b"01980000-0000-7000-8000-000000000000" in again.body
    assert len(upstream.published) == 1
    await ledger.close()


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([None], "final"),
        ([Unroutable("x")], "final"),
        ([BrokerUnavailable("x")], "free"),
        ([PublishRefused("x")], "free"),
        ([None, BrokerUnavailable("x")], "final"),
        ([None, OutcomeUnknown("x")], "unknown"),
    ],
)
def test_finality(errors: list[Any], expected: str) -> None:
    assert finality([PublishOutcome("x", error) for error in errors]) == expected


async def test_what_is_resolved_waits_for_the_ledger(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was taken over and not let go again would be running for as long as the process lives."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    dead = await Ledger.open(url, LedgerSettings(), owner="dead", migrate=True)
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    assert isinstance(await dead.claim_key("alice", "key-1", b"f" * 32, [_intent()]), New)
    await dead.close()
    unknown_key = Ledger.unknown_key
    failures = [LedgerUnavailable("locked")]

    async def sometimes(self: Ledger, *args: Any, **more: Any) -> None:
        if failures:
            raise failures.pop()
        await unknown_key(self, *args, **more)

    monkeypatch.setattr(Ledger, "unknown_key", sometimes)
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    result = PublishOutcome("01980000-0000-7000-8000-000000000000")
    async with asyncio.timeout(30):
        while await kinds(gateway, result) != ["accepted", "resent", "confirmed"]:
            await asyncio.sleep(0.01)
    assert (await publish(gateway)).status == 200
    assert len(upstream.published) == 1
    await gateway.close(1.0)
    await ledger.close()


def _intent() -> OutboxEntry:
    return OutboxEntry(
        message_id=bytes.fromhex("0198" + "00" * 4 + "7000" + "80" + "00" * 7),
        broker="fake",
        exchange="",
        routing_key="orders",
        payload=envelopes.encode(Message(b"promised", Properties(delivery_mode=2)), False),
        message=NewMessage(
            broker="fake", version="", exchange="", routing_key="orders", size=8, sha256=b"x" * 32, origin="http"
        ),
    )


async def test_a_request_that_the_end_of_the_gateway_cuts_off_may_have_been_sent(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.held = []
    caller = asyncio.create_task(publish(gateway))
    async with asyncio.timeout(5):
        while not upstream.held:
            await asyncio.sleep(0.005)
    await gateway._keyed.close(0.0)
    answer = await caller
    assert answer.status == 504
    assert len(upstream.published) == 1

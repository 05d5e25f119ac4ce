"""Publishes of later: promised in one commit, sent when due, and never lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
from msgspec import structs

from gateway.amqp.message import Message, Properties
from gateway.budgets import ShareHolder
from gateway.config import LedgerSettings, RetentionSettings
from gateway.core import Gateway, KeyedAnswer, KeyedRequest, Publication, PublishOutcome
from gateway.core.publishing import envelopes
from gateway.core.publishing import sending as module
from gateway.core.publishing.outbox import moment
from gateway.core.sources.stored import open_envelope
from gateway.errors import (
    CommitUnknown,
    KeyReused,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchMessage,
    OutcomeUnknown,
    PublishRefused,
    StateError,
)
from gateway.ledger import EventKind, Ledger, parse_id
from gateway.ledger.pending.outbox import OutboxStore as LedgerOutbox
from gateway.ledger.writing.calls import Put
from gateway.observing.telemetry import Metrics
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream


def message(body: bytes = b"hello", *, key: str = "orders", not_before: int | None = None, **more: Any) -> Publication:
    outgoing = Publication(key, Message(body, Properties(delivery_mode=2)), **more)
    outgoing.not_before = not_before
    return outgoing


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def kinds(gateway: Gateway, result: PublishOutcome) -> list[EventKind]:
    return [event.kind for event in (await gateway.timeline(result.id)).events]


async def settled(gateway: Gateway, results: list[PublishOutcome]) -> None:
    """Until the ledger holds none of them any more."""
    async with asyncio.timeout(60):
        for result in results:
            while await gateway.ledger.outbox.get(parse_id(result.id)) is not None:
                await asyncio.sleep(0.005)


async def row_of(gateway: Gateway, result: PublishOutcome, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(60):
        while True:
            row = await gateway.ledger.outbox.get(parse_id(result.id))
            if row is not None and condition(row):
                return row
            await asyncio.sleep(0.005)


def bodies(upstream: FakeUpstream) -> list[bytes]:
    return [sent.body for _, _, sent in upstream.published]


def hasten(gateway: Gateway) -> None:
    """Pauses are over."""
    for lane in gateway.outbox.sender._lanes.values():
        lane.not_before = 0.0
    gateway.outbox.sender._wake.set()


async def test_a_message_is_promised_and_then_sent(gateway: Gateway, upstream: FakeUpstream) -> None:
    results = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"1"), message(b"2")], "me")
    assert all(result.scheduled and result.error is None for result in results)
    await settled(gateway, results)
    assert bodies(upstream) == [b"1", b"2"]
    assert await kinds(gateway, results[0]) == [EventKind.SCHEDULED, EventKind.CONFIRMED]
    assert (await gateway.timeline(results[0].id)).message.client == "me"


async def test_order_is_kept_over_a_thousand_and_over_exchanges(gateway: Gateway, upstream: FakeUpstream) -> None:
    await upstream.declare_exchange("shop")
    await upstream.bind_queue("orders", "shop", "orders")
    numbers = [b"%d" % number for number in range(1_200)]
    first = await gateway.outbox.put(gateway.broker("fake"), "", [message(body) for body in numbers], "")
    second = await gateway.outbox.put(gateway.broker("fake"), "shop", [message(b"shop")], "")
    await settled(gateway, [*first, *second])
    assert [body for body in bodies(upstream) if body != b"shop"] == numbers


async def test_not_before_is_waited_for(gateway: Gateway, upstream: FakeUpstream) -> None:
    due = int((time() + 0.4) * 1e6)
    late, now = await gateway.outbox.put(
        gateway.broker("fake"), "", [message(b"late", not_before=due), message(b"now")], ""
    )
    await settled(gateway, [now])
    assert bodies(upstream) == [b"now"]
    found = await gateway.outbox.get(parse_id(late.id))
    assert found.row is not None
    assert found.row.due_at >= due
    assert not found.waits_for
    assert found.row.reason == {"not_before": moment(due)}
    await settled(gateway, [late])
    assert bodies(upstream) == [b"now", b"late"]
    assert time() * 1e6 >= due


async def test_a_broker_that_is_away_is_waited_for_and_costs_no_attempt(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.state = UpstreamState.DOWN
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await asyncio.sleep(0.05)
    found = await gateway.outbox.get(parse_id(result.id))
    assert found.row is not None
    assert found.row.attempt == 0
    assert found.waits_for == "broker fake: down"
    upstream.state = UpstreamState.UP
    for call in upstream.on_state:
        call(upstream)
    await settled(gateway, [result])
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CONFIRMED]


async def test_one_broker_does_not_wait_for_another(ledger: Ledger, upstream: FakeUpstream) -> None:
    stuck = FakeUpstream("stuck")
    stuck.held = []
    await stuck.declare_queue("orders")
    gateway = Gateway(ledger, {"fake": upstream, "stuck": stuck}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    slow = await gateway.outbox.put(gateway.broker("stuck"), "", [message()] * 1, "")
    await until(lambda: stuck.published)
    for _ in range(3):
        await settled(gateway, await gateway.outbox.put(gateway.broker("fake"), "", [message()], ""))
    assert len(upstream.published) == 3
    stuck.confirm_held()
    await settled(gateway, slow)
    await gateway.close(1.0)


async def test_what_was_not_sent_keeps_its_place(gateway: Gateway, upstream: FakeUpstream) -> None:
    """The broker goes away in the middle of a request: its messages go out in their order all the same."""
    real, calls = upstream.publish_nowait, 0

    def publish_nowait(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            upstream.state = UpstreamState.DOWN
        return real(*arguments, **options)

    upstream.publish_nowait = publish_nowait  # type: ignore[method-assign]
    results = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"%d" % number) for number in range(5)], "")
    await settled(gateway, results[:1])
    row = await row_of(gateway, results[1], lambda row: not row.claimed)
    assert row.reason["code"] == "broker_unavailable"
    upstream.state = UpstreamState.UP
    hasten(gateway)
    await settled(gateway, results)
    assert bodies(upstream) == [b"0", b"1", b"2", b"3", b"4"]
    assert await kinds(gateway, results[4]) == [EventKind.SCHEDULED, EventKind.CONFIRMED]  # never sent before: no mark


async def test_an_unknown_outcome_is_sent_again_under_the_same_id_and_marked(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.failure = OutcomeUnknown("no confirm")
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await row_of(gateway, result, lambda row: row.reason.get("resent") is True)
    upstream.failure = None
    await settled(gateway, [result])
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.RESENT, EventKind.CONFIRMED]
    headers = upstream.published[-1][2].properties.headers
    assert headers == {"x-gateway": {"id": result.id, "resent": "1"}}


async def test_a_refusal_for_now_is_tried_again_after_a_pause(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = PublishRefused("the queue is full")
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    row = await row_of(gateway, result, lambda row: row.reason)
    assert row.reason == {"code": "publish_refused", "text": "the queue is full"}
    assert row.due_at > time() * 1e6  # not at once: the rate is bounded
    upstream.failure = None
    await settled(gateway, [result])
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CONFIRMED]


async def test_what_the_broker_will_never_take_is_kept_with_its_reason(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    (missing,) = await gateway.outbox.put(gateway.broker("fake"), "nowhere", [message()], "")
    (unroutable,) = await gateway.outbox.put(gateway.broker("fake"), "", [message(key="no")], "")
    (dropped,) = await gateway.outbox.put(gateway.broker("fake"), "", [message(key="no", mandatory=False)], "")
    row = await row_of(gateway, missing, lambda row: row.dead)
    assert row.reason == {"code": "not_found", "text": "404 no exchange 'nowhere'"}
    assert await kinds(gateway, missing) == [EventKind.SCHEDULED, EventKind.REFUSED]
    await row_of(gateway, unroutable, lambda row: row.dead)
    assert await kinds(gateway, unroutable) == [EventKind.SCHEDULED, EventKind.UNROUTABLE]
    await settled(gateway, [dropped])  # its caller allows that no queue takes it
    assert await kinds(gateway, dropped) == [EventKind.SCHEDULED, EventKind.UNROUTABLE]

    await upstream.declare_exchange("nowhere")
    await upstream.bind_queue("orders", "nowhere", "orders")
    await gateway.outbox.retry(parse_id(missing.id))
    await settled(gateway, [missing])
    assert await kinds(gateway, missing) == [
        EventKind.SCHEDULED,
        EventKind.REFUSED,
        EventKind.SCHEDULED,
        EventKind.CONFIRMED,
    ]
    with pytest.raises(StateError):
        await gateway.outbox.retry(parse_id(missing.id))


async def test_what_an_earlier_release_took_is_kept_too(gateway: Gateway, ledger: Ledger) -> None:
    """``mandatory`` was false unless given; who said so does not stand in the row."""
    item = message(key="no")
    gateway._publisher.give_ids([item])
    (row,), entries = gateway.outbox._rows(gateway.broker("fake"), "", [item], "")
    await ledger.outbox.put([structs.replace(row, payload=envelopes.encode(item.message, False))], entries)
    found = PublishOutcome(item.text)
    assert (await row_of(gateway, found, lambda row: row.dead)).reason["code"] == "unroutable"


async def test_too_large_is_refused_at_once(ledger: Ledger) -> None:
    upstream = FakeUpstream(message_max=1024)
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    large, small = await gateway.outbox.put(
        gateway.broker("fake"), "", [message(bytes(1025)), message(bytes(1024))], ""
    )
    assert large.error is not None
    assert "message_max = 1024" in str(large.error)
    assert small.error is None
    page, _ = await ledger.outbox.page()
    assert [row.message_id for row in page] == [parse_id(small.id)]


async def test_what_was_sent_counts_no_more_in_the_share_of_its_client(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """And what waits counts on."""
    later = int((time() + 3600) * 1e6)
    scheduled, scheduled_bytes = gateway.budgets["scheduled"], gateway.budgets["scheduled_bytes"]
    waiting = [message(b"%d" % number, not_before=later) for number in range(3)]
    results = await gateway.outbox.put(gateway.broker("fake"), "", waiting, "me")
    size = scheduled_bytes.standing().held // 3
    (now,) = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"x")], "me")
    await settled(gateway, [now])
    await until(lambda: scheduled.standing().held != 4)
    assert (scheduled.standing().held, scheduled_bytes.standing().held) == (3, 3 * size)
    assert scheduled.held_by(ShareHolder("me")) == 3
    for result in results:
        await gateway.outbox.cancel(parse_id(result.id), "me")


async def test_cancelled_before_it_is_sent(gateway: Gateway, upstream: FakeUpstream) -> None:
    later = int((time() + 3600) * 1e6)
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message(not_before=later)], "")
    await gateway.outbox.cancel(parse_id(result.id), "me")
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CANCELLED]
    await gateway.outbox.cancel(parse_id(result.id), "me")
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CANCELLED]
    with pytest.raises(NoSuchMessage):
        await gateway.outbox.cancel(gateway.ids(), "me")
    assert not upstream.published


async def test_not_cancelled_while_it_is_on_its_way(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.held = []
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await until(lambda: upstream.published)
    with pytest.raises(StateError):
        await gateway.outbox.cancel(parse_id(result.id), "")
    upstream.confirm_held()
    await settled(gateway, [result])


# ------------------------------------------------------------------------------------------ crash points


async def restarted(tmp_path: Path, upstream: FakeUpstream) -> tuple[Ledger, Gateway]:
    ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="again")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    return ledger, gateway


async def crash(gateway: Gateway) -> None:
    """As a process that is killed: nothing is given back, nothing is written any more."""
    lanes = list(gateway.outbox.sender._lanes.values())
    tasks = [task for lane in lanes for task in (lane.task,) if task is not None]
    if gateway.outbox.sender._runner is not None:
        tasks.append(gateway.outbox.sender._runner)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gateway.outbox.sender._lanes.clear()
    gateway.outbox.sender._runner = None
    await gateway.ledger.close()


async def test_killed_between_confirm_and_record(tmp_path: Path, ledger: Ledger, upstream: FakeUpstream) -> None:
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    upstream.held = []
    results = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"1"), message(b"2")], "")
    await until(lambda: len(upstream.published) == 2)
    await crash(gateway)
    upstream.held = None
    ledger, gateway = await restarted(tmp_path, upstream)
    await settled(gateway, results)
    assert bodies(upstream) == [b"1", b"2", b"1", b"2"]
    marks = [sent.properties.headers["x-gateway"].get("resent") for _, _, sent in upstream.published]
    assert marks == [None, None, "1", "1"]
    ids = [sent.properties.headers["x-gateway"]["id"] for _, _, sent in upstream.published]
    assert ids[:2] == ids[2:]
    assert await kinds(gateway, results[0]) == [EventKind.SCHEDULED, EventKind.RESENT, EventKind.CONFIRMED]
    await gateway.close(1.0)
    await ledger.close()


async def test_killed_before_it_was_claimed(tmp_path: Path, ledger: Ledger, upstream: FakeUpstream) -> None:
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")  # nobody sends yet
    await ledger.close()
    ledger, gateway = await restarted(tmp_path, upstream)
    await settled(gateway, [result])
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CONFIRMED]
    await gateway.close(1.0)
    await ledger.close()


async def test_stopped_in_an_orderly_way_leaves_what_has_no_outcome_to_the_next(
    tmp_path: Path, ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    upstream.held = []
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await until(lambda: upstream.published)
    await gateway.outbox.sender.stop("fake", 0.01)
    row = await ledger.outbox.get(parse_id(result.id))
    assert row is not None
    assert not row.claimed
    assert row.reason == {"resent": True}
    upstream.held = None
    await gateway.outbox.sender.start("fake")
    await settled(gateway, [result])
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.RESENT, EventKind.CONFIRMED]
    await gateway.close(1.0)


async def test_what_is_lost_while_it_is_stopped_is_sent_no_more(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Another process sends it again by then, marked: what waits for room here would come behind that, unmarked."""
    upstream.held = []
    await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await until(lambda: upstream.published)
    lane = gateway.outbox.sender._lanes["fake"]
    stopping = asyncio.create_task(gateway.outbox.sender.stop("fake", 60.0))
    await asyncio.sleep(0.02)
    stopping.cancel()
    gateway.outbox.sender.lost("fake")
    await asyncio.sleep(0.02)
    assert not lane.busy
    assert all(future.cancelled() for future in upstream.held)
    await gateway.ledger.outbox.release()  # the lease is not lost here
    upstream.held = None
    await gateway.outbox.sender.start("fake")


async def test_a_fault_of_ours_keeps_nothing_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.outbox.sender._publisher, "send", broken)
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await row_of(gateway, result, lambda row: row.attempt == 1 and not row.claimed)
    monkeypatch.undo()
    hasten(gateway)
    await settled(gateway, [result])
    assert bodies(upstream) == [b"hello"]


async def test_damaged_octets_are_kept_and_cost_nobody_else(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    bad, good = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"bad"), message(b"good")], "")
    await gateway.ledger.task(
        lambda connection, _: connection.exec_driver_sql(
            "UPDATE outbox SET payload = x'00' WHERE message_id = ?", (parse_id(bad.id),)
        )
    )
    upstream.state = UpstreamState.UP
    hasten(gateway)
    await settled(gateway, [good])
    row = await row_of(gateway, bad, lambda row: row.dead)
    assert row.reason["text"] == "the message in the ledger is damaged: it is not what was written"
    assert bodies(upstream) == [b"good"]


# -------------------------------------------------------------------------------------------------- keys


def render(results: list[PublishOutcome]) -> KeyedAnswer:
    return KeyedAnswer(202, ",".join(result.id for result in results).encode(), {"content-type": "text/plain"})


async def test_a_key_is_answered_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    request = KeyedRequest("me", "k", b"f" * 32)
    broker = gateway.broker("fake")
    first = await gateway.outbox.put_keyed(request, broker, "", [message()], render)
    again = await gateway.outbox.put_keyed(request, broker, "", [message()], render)
    assert (first.status, first.replayed, again.replayed) == (202, False, True)
    assert (again.body, again.headers) == (first.body, first.headers)
    await until(lambda: upstream.published)
    await asyncio.sleep(0.05)
    assert len(upstream.published) == 1
    with pytest.raises(KeyReused):
        await gateway.outbox.put_keyed(KeyedRequest("me", "k", b"g" * 32), broker, "", [message()], render)


async def test_fifty_at_once_with_one_key(gateway: Gateway, upstream: FakeUpstream) -> None:
    request = KeyedRequest("me", "k", b"f" * 32)
    answers = await asyncio.gather(
        *(gateway.outbox.put_keyed(request, gateway.broker("fake"), "", [message()], render) for _ in range(50))
    )
    assert len({answer.body for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    await until(lambda: upstream.published)
    await asyncio.sleep(0.05)
    assert len(upstream.published) == 1


async def test_what_the_ledger_may_have_taken_has_no_outcome(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was lost in the commit. If it has them, the process that takes over sends them."""
    broker, most = gateway.broker("fake"), gateway.broker("fake").settings.message_max

    async def cut_off(*args: Any, **options: Any) -> Any:
        raise CommitUnknown("cut off")

    for name in ("put", "put_keyed"):
        monkeypatch.setattr(LedgerOutbox, name, cut_off)
    results = await gateway.outbox.put(broker, "", [message(), message(bytes(most + 1))], "me")
    assert [type(result.error) for result in results] == [OutcomeUnknown, LimitExceeded]
    assert all(result.id for result in results)
    assert not results[0].scheduled
    told: list[PublishOutcome] = []
    answer = await gateway.outbox.put_keyed(
        KeyedRequest("me", "k", b"f" * 32),
        broker,
        "",
        [message()],
        lambda results: told.extend(results) or render(told),
    )
    assert not answer.replayed
    assert "may have taken" in str(told[-1].error)
    assert isinstance(told[-1].error, OutcomeUnknown)


@pytest.mark.parametrize("error", [LedgerUnavailable, CommitUnknown])
async def test_what_the_ledger_has_taken_before_it_failed_is_told(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, error: type[LedgerUnavailable]
) -> None:
    """Many messages are written in parts. A caller who hears that none was taken sends all of them again."""
    calls = 0
    submit = gateway.ledger.submit

    async def fails(call: Any) -> Any:
        nonlocal calls
        calls += isinstance(call, Put)
        if isinstance(call, Put) and calls == 2:
            raise error("away")
        return await submit(call)

    monkeypatch.setattr(gateway.ledger, "submit", fails)
    monkeypatch.setattr(gateway.ledger.outbox, "_group_max", 3)
    items = [message(b"%d" % number) for number in range(4)]
    results = await gateway.outbox.put(gateway.broker("fake"), "", items, "me")
    await settled(gateway, results[:2])
    assert bodies(upstream) == [b"0", b"1"]
    assert [result.scheduled for result in results] == [True, True, False, False]
    expected = OutcomeUnknown if error is CommitUnknown else LedgerUnavailable
    assert [type(result.error) for result in results[2:]] == [expected, expected]


async def test_another_time_leaves_the_mark_of_what_may_have_been_sent(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost while somebody gives it another time."""
    upstream.held = []
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "me")
    await until(lambda: upstream.held)
    get = gateway.outbox.get

    async def late(message_id: bytes) -> Any:
        found = await get(message_id)
        (sent,) = upstream.held or ()
        upstream.state, upstream.held = UpstreamState.DOWN, None
        sent.set_exception(OutcomeUnknown("the channel died"))
        await row_of(gateway, result, lambda row: row.reason.get("resent"))
        return found

    monkeypatch.setattr(gateway.outbox, "get", late)
    await gateway.outbox.reschedule(parse_id(result.id), int(time() * 1e6), "me")
    upstream.state = UpstreamState.UP
    hasten(gateway)
    await settled(gateway, [result])
    assert EventKind.RESENT in await kinds(gateway, result)


async def test_pauses_are_bounded() -> None:
    assert module.PAUSE_MIN * 2.0 ** min(1_000_000, 20) > module.REFUSED_MAX


async def test_bodies_are_kept_as_the_settings_say(tmp_path: Path, upstream: FakeUpstream) -> None:
    """However a message is published; but not that of one which the broker did not take."""
    retention = RetentionSettings(bodies="days")
    ledger = await Ledger.open(
        f"sqlite:///{tmp_path}/kept.db", LedgerSettings(), owner="test", migrate=True, retention=retention
    )
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    plain, refused = await gateway.publish("fake", "", [message(b"plain"), message(b"no", key="no", mandatory=True)])
    keyed: list[PublishOutcome] = []

    def render_keyed(results: list[PublishOutcome]) -> KeyedAnswer:
        keyed.extend(results)
        return KeyedAnswer(200, b"")

    await gateway.publish_keyed(KeyedRequest("me", "k", b"f" * 32), "fake", "", [message(b"keyed")], render_keyed)
    (later,) = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"later")], "")
    await settled(gateway, [later])
    for result, body in ((plain, b"plain"), (keyed[0], b"keyed"), (later, b"later")):
        payload = await ledger.deliveries.body(parse_id(result.id))
        assert payload is not None
        stored = open_envelope(payload)
        assert (stored.message.body, stored.exchange, stored.routing_key) == (body, "", "orders")
    assert await ledger.deliveries.body(parse_id(refused.id)) is None
    await gateway.close(1.0)
    await ledger.close()


async def test_what_was_claimed_while_it_was_stopped_is_free_for_the_next(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held by a process that lives, and in nobody's hands, it would never be sent."""
    claim, claimed, go_on = type(gateway.ledger.outbox).claim, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, limit: int, brokers: Any) -> Any:
        async def later() -> Any:
            found = await claim(self, limit, brokers)
            if found:
                claimed.set()
                await go_on.wait()
            return found

        return await later()

    monkeypatch.setattr(type(gateway.ledger.outbox), "claim", slow)
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await claimed.wait()
    stopping = asyncio.create_task(gateway.outbox.sender.stop("fake", 0.01))
    await asyncio.sleep(0.02)
    go_on.set()
    await stopping
    row = await row_of(gateway, result, lambda row: not row.claimed)
    assert "resent" not in row.reason
    await gateway.outbox.sender.start("fake")
    await settled(gateway, [result])
    assert bodies(upstream) == [b"hello"]


def hold_claims(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Claims that find something are answered late: an event when the first one has, and one that lets them go on."""
    claim, claimed, go_on = LedgerOutbox.claim, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, limit: int, brokers: Any) -> Any:
        found = await claim(self, limit, brokers)
        if found:
            claimed.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(LedgerOutbox, "claim", slow)
    return claimed, go_on


async def test_killed_and_then_stopped_while_it_was_claimed_again(
    tmp_path: Path, ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it may have been sent is known from whose it was; the third owner must hear of it from the second."""
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    upstream.held = []
    (result,) = await gateway.outbox.put(gateway.broker("fake"), "", [message()], "")
    await until(lambda: upstream.published)
    await crash(gateway)
    upstream.held = None
    claimed, go_on = hold_claims(monkeypatch)
    ledger, gateway = await restarted(tmp_path, upstream)
    await claimed.wait()
    stopping = asyncio.create_task(gateway.outbox.sender.stop("fake", 0.01))
    await asyncio.sleep(0.02)
    go_on.set()
    await stopping
    row = await row_of(gateway, result, lambda row: not row.claimed)
    assert row.reason == {"resent": True}
    await gateway.outbox.sender.start("fake")
    await settled(gateway, [result])
    marks = [sent.properties.headers["x-gateway"].get("resent") for _, _, sent in upstream.published]
    assert marks == [None, "1"]
    await gateway.close(1.0)
    await ledger.close()

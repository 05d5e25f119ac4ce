"""When the outbox sends: at once where it can, after a pause where it must, and in doubt only what may have arrived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core import Gateway, PublishOutcome
from gateway.core.publishing import sending as module
from gateway.errors import (
    BrokerUnavailable,
    EntriesRefused,
    GatewayError,
    LedgerUnavailable,
    NotFound,
    OutcomeUnknown,
    PublishRefused,
)
from gateway.ledger import Ledger, OutboxEntry, parse_id
from gateway.ledger.pending.outbox import OutboxStore
from gateway.observing.telemetry import Metrics
from gateway.runtime.backoff import Backoff
from gateway.upstreams import Upstream, UpstreamState
from tests.audited import ON_PURPOSE
from tests.core.fakes import FakeUpstream
from tests.core.test_outbox import bodies, hold_claims, message, row_of, settled, until


@pytest.fixture(autouse=True)
def _rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks without a reason, and pauses do not end."""
    for name in ("LOOK_EVERY", "PAUSE_MIN", "PAUSE_MAX"):
        monkeypatch.setattr(module, name, 60.0)


@pytest.fixture
async def gateway(gateway: Gateway) -> Gateway:
    """It sends for its broker by now."""
    await until(lambda: gateway.outbox.sender.owns("fake"))
    return gateway


@pytest.fixture
def attempts(upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that the broker was given, taken or not."""
    given: list[bytes] = []
    publish = upstream.publish_nowait

    def publish_nowait(*arguments: Any, **options: Any) -> Any:
        given.append(arguments[2].body)
        return publish(*arguments, **options)

    monkeypatch.setattr(upstream, "publish_nowait", publish_nowait)
    return given


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """For which brokers it was asked what is due."""
    made: list[Sequence[str]] = []
    claim = OutboxStore.claim

    async def claiming(self: OutboxStore, limit: int, brokers: Sequence[str]) -> list[OutboxEntry]:
        made.append(brokers)
        return await claim(self, limit, brokers)

    monkeypatch.setattr(OutboxStore, "claim", claiming)
    return made


async def put(gateway: Gateway, *items: bytes, broker: str = "fake") -> list[PublishOutcome]:
    return await gateway.outbox.put(gateway.broker(broker), "", [message(body) for body in items], "me")


async def sent(upstream: FakeUpstream, *expected: bytes) -> None:
    async with asyncio.timeout(5):
        while bodies(upstream) != list(expected):
            await asyncio.sleep(0.005)


async def quiet() -> None:
    """Long enough for what would come too early."""
    await asyncio.sleep(0.05)


def show(upstream: FakeUpstream, state: UpstreamState) -> None:
    """The broker is in another state, and says so."""
    upstream.state = state
    for call in upstream.on_state:
        call(upstream)


def count(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"amqpgw_{name}_total", labels) or 0.0


# -------------------------------------------------------------------------------------------------------- at once


async def test_what_is_put_is_sent_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    await settled(gateway, await put(gateway, b"1"))
    await settled(gateway, await put(gateway, b"2"))
    assert bodies(upstream) == [b"1", b"2"]


async def test_what_another_process_has_put_is_sent_when_it_says_so(
    gateway: Gateway, ledger: Ledger, upstream: FakeUpstream
) -> None:
    item = message(b"1")
    gateway._publisher.give_ids([item])
    await quiet()
    await ledger.outbox.put(*gateway.outbox._rows(gateway.broker("fake"), "", [item], "me"))
    await quiet()
    assert not upstream.published
    await gateway.outbox.sender.refresh("fake")
    await sent(upstream, b"1")


async def test_batch_follows_batch_and_then_nobody_looks(
    gateway: Gateway, upstream: FakeUpstream, claims: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    results = await put(gateway, b"1", b"2", b"3", b"4", b"5")
    await sent(upstream, b"1", b"2", b"3", b"4", b"5")
    await settled(gateway, results)
    await quiet()
    assert len(claims) <= 5


async def test_a_full_batch_of_one_broker_does_not_keep_another_waiting(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    sender, other = gateway.outbox.sender, FakeUpstream("other")
    await other.declare_queue("orders")
    monkeypatch.setattr(gateway.outbox, "_elsewhere", lambda broker: None)  # who owns it is the test's to say
    await sender.stop("fake", 1.0)
    gateway.brokers["other"] = other  # type: ignore[assignment]
    upstream.held = []
    await put(gateway, b"1", b"2")
    await put(gateway, b"3", broker="other")
    await sender.start("fake")
    await sender.start("other")
    await sent(other, b"3")
    await sent(upstream, b"1", b"2")
    upstream.confirm_held()
    await sender.stop("other", 1.0)


async def test_who_takes_over_sends_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.outbox.sender.stop("fake", 1.0)
    await put(gateway, b"1")
    await quiet()
    assert not upstream.published
    await gateway.outbox.sender.start("fake")
    await sent(upstream, b"1")


async def test_a_new_broker_of_the_name_is_sent_to_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    """And again, when it was away."""
    upstream.state = UpstreamState.DOWN
    await put(gateway, b"1")
    await quiet()
    another = FakeUpstream()
    await another.declare_queue("orders")
    gateway.brokers["fake"] = another  # type: ignore[assignment]
    upstream_of: Any = another
    gateway.outbox.sender.attend(upstream_of)
    await sent(another, b"1")
    another.state = UpstreamState.DOWN
    await put(gateway, b"2")
    await quiet()
    show(another, UpstreamState.UP)
    await sent(another, b"1", b"2")


async def test_a_broker_that_another_process_sends_to_is_none_of_its_business(gateway: Gateway) -> None:
    other: Any = FakeUpstream("other")
    gateway.outbox.sender.attend(other)
    assert gateway.outbox.sender.owns("fake")
    assert not gateway.outbox.sender.owns("other")


# --------------------------------------------------------------------------------------------------------- pauses


async def test_a_broker_that_took_nothing_is_left_alone_until_it_is_back(
    gateway: Gateway, upstream: FakeUpstream, attempts: list[bytes]
) -> None:
    upstream.failure = BrokerUnavailable("blocked")
    (first,) = await put(gateway, b"1")
    await row_of(gateway, first, lambda row: row.reason and not row.claimed)
    await put(gateway, b"2")
    await quiet()
    show(upstream, UpstreamState.DOWN)
    upstream.state = UpstreamState.UP  # it has not said so
    gateway.outbox.sender.wake()
    await quiet()
    assert attempts == [b"1"]
    upstream.failure = None
    show(upstream, UpstreamState.UP)
    await sent(upstream, b"1", b"2")
    assert count(gateway.metrics, "retries", what="outbox", reason="broker_unavailable") == 1


async def test_a_pause_is_the_shortest_again_after_a_success(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = gateway.outbox.sender._lanes["fake"]
    pauses = []
    for body in (b"1", b"2", b"3"):
        upstream.failure = BrokerUnavailable("blocked")
        (result,) = await put(gateway, body)
        await row_of(gateway, result, lambda row: row.reason and not row.claimed)
        pauses.append(lane.not_before - asyncio.get_running_loop().time())
        upstream.failure = None
        show(upstream, UpstreamState.UP)
        await settled(gateway, [result])
    assert all(20 < pause <= 60 for pause in pauses)
    assert lane.backoff.longest == 60.0
    assert lane.backoff.failures == 0


@pytest.mark.parametrize("failure", [PublishRefused("full"), OutcomeUnknown("no confirm")])
async def test_a_message_that_is_refused_for_now_keeps_no_other(
    gateway: Gateway, upstream: FakeUpstream, failure: GatewayError
) -> None:
    """Nor does one that has no outcome: the broker is there."""
    upstream.failure = failure
    (waiting,) = await put(gateway, b"1")
    await row_of(gateway, waiting, lambda row: row.reason)
    upstream.failure = None
    await settled(gateway, await put(gateway, b"2"))


@pytest.mark.parametrize(
    ("failure", "metric", "labels"),
    [
        (PublishRefused("full"), "retries", {"what": "outbox", "reason": "publish_refused"}),
        (OutcomeUnknown("no confirm"), "retries", {"what": "outbox", "reason": "outcome_unknown"}),
        (NotFound(404, "no exchange"), "outbox_refused", {"broker": "fake", "reason": "not_found"}),
    ],
)
async def test_what_was_not_taken_is_counted(
    gateway: Gateway, upstream: FakeUpstream, failure: GatewayError, metric: str, labels: dict[str, str]
) -> None:
    for name in ("retries", "outbox_refused"):
        assert all(value == 0 for value in _values(gateway.metrics, name))
    upstream.failure = failure
    (result,) = await put(gateway, b"1")
    await row_of(gateway, result, lambda row: row.reason)
    upstream.failure = None
    assert count(gateway.metrics, metric, **labels) >= 1
    assert sum(_values(gateway.metrics, "retries" if metric != "retries" else "outbox_refused")) == 0


def _values(metrics: Metrics, name: str) -> list[float]:
    return [
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"amqpgw_{name}_total"
    ]


async def test_a_fault_of_ours_pauses_the_broker_and_leaves_the_batch_in_doubt(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def broken(*arguments: Any) -> Any:
        calls.append(arguments)
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.outbox.sender._publisher, "send", broken)
    (result,) = await put(gateway, b"1")
    row = await row_of(gateway, result, lambda row: row.attempt == 1 and not row.claimed)
    assert row.reason == {"resent": True}
    gateway.outbox.sender.wake()
    await quiet()
    assert len(calls) == 1
    monkeypatch.undo()
    show(upstream, UpstreamState.UP)
    await sent(upstream, b"1")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (LedgerUnavailable("away"), ("outbox.waits", logging.WARNING)),
        (ValueError("a fault of ours"), ("outbox.failed", logging.ERROR)),
    ],
)
async def test_a_ledger_that_is_away_is_asked_again_after_a_pause(
    gateway: Gateway,
    upstream: FakeUpstream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    line: tuple[str, int],
) -> None:
    claim, tries = OutboxStore.claim, 0

    async def failing(self: OutboxStore, limit: int, brokers: Sequence[str]) -> list[OutboxEntry]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise error
        return await claim(self, limit, brokers)

    monkeypatch.setattr(module, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(OutboxStore, "claim", failing)
    await put(gateway, b"1")
    await until(lambda: tries)
    gateway.outbox.sender.wake()
    await quiet()
    assert tries == 1
    await sent(upstream, b"1")
    await until(lambda: tries >= 3)
    said = [
        (record.getMessage(), record.levelno) for record in caplog.records if record.getMessage().startswith("outbox")
    ]
    assert said == [line] * (1 if isinstance(error, LedgerUnavailable) else 2)


async def test_outcomes_are_written_until_the_ledger_has_them(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where events cannot be stored, without them: what was sent must not be sent again."""
    settle, calls = OutboxStore.settle, []
    pauses: list[float] = []

    async def failing(self: OutboxStore, done: Any, retry: Any, kept: Any) -> Any:
        calls.append(([len(events) for _, events in done], [len(events) for _, events, _ in kept]))
        if len(calls) == 1:
            raise LedgerUnavailable("away")
        if len(calls) == 2:
            raise EntriesRefused({0: "a bad row"})
        return await settle(self, done, retry, kept)

    async def wait(self: Any) -> None:
        pauses.append(self.next())

    monkeypatch.setattr(OutboxStore, "settle", failing)
    monkeypatch.setattr(Backoff, "wait", wait)
    results = await gateway.outbox.put(gateway.broker("fake"), "", [message(b"1"), message(b"2", key="no")], "me")
    await settled(gateway, results[:1])
    row = await row_of(gateway, results[1], lambda row: row.dead)
    assert row.reason["code"] == "unroutable"
    assert calls == [([1], [1]), ([1], [1]), ([0], [0])]
    assert len(pauses) == 2
    ON_PURPOSE.add(parse_id(results[0].id))  # without its event it has no outcome


# ------------------------------------------------------------------------------------------------ stopped meanwhile


async def test_what_was_claimed_for_a_broker_that_was_stopped_is_free(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is still sent for."""
    sender, other = gateway.outbox.sender, FakeUpstream("other")
    await other.declare_queue("orders")
    gateway.brokers["other"] = other  # type: ignore[assignment]
    await sender.start("other")
    claimed, go_on = hold_claims(monkeypatch)
    (result,) = await put(gateway, b"1")
    await claimed.wait()
    await sender.stop("fake", 1.0)
    go_on.set()
    row = await row_of(gateway, result, lambda row: not row.claimed)
    assert row.reason == {}
    await put(gateway, b"2", broker="other")
    await sent(other, b"2")
    assert not upstream.published
    await sender.start("fake")
    await sent(upstream, b"1")
    await settled(gateway, [result])
    await sender.stop("other", 1.0)


async def test_work_is_not_given_up_before_what_is_being_claimed_is_free(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends for the broker from then on would find newer messages only, and send them first."""
    sender = gateway.outbox.sender
    claimed, go_on = hold_claims(monkeypatch)
    (result,) = await put(gateway, b"1")
    await claimed.wait()
    stopping = asyncio.create_task(sender.stop("fake", 60.0))
    await quiet()
    assert not stopping.done()
    go_on.set()
    await stopping
    row = (await gateway.outbox.get(parse_id(result.id))).row
    assert row is not None
    assert not row.claimed
    assert row.reason == {}
    await sender.start("fake")
    await settled(gateway, [result])


async def test_nothing_is_claimed_for_work_that_was_lost_a_moment_before(
    gateway: Gateway, upstream: FakeUpstream, claims: list[Sequence[str]]
) -> None:
    """The claim would be made under the next lease, and take what is another process's to send."""
    sender = gateway.outbox.sender
    create, made = asyncio.get_running_loop().create_task, []

    def lose(work: Any, **options: Any) -> Any:
        task = create(work, **options)
        if options.get("name") == "outbox fetch":
            made.append(task)
            sender.lost("fake")
        return task

    claims.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_task", lose)
        (result,) = await put(gateway, b"1")
        await until(lambda: made)
        await quiet()
    assert claims == []
    await sender.start("fake")
    await settled(gateway, [result])


async def test_what_was_claimed_for_a_broker_that_is_no_longer_configured_is_free(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, go_on = hold_claims(monkeypatch)
    (result,) = await put(gateway, b"1")
    await claimed.wait()
    broker: Upstream = gateway.brokers.pop("fake")
    go_on.set()
    row = await row_of(gateway, result, lambda row: not row.claimed)
    assert row.reason == {}
    assert not upstream.published
    gateway.brokers["fake"] = broker
    gateway.outbox.sender.wake()
    await sent(upstream, b"1")


async def test_what_was_not_sent_stays_unmarked_when_the_process_leaves(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.failure = BrokerUnavailable("blocked")
    (result,) = await put(gateway, b"1")
    before = await row_of(gateway, result, lambda row: row.reason and not row.claimed)
    await gateway.outbox.sender.stop("fake", 1.0)
    after = await row_of(gateway, result, lambda row: True)
    assert after.reason == before.reason
    assert "resent" not in after.reason
    upstream.failure = None
    await gateway.outbox.sender.start("fake")
    await settled(gateway, [result])


async def test_what_was_lost_is_not_given_back_once_it_is_claimed_again(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was away when it was lost; under the next lease this process has it again."""
    monkeypatch.setattr(module, "PAUSE_MIN", 0.01)
    lease = gateway.ledger.lease
    upstream.held = []
    (result,) = await put(gateway, b"1")
    await until(lambda: upstream.held)
    settle, is_away, failed = OutboxStore.settle, True, list[int]()

    async def away(self: OutboxStore, *arguments: Any, **options: Any) -> Any:
        if is_away:
            failed.append(1)
            raise LedgerUnavailable("the database starts")
        return await settle(self, *arguments, **options)

    monkeypatch.setattr(OutboxStore, "settle", away)
    gateway.outbox.sender.lost("fake")
    await until(lambda: failed)
    writer = gateway.ledger._writer
    writer._lose()
    await until(lambda: gateway.ledger.lease != lease)
    upstream.held = []
    await gateway.ledger.outbox.release()
    await gateway.outbox.sender.start("fake")
    await until(lambda: upstream.held)
    is_away = False
    await asyncio.sleep(0.2)
    row = (await gateway.outbox.get(parse_id(result.id))).row
    assert row is not None
    assert row.claimed
    upstream.held = None
    await gateway.outbox.sender.stop("fake", 0.01)


async def test_what_is_lost_while_it_is_sent_is_given_up_and_in_doubt(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.held = []
    (result,) = await put(gateway, b"1")
    await until(lambda: upstream.held)
    gateway.outbox.sender.lost("fake")
    row = await row_of(gateway, result, lambda row: not row.claimed)
    assert row.reason == {"resent": True}
    assert [future.cancelled() for future in upstream.held] == [True]
    upstream.held = None
    await gateway.outbox.sender.start("fake")
    await settled(gateway, [result])


async def test_nothing_is_taken_over_any_more_once_it_is_closed(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may lose its lease while it ends, and get another one."""
    taken: list[int] = []

    async def take_over(self: OutboxStore, limit: int) -> list[OutboxEntry]:
        taken.append(limit)
        return []

    monkeypatch.setattr(OutboxStore, "take_over", take_over)
    sender = gateway.outbox.sender
    sender.recover_soon()
    await sender.recovered()
    assert taken
    await sender.close(1.0)
    taken.clear()
    sender.recover_soon()
    await sender.recovered()
    assert taken == []


async def test_nothing_looks_any_more_once_all_is_stopped_or_lost(gateway: Gateway, upstream: FakeUpstream) -> None:
    def tasks() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "outbox"]

    await gateway.outbox.sender.stop("fake", 1.0)
    await until(lambda: not tasks())
    await gateway.outbox.sender.start("fake")
    gateway.outbox.sender.lost("fake")
    await gateway.outbox.sender.close(1.0)
    await until(lambda: not tasks())

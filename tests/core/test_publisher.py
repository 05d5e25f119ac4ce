"""Parts of a publish: which messages go together and in which order, their outcomes, and what the ledger gets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core import Publication, PublishOutcome
from gateway.core.publishing import publisher as module
from gateway.core.publishing.publisher import (
    Publisher,
    describe,
    groups_of,
    headers_of,
    in_doubt,
    not_sent,
    outcome_of,
    summary,
)
from gateway.core.sources.stored import open_envelope
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EntriesRefused,
    FrameSyntaxError,
    GatewayError,
    LedgerFull,
    LedgerUnavailable,
    NotFound,
    NotRecorded,
    OutcomeUnknown,
    Unroutable,
)
from gateway.ledger import EventKind, KeptBody, LogEntry, MessageIds
from gateway.observing.telemetry import Metrics
from gateway.runtime.backoff import Backoff
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream
from tests.core.test_publishing import message

REFUSED = EntriesRefused({0: "a bad row"})


class FakeLedger:
    """One that answers each write with what is next in ``failures``."""

    def __init__(self, *failures: Exception | None, keeps_bodies: bool = False) -> None:
        self.healthy = True
        self.failures = list(failures)
        self.writes: list[list[EventKind]] = []
        self.kept: list[Sequence[KeptBody]] = []
        self.deliveries = SimpleNamespace(keeps_bodies=keeps_bodies, keep_bodies=self._keep)
        self.outbox = SimpleNamespace(settle_publishes=self._settle)
        self.disk = SimpleNamespace(check=lambda: None)

    def _fail(self) -> None:
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error

    async def record(self, entries: Sequence[LogEntry]) -> list[int]:
        self.writes.append([entry.kind for entry in entries])
        self._fail()
        return []

    async def _settle(self, done: Sequence[tuple[bytes, Sequence[LogEntry]]]) -> list[bool]:
        self.writes.append([entry.kind for _, entries in done for entry in entries])
        self._fail()
        return []

    async def _keep(self, rows: Sequence[KeptBody]) -> None:
        self.kept.append(rows)
        self._fail()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time."""
    made: list[float] = []

    async def wait(self: Backoff) -> None:
        made.append(self.next())

    monkeypatch.setattr(Backoff, "wait", wait)
    return made


def made(ledger: FakeLedger, *, intent_always: bool = False) -> Publisher:
    used: Any = ledger
    return Publisher(used, MessageIds(), Metrics("test"), intent_always)


async def publish(publisher: Publisher, upstream: Any, *items: Publication, order: str | None = None) -> Any:
    return await publisher.publish(upstream, "", items, "alice", 5.0, order)


def value(publisher: Publisher, name: str, **labels: str) -> float:
    return publisher._metrics.registry.get_sample_value(f"amqpgw_{name}", labels) or 0.0


# ---------------------------------------------------------------------------------------------- groups and orders


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], [[]]),
        ([5], [[5]]),
        ([50], [[50]]),  # too large for a group, and one of its own
        ([1, 1, 1], [[1, 1, 1]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([1] * 7, [[1, 1, 1], [1, 1, 1], [1]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([50, 1], [[50], [1]]),
        ([0, 50, 1], [[0, 50], [1]]),
        ([1, 50, 50], [[1], [50], [50]]),
        ([6, 4, 6, 4], [[6, 4], [6, 4]]),
    ],
)
def test_messages_go_in_groups(monkeypatch: pytest.MonkeyPatch, sizes: list[int], groups: list[list[int]]) -> None:
    """A group is limited in messages and in bytes, unless it is one message."""
    monkeypatch.setattr(module, "GROUP", 3)
    monkeypatch.setattr(module, "GROUP_BYTES", 10)
    found = groups_of([message(bytes(size)) for size in sizes])
    assert [[len(item.message.body) for item in group] for group in found] == groups


def test_headers_count_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 3 * module.HEADER_BYTES)
    items = [Publication("q", Message(b"", Properties(headers={"a": 1, "b": 2}))) for _ in range(3)]
    assert [len(group) for group in groups_of(items)] == [1, 1, 1]
    plain = [Publication("q", Message(b"", Properties(headers={"a": 1}))) for _ in range(3)]
    assert [len(group) for group in groups_of(plain)] == [3]


async def test_two_messages_too_large_for_one_group_are_recorded_in_two(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 10)
    ledger = FakeLedger()
    await publish(made(ledger), upstream, message(bytes(8)), message(bytes(8)))
    assert ledger.writes == [[EventKind.ACCEPTED, EventKind.CONFIRMED]] * 2
    await publish(made(ledger), upstream, message(bytes(8)), message(bytes(8)), order="o")
    assert ledger.writes[2:] == [[EventKind.ACCEPTED] * 2 + [EventKind.CONFIRMED] * 2]


async def test_messages_of_one_call_have_an_order_that_no_other_has(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[str | None] = []
    real = upstream.publish_nowait

    def publish_nowait(*arguments: Any, **options: Any) -> Any:
        orders.append(options["order"])
        return real(*arguments, **options)

    monkeypatch.setattr(upstream, "publish_nowait", publish_nowait)
    publisher = made(FakeLedger())
    await publish(publisher, upstream, message())
    await publish(publisher, upstream, message(), order="mine")
    await publish(publisher, upstream, message(), message())
    await publish(publisher, upstream, message(), message())
    assert orders[:2] == [None, "mine"]
    first, second = orders[2:4], orders[4:]
    assert first[0] == first[1] != second[0] == second[1]
    assert None not in orders[2:]


# ------------------------------------------------------------------------------------------------------ outcomes


async def test_nothing_is_sent_where_the_disk_is_full(upstream: FakeUpstream) -> None:
    ledger = FakeLedger()

    def full() -> None:
        raise LedgerFull("the disk is full")

    ledger.disk = SimpleNamespace(check=full)
    with pytest.raises(LedgerFull):
        await publish(made(ledger), upstream, message())
    assert not upstream.published


async def test_a_broker_that_says_nothing_of_its_storage_keeps_messages(upstream: FakeUpstream) -> None:
    upstream.capabilities = None
    (result,) = await publish(made(FakeLedger()), upstream, message())
    assert result.durable


def failed(resent: bool) -> GatewayError:
    error = OutcomeUnknown("no confirm")
    error.resent = resent
    return error


@pytest.mark.parametrize("was_resent", [False, True])
@pytest.mark.parametrize(
    ("outcome", "resent"),
    [
        (PublishReceipt(True), False),
        (PublishReceipt(True, resent=True), True),
        (failed(False), False),
        (failed(True), True),
    ],
)
async def test_what_may_be_there_twice_is_said_to_be(
    upstream: FakeUpstream,
    monkeypatch: pytest.MonkeyPatch,
    was_resent: bool,
    outcome: PublishReceipt | GatewayError,
    resent: bool,
) -> None:
    """An earlier call, or the connection to the broker, sent it before."""
    real = upstream.publish_nowait

    def publish_nowait(*arguments: Any, **options: Any) -> Any:
        future = real(*arguments, **options)
        answered = type(future)(loop=future.get_loop())
        if isinstance(outcome, GatewayError):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)
        return answered

    monkeypatch.setattr(upstream, "publish_nowait", publish_nowait)
    ledger = FakeLedger()
    publisher = made(ledger)
    (result,) = await publish(publisher, upstream, message(resent=was_resent))
    assert result.resent is (was_resent or resent)
    assert result.routed is not isinstance(outcome, GatewayError)
    assert ledger.writes[0].count(EventKind.RESENT) == (was_resent or resent)
    assert value(publisher, "publishes_resent_total", broker="fake") == (was_resent or resent)


async def test_outcomes_are_counted(upstream: FakeUpstream) -> None:
    publisher = made(FakeLedger())
    for _ in range(2):
        await publish(publisher, upstream, message(), message(), message(key="nowhere", mandatory=True))
    assert value(publisher, "publishes_total", broker="fake", outcome="confirmed") == 4
    assert value(publisher, "publishes_total", broker="fake", outcome="unroutable") == 2
    assert value(publisher, "publishes_resent_total", broker="fake") == 0
    assert value(publisher, "publish_seconds_count", broker="fake") == 2


def test_what_the_ledger_may_have_taken_is_in_doubt() -> None:
    refused = Unroutable("no queue")
    results = [PublishOutcome("a", scheduled=True), PublishOutcome("b", refused, scheduled=True)]
    in_doubt(results, CommitUnknown("cut off"))
    assert (type(results[0].error), results[0].routed, results[0].scheduled) == (OutcomeUnknown, False, False)
    assert (results[1].error, results[1].scheduled) == (refused, True)


def test_what_no_broker_was_given_is_not_in_doubt() -> None:
    away = LedgerUnavailable("away")
    assert not_sent(away) is away
    assert type(not_sent(CommitUnknown("cut off"))) is LedgerUnavailable
    assert "were not sent" in str(not_sent(CommitUnknown("cut off")))


def test_the_event_of_an_outcome_says_why() -> None:
    assert outcome_of(PublishOutcome("x")) == (EventKind.CONFIRMED, None)
    assert outcome_of(PublishOutcome("x", routed=False))[0] is EventKind.UNROUTABLE
    kind, detail = outcome_of(PublishOutcome("x", NotFound(404, "\udcff" + 600 * "x")))
    assert kind is EventKind.REFUSED
    assert detail is not None
    assert (detail["code"], len(detail["text"])) == ("not_found", 500)
    assert detail["text"].startswith("404 \\udcff")


# --------------------------------------------------------------------------------------------------- the ledger


@pytest.mark.parametrize(
    ("failure", "error", "expected"),
    [
        (None, LedgerUnavailable("away"), NotRecorded),
        (NotFound(404, "no exchange"), LedgerUnavailable("away"), NotRecorded),
        (OutcomeUnknown("no confirm"), LedgerUnavailable("away"), NotRecorded),
        (BrokerUnavailable("away"), LedgerUnavailable("away"), LedgerUnavailable),
        (BrokerUnavailable("away"), CommitUnknown("cut off"), LedgerUnavailable),
        (BrokerUnavailable("away"), REFUSED, NotRecorded),
        (None, REFUSED, NotRecorded),
    ],
)
@pytest.mark.parametrize("always", [False, True])
async def test_what_could_not_be_recorded_says_whether_it_was_sent(
    upstream: FakeUpstream,
    pauses: list[float],
    failure: GatewayError | None,
    error: GatewayError,
    expected: type[GatewayError],
    always: bool,
) -> None:
    """It is recorded later only where the ledger has it as accepted, and can hold it."""
    upstream.failure = failure
    ledger = FakeLedger(*([None] if always else []), error)
    publisher = made(ledger, intent_always=always)
    with pytest.raises(GatewayError) as caught:
        await publish(publisher, upstream, message())
    assert type(caught.value) is expected
    await publisher.close(5.0)
    late = 1 if always and error is not REFUSED else 0
    assert len(ledger.writes) == 1 + always + late
    assert len(pauses) == late


async def test_an_outcome_waits_for_a_ledger_that_can_be_written(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = FakeLedger(None, LedgerUnavailable("away"), LedgerUnavailable("away again"))
    pauses = 0

    async def wait(self: Backoff) -> None:
        nonlocal pauses
        pauses += 1
        ledger.healthy = pauses not in (1, 2, 5)

    monkeypatch.setattr(Backoff, "wait", wait)
    publisher = made(ledger, intent_always=True)
    with pytest.raises(NotRecorded):
        await publish(publisher, upstream, message())
    await publisher.close(5.0)
    assert pauses == 4
    assert ledger.writes == [[EventKind.ACCEPTED], *[[EventKind.CONFIRMED]] * 3]


async def test_an_outcome_that_cannot_be_stored_is_given_up(upstream: FakeUpstream, pauses: list[float]) -> None:
    ledger = FakeLedger(None, LedgerUnavailable("away"), REFUSED)
    publisher = made(ledger, intent_always=True)
    with pytest.raises(NotRecorded):
        await publish(publisher, upstream, message())
    await publisher.close(5.0)
    assert (len(ledger.writes), len(pauses)) == (3, 1)


@pytest.mark.parametrize(
    ("failures", "patiently", "tries"),
    [
        ([LedgerUnavailable("away")], False, 1),
        ([LedgerUnavailable("away"), LedgerUnavailable("away")], True, 3),
        ([REFUSED], True, 1),
        ([REFUSED], False, 1),
        ([LedgerUnavailable("away"), REFUSED], True, 2),
    ],
)
async def test_a_body_that_cannot_be_kept_fails_no_publish(
    failures: list[Exception], patiently: bool, tries: int, pauses: list[float]
) -> None:
    ledger = FakeLedger(*failures, keeps_bodies=True)
    results = [PublishOutcome("a"), PublishOutcome("b", Unroutable("no queue"))]
    items = [message(b"kept", id=b"1" * 16), message(b"refused", id=b"2" * 16)]
    await made(ledger).keep("shop", items, results, patiently=patiently)
    assert (len(ledger.kept), len(pauses)) == (tries, tries - 1)
    ((row,),) = ledger.kept[:1]
    stored = open_envelope(row.payload)
    assert (row.message_id, stored.message.body) == (b"1" * 16, b"kept")
    assert (stored.exchange, stored.routing_key, stored.redelivered) == ("shop", "orders", False)


async def test_bodies_are_kept_only_where_the_settings_say_so() -> None:
    ledger = FakeLedger()
    await made(ledger).keep("shop", [message()], [PublishOutcome("a")])
    assert not ledger.kept


# ---------------------------------------------------------------------------------------------------- what is known


def test_queues_of_a_broker_are_forgotten() -> None:
    publisher = made(FakeLedger())

    def durable(broker: str, queue: str, exchange: str = "") -> bool:
        return publisher._is_durable(broker, exchange, message(key=queue))

    for broker, queue in (("a", "x"), ("a", "y"), ("b", "x")):
        publisher.know_queue(broker, queue, durable=False)
        assert not durable(broker, queue)
    assert durable("a", "x", "shop"), "nobody knows to which queue an exchange gives it"
    assert durable("b", "y")
    publisher.know_queue("a", "y", durable=None)
    publisher.know_queue("a", "unknown", durable=None)
    assert durable("a", "y")
    publisher.forget_queues("a")
    assert durable("a", "x")
    assert not durable("b", "x")


def test_what_the_ledger_remembers_of_a_message() -> None:
    properties = Properties(message_id="m-1", content_type="t/\udcff", correlation_id=b"\xff", headers={"a": 1})
    found = describe("fake", "0-9-1", "shop", Publication("k", Message(b"body", properties)), "alice", "http")
    assert (found.size, found.routing_key, found.client, found.headers) == (4, "k", "alice", {"a": 1})
    assert found.properties == {"message_id": "m-1", "content_type": "t/\\udcff"}


@pytest.mark.parametrize("name", ["message_id", "content_type", "type", "correlation_id"])
def test_each_property_worth_a_search_is_remembered(name: str) -> None:
    assert summary(Message(b"", Properties(**{name: "x"}))) == {name: "x"}  # type: ignore[arg-type]


def test_a_message_without_such_properties_has_none() -> None:
    assert summary(Message(b"", Properties(delivery_mode=2))) is None
    assert summary(Message(b"", Properties(correlation_id=b"\xff"))) is None
    assert headers_of(Message(b"", Properties(headers={}))) is None

    class Damaged:
        @property
        def properties(self) -> Properties:
            raise FrameSyntaxError("damaged")

    damaged: Any = Damaged()
    assert (summary(damaged), headers_of(damaged)) == (None, None)

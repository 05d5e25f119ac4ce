"""What dead processes left open: sent again together, and nothing keeps the rest from it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from gateway.config import LedgerSettings
from gateway.core import Gateway
from gateway.core.publishing import endings, sending
from gateway.core.publishing.sending import BATCH
from gateway.errors import BrokerUnavailable, EncodeError, GatewayError, LedgerUnavailable, NotFound, PublishRefused
from gateway.ledger import Ledger, MessageIds, New, OutboxEntry, StoredAnswer, Unknown, Wanted
from gateway.ledger.pending.outbox import OutboxStore
from gateway.ledger.store import NO_LEASE
from gateway.observing.repeats import FIELDS
from gateway.observing.telemetry import Metrics
from tests.core.fakes import FakeUpstream
from tests.core.test_keyed_messages import _intent, message
from tests.ledgers import sqlite_ledger

new_id = MessageIds()


def intent(body: bytes = b"x", broker: str = "fake", payload: bytes | None = None) -> OutboxEntry:
    made = _intent(message("k", body))
    return OutboxEntry(
        message_id=new_id(),
        broker=broker,
        exchange="",
        routing_key=made.routing_key,
        payload=made.payload if payload is None else payload,
        message=made.message,
    )


async def resolved(folder: Path, wanted: list[Wanted], upstream: Any) -> list[Any]:
    """What the ledger says of the keys once another process has resolved what the first one left."""
    url = sqlite_ledger(folder)
    dead = await Ledger.open(url, LedgerSettings(), owner="dead")
    assert await dead.keyring.claim("alice", wanted) == [New()] * len(wanted)
    await dead.close()
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)
    await gateway.start()
    async with asyncio.timeout(10):
        await gateway.outbox.sender.recovered()
    found = await ledger.keyring.claim("alice", wanted)
    await gateway.close(1.0)
    await ledger.close()
    return found


@pytest.fixture
async def fake() -> FakeUpstream:
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    return upstream


async def test_they_are_sent_together(tmp_path: Path, fake: FakeUpstream) -> None:
    """A portion at a time: no message waits for the confirm of another."""
    fake.held = []
    publish, most = fake.publish_nowait, 0

    def watched(*args: Any, **more: Any) -> Any:
        nonlocal most
        if fake.held is None:  # the portion before was confirmed
            fake.held = []
        future = publish(*args, **more)
        most = max(most, len(fake.held))
        if len(fake.held) == 1:
            asyncio.get_running_loop().call_later(0.01, fake.confirm_held)
        return future

    fake.publish_nowait = watched  # type: ignore[method-assign]
    count = BATCH + 100
    wanted = [Wanted(f"k{number}", b"f" * 32, [intent(b"%d" % number)]) for number in range(count)]
    found = await resolved(tmp_path, wanted, fake)
    assert most == BATCH
    assert sorted(int(sent.body) for _, _, sent in fake.published) == list(range(count))
    assert [(type(answer), answer.intents) for answer in found] == [(Unknown, ())] * count


async def test_what_cannot_be_sent_holds_up_nobody(tmp_path: Path, fake: FakeUpstream) -> None:
    """One that is damaged, and one whose broker is gone: they stay, and so does the rest of their keys."""
    wanted = [
        Wanted("whole", b"f" * 32, [intent(b"1")]),
        Wanted("damaged", b"f" * 32, [intent(payload=b"?"), intent(b"2")]),
        Wanted("gone", b"f" * 32, [intent(broker="gone")]),
    ]
    found = await resolved(tmp_path, wanted, fake)
    assert sorted(sent.body for _, _, sent in fake.published) == [b"1", b"2"]
    assert [len(answer.intents) for answer in found] == [0, 1, 1]


async def test_a_fault_of_ours_lets_the_keys_go(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(fake, "publish_nowait", fail)
    (found,) = await resolved(tmp_path, [Wanted("k", b"f" * 32, [intent()])], fake)
    assert isinstance(found, Unknown)
    assert len(found.intents) == 1


async def test_the_keys_of_a_lost_lease_are_not_ended(tmp_path: Path, fake: FakeUpstream) -> None:
    """A process that loses its lease while it sends them takes them over again, or a request of its own does."""
    url = sqlite_ledger(tmp_path)
    dead = await Ledger.open(url, LedgerSettings(), owner="dead")
    assert await dead.claim_key("alice", "k", b"f" * 32, [intent()]) == New()
    await dead.close()
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=60.0), owner="next")
    gateway = Gateway(ledger, {"fake": fake}, Metrics("test"), ack_key=b"k" * 32)
    fake.held = []
    await gateway.start()
    async with asyncio.timeout(10):
        while not fake.held:
            await asyncio.sleep(0.01)
        lost = ledger.lease
        ledger._writer._abandoned = ledger._writer._lease
        ledger._writer._lose()
        while ledger.lease in (lost, NO_LEASE):
            await asyncio.sleep(0.01)
        assert [row.key for row in await ledger.outbox.take_over()] == ["k"]
        fake.confirm_held()
        await gateway.outbox.sender.recovered()
    await ledger.finish_key("alice", "k", 200, b"done", claimed=ledger.lease)
    answer = await ledger.claim_key("alice", "k", b"f" * 32, [intent()])
    assert isinstance(answer, StoredAnswer)
    await gateway.close(1.0)
    await ledger.close()


async def test_what_comes_to_be_in_doubt_at_the_last_look_is_taken_over(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger says so only once. Nobody else would look before the next process is found dead."""
    ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(shard_lease=60.0), owner="test")
    gateway = Gateway(ledger, {"fake": fake}, Metrics("test"), ack_key=b"k" * 32)
    await gateway.start()
    await gateway.outbox.sender.recovered()
    assert await ledger.claim_key("alice", "k", b"f" * 32, [intent()]) == New()
    take_over, looks = ledger.outbox.take_over, 0

    async def late(limit: int) -> list[OutboxEntry]:
        nonlocal looks
        looks += 1
        found = await take_over(limit)
        if looks == 1:
            lost = ledger.lease
            ledger._writer._abandoned = ledger._writer._lease
            ledger._writer._lose()
            while ledger.lease in (lost, NO_LEASE):
                await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(ledger.outbox, "take_over", late)
    gateway.outbox.sender.recover_soon()
    async with asyncio.timeout(10):
        await gateway.outbox.sender.recovered()
    assert len(fake.published) == 1
    await gateway.close(1.0)
    await ledger.close()


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (BrokerUnavailable("away"), 1),
        (PublishRefused("full"), 1),
        (EncodeError("too long"), 1),
        (NotFound(404, "no exchange"), 0),
    ],
)
async def test_what_cannot_be_sent_again_stays_unknown(
    tmp_path: Path, fake: FakeUpstream, failure: GatewayError, left: int
) -> None:
    """The attempt of the dead process may have arrived; only an answer of the broker ends that."""
    fake.failure = failure
    (found,) = await resolved(tmp_path, [Wanted("k", b"f" * 32, [intent()])], fake)
    assert isinstance(found, Unknown)
    assert len(found.intents) == left


async def test_a_broker_is_waited_for_once(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as a connection may take, and not again for each portion."""
    monkeypatch.setattr(sending, "BATCH", 1)
    caplog.set_level("INFO", "gateway")
    waits: list[float | None] = []

    async def wait_up(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return True

    monkeypatch.setattr(fake, "wait_up", wait_up)
    wanted = [Wanted(f"k{number}", b"f" * 32, [intent(b"%d" % number)]) for number in range(3)]
    assert [answer.intents for answer in await resolved(tmp_path, wanted, fake)] == [()] * 3
    assert waits == [fake.settings.connect_timeout]
    counts = [getattr(each, FIELDS)["count"] for each in caplog.records if each.msg == "ledger.in_doubt_resolved"]
    assert counts == [3]


async def test_a_ledger_that_is_away_is_asked_again(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "PAUSE_MAX", 0.05)
    take_over, asked = OutboxStore.take_over, []

    async def sometimes(self: OutboxStore, limit: int) -> list[OutboxEntry]:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) < 3:
            raise LedgerUnavailable("away")
        return await take_over(self, limit)

    monkeypatch.setattr(OutboxStore, "take_over", sometimes)
    (found,) = await resolved(tmp_path, [Wanted("k", b"f" * 32, [intent()])], fake)
    assert found.intents == ()
    assert len(fake.published) == 1
    assert min(later - earlier for earlier, later in itertools.pairwise(asked[:3])) > 0.03


async def test_keys_of_several_clients_are_ended(tmp_path: Path, fake: FakeUpstream) -> None:
    """Also where they have the same name, and where a key has several messages."""
    url = sqlite_ledger(tmp_path)
    dead = await Ledger.open(url, LedgerSettings(), owner="dead")
    await dead.keyring.claim("bob", [Wanted("k", b"f" * 32, [intent(b"1")])])
    wanted = [Wanted("k", b"f" * 32, [intent(b"2"), intent(b"3")]), Wanted("l", b"f" * 32, [intent(b"4")])]
    await dead.close()
    assert [found.intents for found in await resolved(tmp_path, wanted, fake)] == [(), ()]
    assert sorted(sent.body for _, _, sent in fake.published) == [b"1", b"2", b"3", b"4"]
    ledger = await Ledger.open(url, LedgerSettings(), owner="third")
    (found,) = await ledger.keyring.claim("bob", [Wanted("k", b"f" * 32, [intent(b"1")])])
    assert isinstance(found, Unknown)
    assert found.intents == ()
    await ledger.close()


async def test_what_does_not_end_in_time_is_left_to_the_next_start(tmp_path: Path, fake: FakeUpstream) -> None:
    url = sqlite_ledger(tmp_path)
    dead = await Ledger.open(url, LedgerSettings(), owner="dead")
    assert await dead.claim_key("alice", "k", b"f" * 32, [intent()]) == New()
    await dead.close()
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    upstream: Any = fake
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)
    fake.held = []
    await gateway.start()
    async with asyncio.timeout(10):
        while not fake.held:
            await asyncio.sleep(0.01)
        await gateway.outbox.sender.close(0.01)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "resolve in doubt"]
    await gateway.close(1.0)
    await ledger.close()
    ledger = await Ledger.open(url, LedgerSettings(), owner="third")
    found = await ledger.claim_key("alice", "k", b"f" * 32, [intent()])
    assert isinstance(found, Unknown)
    assert [row.doubtful for row in found.intents] == [True]
    await ledger.close()

"""A stream's window: how much it pulls, when it waits for room, what ends it, and what goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gateway.amqp.message import Message
from gateway.budgets import ShareHolder
from gateway.config import SubscriptionSettings
from gateway.core import Pulled, SubscriptionResource
from gateway.core.leasing import streams as module
from gateway.core.leasing.ack_ids import LedgerAckId
from gateway.core.leasing.leases import Lease
from gateway.core.leasing.pulled import LedgerLease
from gateway.core.leasing.streams import DeliveryStream, StreamReader
from gateway.errors import BrokerUnavailable, LedgerUnavailable, NoSuchSubscription, Overloaded, StateError

ME = ShareHolder("me")


class Made:
    """A stream over pulls that the test gives."""

    def __init__(self, *, window: int = 3, shared: bool = False, seconds: float | None = 60.0, **reader: Any) -> None:
        loop = asyncio.get_running_loop()
        self.draining: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.ledger_leases = SimpleNamespace(on_settled=[])
        self.handed_back: list[tuple[list[Any], str]] = []
        self.given: list[list[Pulled] | Exception] = []
        self.asked: list[tuple[int, float, float | None, int]] = []
        self.came = asyncio.Event()
        settings = SubscriptionSettings(broker="fake", queue="orders", lease="ledger")
        self.subscription = SubscriptionResource("s", settings, "", read_only=False)
        self.found: SubscriptionResource | Exception = self.subscription
        self.rows: dict[bytes, Any] = {}
        self.looked: list[bytes] = []
        self.deliveries = self
        this: Any = self
        self.stream = DeliveryStream(
            this, this, this, self.subscription, StreamReader(self.gone, window, seconds, ME, **reader), shared=shared
        )

    def hand_back(self, left: list[Any], reason: str) -> None:
        self.handed_back.append((left, reason))

    async def get(self, name: Any) -> Any:
        """A subscription by name, or a delivery by id."""
        if isinstance(name, bytes):
            self.looked.append(name)
            return self.rows.get(name)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def pull(
        self, subscription: Any, wanted: int, wait: float, seconds: Any, gone: Any, client: Any, bytes_max: int
    ) -> list[Pulled]:
        assert (subscription.name, gone, client) == ("s", self.gone, ME)
        self.asked.append((wanted, wait, seconds, bytes_max))
        if not self.given:
            self.came.clear()
            others: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.came.wait()), self.gone, self.draining]
            await asyncio.wait(others, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            others[0].cancel()
            return []
        found = self.given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def settle(self, number: int, *, lease: int = 1, due_in: float = 0.0) -> None:
        """Somebody settles, or extends, a lease of the ledger."""
        for call in self.ledger_leases.on_settled:
            call([LedgerAckId(bytes([number]) * 16, b"m" * 16, lease, 1)], due_in)

    async def collect(self, count: int) -> list[list[int]]:
        """The numbers of this many batches."""
        found = []
        async with asyncio.timeout(5):
            async for batch in self.stream.batches():
                found.append([len(item.lease.subscription) and number_of(item) for item in batch])
                if len(found) == count:
                    break
        return found


def number_of(item: Pulled) -> int:
    return item.lease.delivery[0] if isinstance(item.lease, LedgerLease) else item.lease.number


def owed(number: int, size: int = 1) -> Pulled:
    """One that the ledger holds."""
    lease = LedgerLease("ack", bytes([number]) * 16, b"m" * 16, 1, "s", "fake")
    delivery: Any = SimpleNamespace(message=Message(bytes(size)))
    return Pulled(lease, b"m" * 16, 1, delivery, False, False, False)


def leased(number: int, size: int = 1) -> Pulled:
    """One that its broker holds."""
    delivery: Any = SimpleNamespace(message=Message(bytes(size)))
    lease = Lease(number, "ack", b"m" * 16, "fake", "", "s", delivery, 0.0, 0.0, ME)
    return Pulled(lease, b"m" * 16, 1, delivery, False, False, False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("HEARTBEAT", 60.0), ("LOOK_EVERY", 0.02), ("ASK_EVERY", 60.0), ("PAUSE", 0.01)):
        monkeypatch.setattr(module, name, seconds)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def test_no_more_is_out_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    made = Made(window=3, seconds=None)
    made.given = [[owed(1), leased(2)], [owed(3)], [owed(4)]]
    collecting = asyncio.create_task(made.collect(3))
    await until(lambda: len(made.asked) == 2)
    await asyncio.sleep(0.02)
    assert [wanted for wanted, *_ in made.asked] == [2, 1]
    assert [seconds for _, _, seconds, _ in made.asked] == [None, None]
    assert made.stream.outstanding == 3
    made.settle(9)
    made.settle(1, lease=2)
    await asyncio.sleep(0.02)
    assert len(made.asked) == 2, "neither is out with this reader"
    made.settle(1)
    assert await collecting == [[1, 2], [3], [4]]
    assert made.asked[2][0] == 1


async def test_the_end_of_a_broker_s_lease_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_BYTES", 10)
    made = Made(window=1)
    first = leased(1, 10)
    made.given = [[first], [leased(2)]]
    collecting = asyncio.create_task(made.collect(2))
    await until(lambda: made.stream.outstanding == 1)
    assert isinstance(first.lease, Lease)
    await until(lambda: first.lease.on_end is not None)  # type: ignore[union-attr]
    assert first.lease.on_end is not None
    first.lease.on_end(first.lease)
    assert await collecting == [[1], [2]]


async def test_bytes_count_in_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_BYTES", 10)
    made = Made(window=9, bytes_left=lambda: 7)
    made.given = [[owed(1, 4)], [owed(2, 5)], [leased(3, 1)], [owed(4)]]
    collecting = asyncio.create_task(made.collect(4))
    await until(lambda: len(made.asked) == 3)
    await asyncio.sleep(0.02)
    assert [bytes_max for *_, bytes_max in made.asked] == [7, 6, 1]
    made.settle(2)
    assert await collecting == [[1], [2], [3], [4]]
    assert made.asked[3][3] == 5
    monkeypatch.setattr(module, "BATCH_BYTES", 2)
    made.given = [[owed(5)]]
    await made.collect(1)
    assert made.asked[4][3] == 2


async def test_silence_is_broken_by_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT", 0.05)
    made = Made(window=1)
    made.given = [[owed(1)]]
    assert await made.collect(3) == [[1], [], []]
    monkeypatch.setattr(module, "ASK_EVERY", 0.01)
    idle = Made()
    assert await idle.collect(1) == [[]]
    assert len(idle.asked) > 2, "it is asked more often whether the reader may have more"
    assert max(wait for _, wait, *_ in idle.asked) <= 0.01


async def test_a_reader_that_may_have_no_more_gets_nothing() -> None:
    said = [""]

    async def refused() -> str:
        return said[0]

    made = Made(refused=refused)
    made.given = [[owed(1)], [owed(2)]]
    batches = made.stream.batches()
    assert [number_of(item) for item in await anext(batches)] == [1]
    said[0] = "its key is gone"
    assert [each async for each in batches] == []
    assert (made.stream.reason, len(made.asked)) == ("its key is gone", 1)

    calls = 0

    async def later() -> str:
        nonlocal calls
        calls += 1
        return "its key is gone" if calls == 2 else ""

    other = Made(refused=later)
    other.given = [[owed(1)]]
    assert [each async for each in other.stream.batches()] == []
    assert other.stream.outstanding == 1
    other.stream.close()
    assert [number_of(item) for item in other.handed_back[0][0]] == [1], "what was pulled goes back"


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), LedgerUnavailable("away"), Overloaded("full")])
async def test_what_passes_is_waited_for(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.05)
    made = Made()
    made.given = [error, [owed(1)]]
    collecting = asyncio.create_task(made.collect(1))
    await until(lambda: made.asked)
    await asyncio.sleep(0.02)
    assert len(made.asked) == 1
    assert await collecting == [[1]]


@pytest.mark.parametrize("error", [StateError("it is pushed"), NoSuchSubscription("no subscription 's'")])
async def test_what_does_not_pass_ends_it(error: Exception) -> None:
    made = Made()
    made.found = error
    assert [each async for each in made.stream.batches()] == []
    assert made.stream.reason == str(error)


async def test_another_queue_needs_another_stream() -> None:
    """Its reader was let in for the one before."""
    made = Made()
    made.given = [[owed(1)]]
    batches = made.stream.batches()
    await anext(batches)
    same = structs.replace(made.subscription.settings, prefetch=7)
    made.found = SubscriptionResource("s", same, "", read_only=False)
    made.given = [[owed(2)]]
    assert [number_of(item) for item in await anext(batches)] == [2]
    other = structs.replace(same, queue="other")
    made.found = SubscriptionResource("s", other, "", read_only=False)
    assert [each async for each in batches] == []
    assert "takes from another queue now" in made.stream.reason


@pytest.mark.parametrize(
    ("name", "reason"), [("draining", "the gateway is shutting down"), ("gone", "the reader is gone")]
)
@pytest.mark.parametrize("waits_for", ["messages", "room", "a pause"])
async def test_it_ends_at_once_with_the_gateway_or_the_reader(
    monkeypatch: pytest.MonkeyPatch, name: str, reason: str, waits_for: str
) -> None:
    monkeypatch.setattr(module, "PAUSE", 60.0)
    made = Made(window=1)
    given: dict[str, Any] = {"messages": [], "room": [[owed(1)]], "a pause": [BrokerUnavailable("away")]}
    made.given = given[waits_for]
    collecting = asyncio.create_task(made.collect(9))
    await until(lambda: made.asked)
    await asyncio.sleep(0.02)
    getattr(made, name).set_result(None)
    assert await collecting == ([[1]] if waits_for == "room" else [])
    assert made.stream.reason == reason


async def test_what_is_not_settled_goes_back_at_the_end() -> None:
    made = Made()
    broker = leased(2)
    made.given = [[owed(1), broker, owed(3)]]
    await made.collect(1)
    made.settle(3)
    made.stream.close()
    ((left, why),) = made.handed_back
    assert ([number_of(item) for item in left], why) == ([1, 2], "the stream ended")
    assert left[0].delivery.message.body == b"", "the message itself is not held"
    assert isinstance(broker.lease, Lease)
    assert broker.lease.on_end is None
    assert made.ledger_leases.on_settled == []
    assert made.stream.outstanding == 0
    idle = Made()
    idle.stream.close()
    assert idle.handed_back == []


# --------------------------------------------------------------------------------------- leases of the ledger that end


async def test_a_lease_that_ends_makes_room() -> None:
    made = Made(window=1, seconds=0.03)
    made.given = [[owed(1)], [owed(2)]]
    assert await made.collect(2) == [[1], [2]]
    assert made.looked == []


async def test_an_extension_keeps_the_place() -> None:
    made = Made(window=1, seconds=0.05)
    made.given = [[owed(1)], [owed(2)]]
    collecting = asyncio.create_task(made.collect(2))
    await until(lambda: made.stream.outstanding == 1)
    made.settle(1, due_in=60.0)
    await asyncio.sleep(0.1)
    assert len(made.asked) == 1
    made.settle(1)
    assert await collecting == [[1], [2]]


@pytest.mark.parametrize(
    ("row", "makes_room"),
    [
        (None, True),
        (SimpleNamespace(out=False, lease=1), True),
        (SimpleNamespace(out=True, lease=2), True),
        (SimpleNamespace(out=True, lease=1), False),
    ],
)
async def test_what_another_process_settled_makes_room(row: Any, makes_room: bool) -> None:
    made = Made(window=2, shared=True)
    made.rows = {bytes([1]) * 16: SimpleNamespace(out=True, lease=1), bytes([2]) * 16: row}
    made.given = [[owed(1), owed(2)], [owed(3)]]
    collecting = asyncio.create_task(made.collect(2))
    await until(lambda: len(made.looked) >= 4 or collecting.done())
    assert made.looked[:2] == [bytes([1]) * 16, bytes([2]) * 16]
    assert collecting.done() is makes_room or len(made.asked) == 1 + makes_room
    made.gone.set_result(None)
    assert (await collecting)[1:] == ([[3]] if makes_room else [])


async def test_a_ledger_that_cannot_be_looked_at_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    made = Made(window=2, shared=True)
    made.given = [[owed(1), owed(2)], [owed(3)]]
    get, failures = made.get, 2

    async def failing(name: Any) -> Any:
        nonlocal failures
        if isinstance(name, bytes) and failures:
            failures -= 1
            raise LedgerUnavailable("away")
        return await get(name)

    made.get = failing  # type: ignore[method-assign]
    assert await made.collect(2) == [[1, 2], [3]]
    assert (failures, made.looked) == (0, [bytes([1]) * 16])

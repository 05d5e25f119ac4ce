"""Replays from the ledger and from queues: each message once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import time_ns
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EncodeError,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchReplay,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StateError,
)
from gateway.ledger import BacklogSettlement, Ending, EventKind, KeptBody, Owed, id_text
from gateway.replays import JobState, ReplayRequest, ReplaySource, ReplayTarget, sources
from gateway.replays import queues as queues_module
from gateway.replays.requests import DeliveriesSource, MessagesSource, QueueSource
from gateway.replays.sources import DeadDeliverySource, LedgerMessageSource, MessageSource
from gateway.replays.supervisor import REPLAY_WORK
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream
from tests.replays.conftest import House, payload


def request(
    *,
    id: str = "r1",
    messages: MessagesSource | None = None,
    deliveries: DeliveriesSource | None = None,
    queue: QueueSource | None = None,
    rate: float = 0.0,
    **target: Any,
) -> ReplayRequest:
    source = ReplaySource(messages=messages, deliveries=deliveries, queue=queue)
    return ReplayRequest(id=id, source=source, target=ReplayTarget(**target), rate=rate)


ALL = MessagesSource(broker="fake")


def sent(upstream: FakeUpstream) -> list[bytes]:
    return [message.body for _, _, message in upstream.published]


def marks(upstream: FakeUpstream) -> list[dict[str, str]]:
    return [message.properties.headers["x-gateway"] for _, _, message in upstream.published]


# ------------------------------------------------------------------------------------------------ messages


async def test_messages_to_the_same_place(house: House) -> None:
    ids = await house.known(1_200)
    job, created = await house.replays.ask(request(messages=ALL), "me")
    assert created
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.refused, job.total) == (JobState.DONE, 1_200, 1_200, {}, 1_200)
    assert sent(house.fake) == [b"message %d" % number for number in range(1_200)]  # in their order
    mark = marks(house.fake)[0]
    assert mark == {"id": mark["id"], "replay": "r1", "replay_of": id_text(ids[0])}
    assert await house.kinds(ids[0]) == [EventKind.CONFIRMED, EventKind.REPLAYED]
    timeline = await house.gateway.timeline(mark["id"])
    assert (timeline.message.origin, timeline.message.client) == ("replay", "me")
    assert [event.kind for event in timeline.events] == [EventKind.CONFIRMED]


async def test_to_another_broker_and_exchange(house: House) -> None:
    await house.known(2)
    await house.other.declare_exchange("shop")
    await house.other.bind_queue("orders", "shop", "new")
    await house.replays.ask(request(messages=ALL, broker="other", exchange="shop", routing_key="new"), "")
    assert (await house.ended("r1")).sent == 2
    assert [(exchange, key) for exchange, key, _ in house.other.published] == [("shop", "new")] * 2


async def test_without_a_body_is_counted_and_named(house: House) -> None:
    without = await house.known(3, kept=False)
    await house.known(2)
    await house.replays.ask(request(messages=ALL), "")
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.refused) == (JobState.DONE, 5, 2, {"no_body": 3})
    assert job.reason.startswith('3 of 5 messages were not sent: no_body 3. retention.bodies = "days" keeps')
    refusals, following = await house.replays.refusals("r1", 0)
    assert [each.id for each in refusals] == [id_text(each) for each in without]
    assert following is None


async def test_only_what_was_there_and_fits(house: House) -> None:
    await house.known(3)
    await house.known(2, routing_key="other")
    await house.fake.declare_queue("other")
    await house.replays.ask(request(messages=MessagesSource(routing_key="other")), "")
    assert (await house.ended("r1")).sent == 2


async def test_by_id(house: House) -> None:
    ids = await house.known(5)
    wanted = (id_text(ids[3]), id_text(ids[1]), id_text(house.gateway.ids()))
    await house.replays.ask(request(messages=MessagesSource(ids=wanted)), "")
    job = await house.ended("r1")
    assert (job.sent, job.refused) == (2, {"message_not_found": 1})
    assert sent(house.fake) == [b"message 1", b"message 3"]


async def test_running_it_twice_sends_nothing_twice(house: House) -> None:
    await house.known(4)
    await house.replays.ask(request(messages=ALL), "")
    await house.ended("r1")
    await house.known(1)
    job, created = await house.replays.ask(request(messages=ALL), "")
    assert (created, job.runs) == (False, 2)
    job = await house.until("r1", lambda job: job.state is JobState.DONE and job.runs == 2)
    assert (job.found, job.skipped, job.sent) == (5, 4, 1)
    assert len(house.fake.published) == 5
    with pytest.raises(StateError):
        await house.replays.ask(request(messages=ALL, broker="other"), "")


async def test_it_is_begun_once_by_calls_at_the_same_time(house: House) -> None:
    """One of them looks for what is wished for while the other one still reads the replay."""
    await house.known(2)
    real, begun = house.replays._store.load, asyncio.Event()

    async def slow(job_id: str) -> Any:
        found = await real(job_id)
        begun.set()
        await asyncio.sleep(0.05)
        return found

    house.replays._store.load = slow  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL, rate=1.0), "")
    await begun.wait()
    await asyncio.gather(*(house.replays.refresh("r1") for _ in range(3)))
    runner = house.replays._runners["r1"]
    await house.replays.refresh("r1")
    assert house.replays._runners == {"r1": runner}
    assert sum(task.get_name() == "replay r1" for task in asyncio.all_tasks()) == 1


async def test_a_process_that_is_ending_begins_none_and_the_next_one_does(house: House) -> None:
    await house.known(1)
    await house.replays.close(1.0)
    await house.replays.ask(request(messages=ALL), "")
    await house.gateway.ownership.review(REPLAY_WORK)
    await asyncio.sleep(0.2)
    assert (await house.replays.get("r1")).state is JobState.PENDING
    assert not house.fake.published
    await house.restart()
    assert (await house.ended("r1")).sent == 1


async def test_it_is_not_begun_for_another_process(house: House) -> None:
    """Whose it has become while it was read."""
    await house.known(2)
    house.gateway.ownership.keeps = lambda kind, name: False  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL), "")
    await asyncio.sleep(0.2)
    assert house.replays._runners == {}
    assert house.fake.published == []


async def test_asked_for_again_where_its_owner_hears_nothing_of_it(house: House) -> None:
    """It has claimed a replay that had just ended, and what the other process says of it is lost."""
    await house.known(1)
    await house.replays.ask(request(messages=ALL), "")
    await house.ended("r1")
    house.gateway.ownership.keeps = lambda kind, name: True  # type: ignore[method-assign]

    async def say_nothing(job_id: str) -> None: ...

    house.replays._tell = say_nothing  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL), "")
    assert await house.replays.names() == ["r1"]
    job = await house.until("r1", lambda job: job.state is JobState.DONE)
    assert (job.runs, job.skipped) == (2, 1)


async def test_asked_for_again_before_its_owner_has_given_it_back(house: House) -> None:
    await house.known(1)
    real, ended = house.gateway.ownership.changed, asyncio.Event()

    def changed(kind: str, name: str = "") -> None:
        if (kind, name) == (REPLAY_WORK, ""):
            ended.set()  # and the review of the work comes late
        else:
            real(kind, name)

    house.gateway.ownership.changed = changed  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(60):
        await ended.wait()
    await house.replays.ask(request(messages=ALL), "")
    job = await house.until("r1", lambda job: job.state is JobState.DONE)
    assert (job.runs, job.skipped) == (2, 1)


async def test_asked_for_again_while_its_end_has_no_answer(house: House) -> None:
    """The end is in the ledger, and whoever reads it may ask again: that is not written over."""
    await house.known(3)
    real, unanswered = house.ledger.put_resource, asyncio.Event()
    again = asyncio.Event()

    async def late(kind: str, name: str, spec: Any, etag: str | None) -> Any:
        answer = await real(kind, name, spec, etag)
        if name == "r1" and spec["state"] == "done" and not unanswered.is_set():
            unanswered.set()
            await again.wait()
            raise LedgerUnavailable("nobody knows what became of it")
        return answer

    house.ledger.put_resource = late  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(60):
        await unanswered.wait()
    await house.known(1)
    job, _ = await house.replays.ask(request(messages=ALL), "")
    assert job.runs == 2
    again.set()
    job = await house.until("r1", lambda job: job.state is JobState.DONE)
    assert (job.runs, job.sent, job.skipped) == (2, 1, 3)
    assert len(house.fake.published) == 4


async def test_one_that_is_stored_though_its_request_fails_begins(house: House) -> None:
    """It would begin at the next start, whenever that is."""
    await house.known(3)
    real = house.ledger.put_resource

    async def cut(*arguments: Any) -> Any:
        await real(*arguments)
        house.ledger.put_resource = real  # type: ignore[method-assign]
        raise CommitUnknown("cut off")

    for run in (1, 2):
        house.ledger.put_resource = cut  # type: ignore[method-assign]
        with pytest.raises(CommitUnknown):
            await house.replays.ask(request(messages=ALL), "")
        job = await house.until("r1", lambda job, run=run: job.state is JobState.DONE and job.runs == run)
    assert (job.found, job.skipped) == (3, 3)
    assert len(house.fake.published) == 3


async def test_what_is_refused_is_named_and_the_rest_is_sent(house: House) -> None:
    await house.known(2)
    await house.known(2, routing_key="nowhere")
    await house.replays.ask(request(messages=ALL), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.refused) == (JobState.DONE, 2, {"unroutable": 2})
    refusals, _ = await house.replays.refusals("r1", 0)
    assert "no queue takes 'nowhere'" in refusals[0].detail


async def test_a_broker_that_is_away_is_waited_for(house: House) -> None:
    await house.known(2)
    house.fake.state = UpstreamState.DOWN
    await house.replays.ask(request(messages=ALL), "")
    job = await house.until("r1", lambda job: bool(job.reason))
    assert (job.state, job.reason) == (JobState.RUNNING, "broker fake is down")
    house.fake.state = UpstreamState.UP
    job = await house.ended("r1")
    assert (job.state, job.sent, job.reason, job.resent) == (JobState.DONE, 2, "", 0)


async def test_what_is_sent_again_after_a_confirm_that_never_came_is_marked(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.known(2)
    publish, published = house.fake.publish_nowait, 0

    def lose_one_confirm(*arguments: Any, **options: Any) -> asyncio.Future[Any]:
        nonlocal published
        published += 1
        future = publish(*arguments, **options)
        if published != 1:
            return future
        lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lost.set_exception(OutcomeUnknown("no confirm came"))
        return lost

    monkeypatch.setattr(house.fake, "publish_nowait", lose_one_confirm)
    await house.replays.ask(request(messages=ALL), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.resent) == (JobState.DONE, 2, 1)
    assert sorted(sent(house.fake)) == [b"message 0", b"message 0", b"message 1"]
    assert [mark["id"] for mark in marks(house.fake) if "resent" in mark] == [marks(house.fake)[0]["id"]]


# ---------------------------------------------------------------------------------------------- steering


async def test_paused_resumed_and_cancelled(house: House) -> None:
    await house.known(200)
    await house.replays.ask(request(messages=ALL, rate=40.0), "")
    await house.until("r1", lambda job: job.sent >= 10)
    await house.replays.pause("r1")
    job = await house.until("r1", lambda job: job.state is JobState.PAUSED)
    count = len(house.fake.published)
    await asyncio.sleep(0.4)
    assert len(house.fake.published) == count
    await house.replays.resume("r1")
    await house.until("r1", lambda job: job.sent > count)
    await house.replays.cancel("r1")
    job = await house.ended("r1")
    assert job.state is JobState.CANCELLED
    assert job.sent == len(house.fake.published) < 200
    assert sent(house.fake) == [b"message %d" % number for number in range(job.sent)]
    for verb in (house.replays.pause, house.replays.resume):
        with pytest.raises(StateError):
            await verb("r1")
    assert (await house.replays.cancel("r1")).state is JobState.CANCELLED
    with pytest.raises(NoSuchReplay):
        await house.replays.pause("r2")


async def test_nothing_waits_at_the_broker_any_more_once_another_process_has_it(house: House) -> None:
    """What waits there for room would be sent without a mark, beside what the other process sends."""
    await house.known(3)
    held: list[Any] = []
    house.fake.held = held
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(8):
        while len(held) < 3:
            await asyncio.sleep(0.01)
    task = house.replays._runners["r1"]._task
    assert task is not None
    house.replays.lost("r1")
    await asyncio.wait([task])
    assert all(future.cancelled() for future in held)


async def test_cancelled_while_the_broker_is_away(house: House) -> None:
    await house.known(2)
    house.fake.state = UpstreamState.DOWN
    await house.replays.ask(request(messages=ALL), "")
    await house.until("r1", lambda job: bool(job.reason))
    await house.replays.cancel("r1")
    job = await house.ended("r1")
    assert (job.state, job.sent) == (JobState.CANCELLED, 0)


# ---------------------------------------------------------------------------------------------- crashes


async def test_killed_after_sending_and_before_recording(house: House) -> None:
    ids = await house.known(3)
    house.fake.held = []
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(60):
        while len(house.fake.published) < 3:
            await asyncio.sleep(0.01)
    await house.restart()
    house.fake.held = None
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.resent) == (JobState.DONE, 3, 3, 3)
    found = marks(house.fake)
    assert [mark["id"] for mark in found[:3]] == [mark["id"] for mark in found[3:]]
    assert [mark.get("resent") for mark in found] == [None] * 3 + ["1"] * 3
    timeline = await house.gateway.timeline(found[0]["id"])
    assert [event.kind for event in timeline.events] == [EventKind.RESENT, EventKind.CONFIRMED]
    assert await house.kinds(ids[0]) == [EventKind.CONFIRMED, EventKind.REPLAYED]


async def test_killed_again_and_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message once, but for the chunk that was under way; those are marked. Counts are exact."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 20)
    await house.known(400)
    await house.replays.ask(request(messages=ALL), "")
    for kills in range(5):
        await house.until("r1", lambda job, kills=kills: job.sent >= (kills + 1) * 60)
        await house.restart()
    job = await house.ended("r1")
    assert (job.found, job.sent) == (400, 400)
    first = [message.body for _, _, message in house.fake.published if "resent" not in mark_of(message)]
    again = [message.body for _, _, message in house.fake.published if "resent" in mark_of(message)]
    assert len(first) == len(set(first))
    assert {*first, *again} == {b"message %d" % number for number in range(400)}
    assert len(again) <= 20 * 5


def mark_of(message: Message) -> dict[str, str]:
    found: dict[str, str] = message.properties.headers["x-gateway"]
    return found


async def test_killed_between_recording_and_the_next_chunk(house: House) -> None:
    ids = await house.known(3)
    real = house.replays._store.save
    saves = 0

    async def save(kept: Any) -> None:
        nonlocal saves
        if kept.job.sent:  # the chunk is recorded; its count never is
            await asyncio.Event().wait()
        saves += 1
        await real(kept)

    house.replays._store.save = save  # type: ignore[method-assign]
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(60):
        while EventKind.REPLAYED not in await house.kinds(ids[2]):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    await house.restart()
    job = await house.ended("r1")
    assert (job.found, job.sent, job.resent, len(house.fake.published)) == (3, 3, 0, 3)


async def hold_saves(house: House, after: int) -> list[None]:
    """From now on only so many saves are written; each that is not is in the answer, and waits for ever."""
    real, waiting, left = house.replays._store.save, [], after

    async def save(kept: Any) -> None:
        nonlocal left
        if left <= 0:
            waiting.append(None)
            await asyncio.Event().wait()
        left -= 1
        await real(kept)

    house.replays._store.save = save  # type: ignore[method-assign]
    return waiting


async def kill_at_save(house: House, after: int) -> None:
    """Start it again, and kill it where it would write for that time after what it found."""
    await house.kill()
    await house.start(begin=False)
    waiting = await hold_saves(house, after)
    house.replays.begin()
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_killed_once_more_before_anything_is_sent(
    house: House, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """What the first owner had sent is not sent again by the third, wherever the second stopped."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 20)
    await house.known(50)
    waiting = await hold_saves(house, 3)  # as it begins, the first chunk's, the second chunk's: the third's is not
    await house.replays.ask(request(messages=ALL), "")
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)
    assert len(house.fake.published) == 40
    await kill_at_save(house, after)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.resent, job.landed, job.flying) == (JobState.DONE, 50, 50, 0, (), ())
    assert sent(house.fake) == [b"message %d" % number for number in range(50)]


# ----------------------------------------------------------------------------------------------- deliveries


async def test_dead_ones_are_revived_at_the_same_place(house: House) -> None:
    ids = await house.dead(3)
    woken: list[str] = []
    house.gateway.on_owed.append(woken.append)
    await house.replays.ask(request(deliveries=DeliveriesSource(subscription="billing")), "")
    job = await house.ended("r1")
    assert (job.state, job.sent) == (JobState.DONE, 3)
    rows = [await house.ledger.deliveries.get(each) for each in ids]
    assert all(row is not None and not row.dead for row in rows)
    assert woken == ["billing"]
    assert not house.fake.published


async def test_dead_ones_go_elsewhere_and_are_gone(house: House) -> None:
    ids = await house.dead(3)
    await house.replays.ask(
        request(deliveries=DeliveriesSource(), broker="other", exchange="amq.default", routing_key="orders"), ""
    )
    job = await house.ended("r1")
    assert (job.state, job.sent) == (JobState.DONE, 3)
    assert sent(house.other) == [b"dead 0", b"dead 1", b"dead 2"]
    assert [await house.ledger.deliveries.get(each) for each in ids] == [None] * 3
    message = id_text_to_bytes(marks(house.other)[0]["replay_of"])
    assert await house.kinds(message) == [EventKind.STORED, EventKind.REPLAYED]


def id_text_to_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dead", [True, False])
async def test_a_chunk_has_so_many_bytes_at_most_unless_it_is_one_message(
    house: House, monkeypatch: pytest.MonkeyPatch, dead: bool, named: bool
) -> None:
    """They are in memory together."""
    ids = await (house.dead(5, text=b"message %d") if dead else house.known(5))
    names = tuple(id_text(each) for each in ids) if named else None
    source: MessageSource = (
        DeadDeliverySource(house.gateway, DeliveriesSource(ids=names), time_ns() // 1_000, revives=False)
        if dead
        else LedgerMessageSource(house.gateway, MessagesSource(ids=names), time_ns() // 1_000)
    )
    for most, expected in ((8, ["0", "1", "2", "3", "4"]), (18, ["01", "23", "4"]), (26, ["01", "23", "4"])):
        monkeypatch.setattr(sources, "OCTETS_MAX", most)
        position, last, found = source.begin(5), False, []
        while not last and len(found) < 9:
            chunk = await source.take(position, 500, Counter())
            found.append("".join(item.message.body.decode().removeprefix("message ") for item in chunk.items))
            position, last = chunk.position, chunk.last
        assert found == expected


async def test_of_one_that_is_not_dead_a_copy_is_sent(house: House) -> None:
    (only,) = await house.dead(1, alive=True)
    source = DeliveriesSource(ids=(id_text(only),))
    await house.replays.ask(request(deliveries=source, broker="other", exchange="", routing_key="orders"), "")
    assert (await house.ended("r1")).sent == 1
    assert await house.ledger.deliveries.get(only) is not None
    await house.replays.ask(request(id="r2", deliveries=source), "")  # the same place: it is owed already
    assert (await house.ended("r2")).refused == {"state": 1}


async def test_killed_while_dead_ones_are_on_their_way(house: House) -> None:
    ids = await house.dead(3)
    house.other.held = []
    await house.replays.ask(
        request(deliveries=DeliveriesSource(), broker="other", exchange="", routing_key="orders"), ""
    )
    async with asyncio.timeout(60):
        while len(house.other.published) < 3:
            await asyncio.sleep(0.01)
    await house.restart()
    house.other.held = None
    job = await house.ended("r1")
    assert (job.found, job.sent, job.resent) == (3, 3, 3)
    assert [mark.get("resent") for mark in marks(house.other)] == [None] * 3 + ["1"] * 3
    assert [await house.ledger.deliveries.get(each) for each in ids] == [None] * 3


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_dead_ones_that_are_gone_are_not_missed_after_two_kills(
    house: House, monkeypatch: pytest.MonkeyPatch, named: bool, elsewhere: bool
) -> None:
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 4)
    ids = await house.dead(10)
    waiting = await hold_saves(house, 2)
    source = DeliveriesSource(ids=tuple(id_text(each) for each in ids)) if named else DeliveriesSource()
    target = {"broker": "other", "exchange": "", "routing_key": "orders"} if elsewhere else {}
    await house.replays.ask(request(deliveries=source, **target), "")
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)
    await kill_at_save(house, 1)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.refused, job.resent) == (JobState.DONE, 10, 10, {}, 0)
    assert len(house.other.published) == 10 * elsewhere


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
@pytest.mark.parametrize("purge", [True, False])
async def test_killed_while_those_of_a_code_are_purged_or_revived(
    house: House, monkeypatch: pytest.MonkeyPatch, purge: bool, saves: int
) -> None:
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 4)
    ids = await house.dead(10, code="rejected")
    others = [*await house.dead(2, code="expired"), *await house.dead(2, alive=True)]
    waiting = await hold_saves(house, saves)
    target = {"purge": True} if purge else {}
    await house.replays.ask(request(deliveries=DeliveriesSource(code="rejected"), **target), "")
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)
    await kill_at_save(house, 1)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.refused, job.resent) == (JobState.DONE, 10, 10, {}, 0)
    rows = [await house.ledger.deliveries.get(each) for each in ids]
    assert all(row is None if purge else row is not None and not row.dead for row in rows)
    assert all([await house.ledger.deliveries.get(each) for each in others]), "the others are where they were"
    assert not house.fake.published + house.other.published


async def test_one_that_is_revived_meanwhile_is_not_purged(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await house.dead(2)
    settle = house.ledger.deliveries.settle

    async def late(settlements: Any) -> list[bool]:
        await settle([BacklogSettlement(first, Ending.REVIVE)])
        return await settle(settlements)

    monkeypatch.setattr(house.ledger.deliveries, "settle", late)
    await house.replays.ask(request(deliveries=DeliveriesSource(), purge=True), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.refused) == (JobState.DONE, 1, {"state": 1})
    assert await house.ledger.deliveries.get(first) is not None
    assert await house.ledger.deliveries.get(second) is None


async def test_a_damaged_one_can_be_purged(house: House) -> None:
    one = Owed(
        id=house.gateway.ids(), message_id=house.gateway.ids(), subscription="billing", at=1, size=1, payload=b"?",
        dead=True, reason={"code": "damaged"},
    )  # fmt: skip
    await house.ledger.deliveries.store([one])
    source = DeliveriesSource(ids=(id_text(one.id),))
    await house.replays.ask(request(deliveries=source, purge=True), "")
    assert (await house.ended("r1")).sent == 1
    assert await house.ledger.deliveries.get(one.id) is None


async def test_a_purge_is_cancelled(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 2)
    await house.dead(6)
    await house.replays.ask(request(deliveries=DeliveriesSource(), rate=4.0, purge=True), "")
    await house.until("r1", lambda job: job.sent >= 1)
    await house.replays.cancel("r1")
    job = await house.ended("r1")
    assert job.state is JobState.CANCELLED
    assert 1 <= job.sent < 6
    assert await house.ledger.deliveries.count() == 6 - job.sent


async def test_a_client_has_so_many_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replays.supervisor.CLIENT_JOBS_MAX", 1)
    await house.replays.close(1.0)
    await house.replays.ask(request(id="a", deliveries=DeliveriesSource()), "one")
    with pytest.raises(LimitExceeded, match="1 of your replays"):
        await house.replays.ask(request(id="b", deliveries=DeliveriesSource()), "one")
    await house.replays.ask(request(id="c", deliveries=DeliveriesSource()), "other")


# -------------------------------------------------------------------------------------------------- queues


async def grave(house: House, count: int, queue: str = "dead") -> None:
    """A dead-letter queue as RabbitMQ fills it."""
    await house.fake.declare_queue(queue)
    for number in range(count):
        death = {"queue": "orders", "exchange": "shop", "routing-keys": ["k"], "reason": "rejected"}
        headers = {"x-death": [death], "x-first-death-queue": "orders", "kept": number}
        message = Message(b"dead %d" % number, Properties(delivery_mode=2, headers=headers, message_id=f"m{number}"))
        house.fake.queues[queue].ready.append((message, "dlx", "k", False))


def dead_queue(**more: Any) -> QueueSource:
    return QueueSource(broker="fake", queue="dead", **more)


async def test_a_dead_letter_queue_goes_back_to_where_it_came_from(house: House) -> None:
    await grave(house, 700)
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.total) == (JobState.DONE, 700, 700, 700)
    assert not house.fake.queues["dead"].ready
    assert not house.fake.out
    exchange, key, message = house.fake.published[0]
    assert (exchange, key) == ("", "orders")  # the queue, and nobody else who is bound to the exchange
    headers = message.properties.headers
    assert headers["kept"] == 0
    assert not any(name.startswith(("x-death", "x-first")) for name in headers)
    assert sent(house.fake) == [b"dead %d" % number for number in range(700)]


async def test_only_what_was_there_at_the_start(house: House) -> None:
    """What comes back at once, dead again, is not sent a second time."""
    await grave(house, 5)
    real = house.fake.route

    def route(exchange: str, routing_key: str, message: Message) -> bool:
        house.fake.queues["dead"].ready.append((message, "dlx", "k", False))
        return real(exchange, routing_key, message)

    house.fake.route = route  # type: ignore[method-assign]
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert job.sent == 5
    assert len(house.fake.queues["dead"].ready) == 5


async def test_a_broker_that_is_slow_to_deliver(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing came in time, and the queue says that it has messages."""
    await grave(house, 5)
    fetch, asked = house.fake.fetch, 0

    async def slow(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return [] if asked <= 3 else await fetch(*arguments)

    monkeypatch.setattr(house.fake, "fetch", slow)
    await house.replays.ask(request(queue=dead_queue()), "")
    assert (await house.ended("r1")).sent == 5


async def test_a_broker_whose_channels_are_in_use_is_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await grave(house, 5)
    query, fetch, used = house.fake.query_queue, house.fake.fetch, 0

    async def asked(queue: str) -> Any:
        nonlocal used
        if house.replays._runners and not used:
            used += 1
            raise Overloaded("all 8 channels of the connection are in use")
        return await query(queue)

    async def fetched(*arguments: Any) -> Any:
        nonlocal used
        if used == 1:
            used += 1
            raise Overloaded("all 64 lease_channels are in use")
        return await fetch(*arguments)

    monkeypatch.setattr(house.fake, "query_queue", asked)
    monkeypatch.setattr(house.fake, "fetch", fetched)
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, used) == (JobState.DONE, 5, 2), job.reason


async def test_a_queue_whose_messages_others_hold(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await grave(house, 5)
    asked = 0

    async def nothing(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        return []

    monkeypatch.setattr(house.fake, "fetch", nothing)
    await house.replays.ask(request(queue=dead_queue()), "")
    assert ((await house.ended("r1")).sent, asked) == (0, queues_module.FETCHES)


async def test_what_it_put_there_itself_ends_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes some while it runs: those of its own that follow are left alone."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 2)
    await grave(house, 4)
    real = house.fake.route

    def route(exchange: str, routing_key: str, message: Message) -> bool:
        ready = house.fake.queues["dead"].ready
        if len(house.fake.published) == 2:
            ready.clear()  # another consumer
        ready.append((message, "dlx", "k", False))
        return real(exchange, routing_key, message)

    house.fake.route = route  # type: ignore[method-assign]
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.sent) == (JobState.DONE, 2)


async def test_a_limit(house: House) -> None:
    await grave(house, 5)
    await house.replays.ask(request(queue=dead_queue(limit=2)), "")
    assert (await house.ended("r1")).sent == 2
    assert len(house.fake.queues["dead"].ready) == 3


async def test_what_is_refused_stays_in_the_queue(house: House) -> None:
    await grave(house, 3)
    await house.fake.delete_queue("orders")
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.refused) == (JobState.FAILED, 0, {"unroutable": 3})
    assert job.reason == "none of the 3 messages was sent: unroutable 3."
    assert [item[0].body for item in house.fake.queues["dead"].ready] == [b"dead 0", b"dead 1", b"dead 2"]


async def test_too_many_refusals_end_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "HELD_MAX", 2)
    await grave(house, 3)
    await house.fake.delete_queue("orders")
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert job.state is JobState.FAILED
    assert "more than 2 messages were refused" in job.reason
    assert len(house.fake.queues["dead"].ready) == 3


async def test_who_does_not_say_where_it_came_from_needs_a_target(house: House) -> None:
    await house.fake.declare_queue("dead")
    house.fake.queues["dead"].ready.append((Message(b"x", Properties()), "", "dead", False))
    await house.replays.ask(request(queue=dead_queue()), "")
    assert (await house.ended("r1")).refused == {"unsupported": 1}
    await house.replays.ask(request(id="r2", queue=dead_queue(), broker="other", exchange="", routing_key="orders"), "")
    assert (await house.ended("r2")).sent == 1
    assert not house.fake.queues["dead"].ready


async def test_killed_while_a_queue_is_driven_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 10)
    await grave(house, 100)
    real = FakeUpstream.publish_nowait
    published = 0

    def publish_nowait(self: FakeUpstream, *arguments: Any, **options: Any) -> Any:
        nonlocal published
        published += 1
        if published in (25, 55):
            self.held = []
        return real(self, *arguments, **options)

    monkeypatch.setattr(FakeUpstream, "publish_nowait", publish_nowait)
    await house.replays.ask(request(queue=dead_queue()), "")
    for kill in (25, 55):
        async with asyncio.timeout(60):
            while published < kill or house.fake.held is None:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        house.fake.held = None
        await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent) == (JobState.DONE, 100, 100)
    assert not house.fake.queues["dead"].ready
    first = [message.body for _, _, message in house.fake.published if "resent" not in mark_of(message)]
    assert len(first) == len(set(first))
    assert set(sent(house.fake)) == {b"dead %d" % number for number in range(100)}
    assert len(sent(house.fake)) <= 100 + 2 * 10


async def equal(house: House, count: int) -> None:
    """A dead-letter queue of messages that nothing tells apart."""
    await house.fake.declare_queue("dead")
    for _ in range(count):
        death = {"queue": "orders", "exchange": "", "routing-keys": ["orders"], "reason": "rejected"}
        message = Message(b"same", Properties(headers={"x-death": [death]}))
        house.fake.queues["dead"].ready.append((message, "", "dead", False))


async def test_equal_messages_have_ids_of_their_own(house: House) -> None:
    """Who leaves out what it has had by its id must not leave out another one."""
    await equal(house, 6)
    await house.replays.ask(request(queue=dead_queue()), "")
    assert (await house.ended("r1")).sent == 6
    assert len({mark["id"] for mark in marks(house.fake)}) == 6


async def test_equal_messages_and_a_kill_before_the_second_chunk_was_sent(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one of them was recorded says nothing of another."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 5)
    await equal(house, 10)
    real = house.replays._target

    def target(job: Any) -> Any:
        made = real(job)
        send, calls = made.send, 0

        async def never(items: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                await asyncio.Event().wait()
            return await send(items)

        made.send = never  # type: ignore[method-assign]
        return made

    house.replays._target = target  # type: ignore[method-assign]
    await house.replays.ask(request(queue=dead_queue()), "")
    await house.until("r1", lambda job: job.sent == 5 and len(job.flying) == 5)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, len(house.fake.published)) == (JobState.DONE, 10, 10, 10)
    assert not house.fake.queues["dead"].ready


async def without_passing(house: House) -> list[Any]:
    """Nothing is let go of any more; who waits to do so is in the answer."""
    waiting: list[Any] = []

    async def passed(self: Any, items: Any) -> Any:
        waiting.append(items)
        await asyncio.Event().wait()

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(queues_module.QueueSnapshot, "passed", passed)
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    return waiting


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_recorded_and_not_let_go_of(house: House, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Killed twice: what lies in the queue though it was sent is taken off it, and not sent again."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 5)
    await grave(house, 12)
    await house.replays.ask(request(queue=dead_queue()), "")
    await without_passing(house)
    assert len(house.fake.published) == 5
    await kill_at_save(house, after)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.resent) == (JobState.DONE, 12, 12, 0)
    assert sent(house.fake) == [b"dead %d" % number for number in range(12)]
    assert not house.fake.queues["dead"].ready


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_equal_ones_recorded_and_not_let_go_of(house: House, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """They are sent again, since nobody can say which were sent; they are marked, and counted once."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 5)
    await equal(house, 12)
    await house.replays.ask(request(queue=dead_queue()), "")
    await without_passing(house)
    await kill_at_save(house, after)
    await house.restart()
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent) == (JobState.DONE, 12, 12)
    again = len(house.fake.published) - 12
    assert again in (5, 10)  # a chunk for each kill, unless the second came before anything was sent
    assert len([mark for mark in marks(house.fake) if "resent" in mark]) >= again  # it may be more, and never less
    assert not house.fake.queues["dead"].ready


async def test_acknowledged_in_vain(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel went as the first chunk was recorded: what comes again is taken off the queue."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 5)
    await grave(house, 12)
    real = queues_module.QueueSnapshot.passed
    calls = 0

    async def passed(self: Any, items: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            for delivery in reversed(list(house.fake.out)):
                delivery.lose()
        return await real(self, items)

    monkeypatch.setattr(queues_module.QueueSnapshot, "passed", passed)
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent, job.resent) == (JobState.DONE, 12, 12, 0)
    assert sent(house.fake) == [b"dead %d" % number for number in range(12)]
    assert not house.fake.queues["dead"].ready


async def test_an_acknowledgement_that_never_came_there(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can know of it; what comes again says that it may have been sent, under the id that it had."""
    monkeypatch.setattr("gateway.replays.runner.CHUNK", 5)
    await grave(house, 10)
    real = queues_module.QueueSnapshot.passed
    calls = 0

    async def passed(self: Any, items: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            for delivery in reversed(list(house.fake.out)):
                delivery.lose()
            return []
        return await real(self, items)

    monkeypatch.setattr(queues_module.QueueSnapshot, "passed", passed)
    await house.replays.ask(request(queue=dead_queue()), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.resent) == (JobState.DONE, 10, 5)
    found = marks(house.fake)
    assert [mark["id"] for mark in found[5:]] == [mark["id"] for mark in found[:5]]
    assert [mark.get("resent") for mark in found] == [None] * 5 + ["1"] * 5
    assert len(house.fake.queues["dead"].ready) == 5  # it has taken ten


async def test_paused_in_the_middle_of_a_chunk_of_equal_messages(house: House) -> None:
    """Messages without any id, and of one body, are told apart by nothing; none is lost over it."""
    await equal(house, 6)
    real, calls = house.fake.publish_nowait, 0

    def publish_nowait(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            house.fake.state = UpstreamState.DOWN
        return real(*arguments, **options)

    house.fake.publish_nowait = publish_nowait  # type: ignore[method-assign]
    await house.replays.ask(request(queue=dead_queue()), "")
    async with asyncio.timeout(60):
        while calls < 6:
            await asyncio.sleep(0.01)
    await house.replays.pause("r1")
    job = await house.until("r1", lambda job: job.state is JobState.PAUSED)
    assert job.sent == 3
    assert len(house.fake.queues["dead"].ready) == 3
    house.fake.state = UpstreamState.UP
    await house.replays.resume("r1")
    job = await house.ended("r1")
    assert (job.state, job.found, job.sent) == (JobState.DONE, 6, 6)
    assert len(house.fake.published) == 6


# --------------------------------------------------------------------------------------------- asked wrongly


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        (request(), "source"),
        (request(messages=ALL, deliveries=DeliveriesSource()), "source"),
        (request(messages=MessagesSource(state="nonsense")), "source.messages.state"),
        (request(messages=MessagesSource(ids=("x",), broker="fake")), "source.messages.ids"),
        (request(messages=MessagesSource(ids=("x",))), "source.messages.ids"),
        (request(messages=ALL, url="https://x.example", endpoint="y"), "target.url"),
        (request(messages=ALL, url="https://x.example/?token=secret"), "target.url"),
        (request(messages=ALL, url="https://x.example", broker="fake"), "target"),
        (request(queue=dead_queue(), exchange="amq.default", routing_key="dead"), "target"),
    ],
)
async def test_wrong_requests_name_the_setting(house: House, asked: ReplayRequest, setting: str) -> None:
    await house.fake.declare_queue("dead")
    with pytest.raises((EncodeError, StateError)) as caught:
        await house.replays.ask(asked, "")
    assert isinstance(caught.value, StateError) or str(caught.value).startswith(f"{setting}:")


async def test_a_broker_that_is_away_is_no_queue(house: House) -> None:
    house.fake.state = UpstreamState.DOWN
    with pytest.raises(BrokerUnavailable):
        await house.replays.ask(request(queue=dead_queue()), "")


# ------------------------------------------------------------------------------------------------- dry runs


async def test_a_dry_run_counts_and_shows_ten_and_does_nothing(house: House) -> None:
    await house.known(12)
    found = await house.replays.preview(request(messages=ALL))
    assert (found.count, found.complete, len(found.sample), found.refused) == (12, True, 10, [])
    assert found.sample[0].came_from == "fake: amq.default orders"
    await house.dead(11)
    found = await house.replays.preview(request(deliveries=DeliveriesSource(subscription="billing")))
    assert (found.count, len(found.sample)) == (11, 10)
    await grave(house, 12)
    found = await house.replays.preview(request(queue=dead_queue()))
    assert (found.count, len(found.sample)) == (12, 10)
    assert found.sample[0].came_from == "fake: orders"
    assert [item[0].body for item in house.fake.queues["dead"].ready][:3] == [b"dead 0", b"dead 1", b"dead 2"]
    assert not house.fake.published
    assert (await house.replays.page(None, 10))[0] == []


async def test_a_dry_run_counts_apart_what_cannot_be_sent(house: House) -> None:
    without = await house.known(12, kept=False)
    await house.known(3)
    found = await house.replays.preview(request(messages=ALL))
    assert (found.count, found.complete, found.refused_count) == (3, True, {"no_body": 12})
    assert [each.octets for each in found.sample] == [9, 9, 9]
    assert [each.id for each in found.refused] == [id_text(each) for each in without[:10]]
    assert found.advice.startswith('retention.bodies = "days" keeps the bodies of messages from then on')
    assert found.signed is None
    wanted = (id_text(without[0]), id_text(house.gateway.ids()))
    found = await house.replays.preview(request(messages=MessagesSource(ids=wanted)))
    assert (found.count, found.refused_count) == (0, {"message_not_found": 1, "no_body": 1})
    (dead,), gone = await house.dead(1), house.gateway.ids()
    found = await house.replays.preview(request(deliveries=DeliveriesSource(ids=(id_text(dead), id_text(gone)))))
    assert (found.count, len(found.sample), found.refused_count) == (1, 1, {"delivery_not_found": 1})
    assert (found.refused[0].id, found.advice) == (id_text(gone), "")


async def test_a_dry_run_of_more_than_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replays.sources.COUNT_STEPS", 1)
    await house.known(1_200, kept=False)
    found = await house.replays.preview(request(messages=ALL))
    assert (found.count, found.complete, found.refused_count, len(found.refused)) == (0, False, {"no_body": 1_000}, 10)


async def test_the_target_must_be_there(house: House) -> None:
    await house.known(1)
    for target, what in (
        ({"broker": "other", "exchange": "nowhere"}, "target.exchange 'nowhere' is not there on broker 'other'"),
        ({"broker": "other", "exchange": "", "routing_key": "no"}, "target.routing_key: the queue 'no' is not there"),
    ):
        asked = request(messages=ALL, **target)
        with pytest.raises(NotFound, match=what):
            await house.replays.preview(asked)
        with pytest.raises(NotFound, match=what):
            await house.replays.ask(asked, "")
    with pytest.raises(NotFound, match=r"on broker 'fake'\. Declare it first"):
        await house.replays.preview(request(messages=MessagesSource(broker="fake"), exchange="nowhere"))
    assert (await house.replays.page(None, 10))[0] == []
    await house.other.declare_exchange("shop")
    found = await house.replays.preview(request(messages=ALL, broker="other", exchange="shop"))
    assert found.count == 1


async def test_an_exchange_is_not_looked_for_where_only_the_messages_name_their_brokers(house: House) -> None:
    await house.known(2)
    await house.fake.declare_exchange("shop")
    await house.fake.bind_queue("orders", "shop", "orders")
    asked = request(messages=MessagesSource(), exchange="shop")
    assert (await house.replays.preview(asked)).count == 2
    await house.replays.ask(asked, "")
    assert (await house.ended("r1")).sent == 2
    assert [exchange for exchange, _, _ in house.fake.published] == ["shop"] * 2


async def test_a_target_whose_broker_is_away_is_waited_for(house: House) -> None:
    await house.known(1)
    await house.other.declare_exchange("shop")
    await house.other.bind_queue("orders", "shop", "orders")
    house.other.state = UpstreamState.DOWN
    asked = request(messages=ALL, broker="other", exchange="shop")
    with pytest.raises(BrokerUnavailable):
        await house.replays.preview(asked)
    await house.replays.ask(asked, "")
    await house.until("r1", lambda job: bool(job.reason))
    house.other.state = UpstreamState.UP
    job = await house.ended("r1")
    assert (job.state, job.sent) == (JobState.DONE, 1)


async def test_a_dry_run_counts_apart_messages_of_a_broker_that_is_gone(house: House) -> None:
    gone = await house.known(12, broker="gone")
    await house.known(2)
    found = await house.replays.preview(request(messages=MessagesSource()))
    assert (found.count, found.refused_count) == (2, {"broker_not_found": 12})
    assert [each.id for each in found.refused] == [id_text(each) for each in gone[:10]]
    found = await house.replays.preview(request(messages=MessagesSource(), broker="other"))
    assert (found.count, found.refused_count) == (14, {})


async def test_a_dry_run_names_what_the_target_would_not_take(house: House) -> None:
    await house.fake.declare_queue("dead")
    house.fake.queues["dead"].ready.append((Message(b"x", Properties()), "", "dead", False))
    found = await house.replays.preview(request(queue=dead_queue()))
    assert (found.count, found.sample, found.refused_count) == (0, [], {"unsupported": 1})
    assert found.refused[0].detail == "it does not say where it came from; name a target"


async def test_nothing_sent_is_failed_and_can_be_asked_for_again(house: House) -> None:
    without = await house.known(2, kept=False)
    await house.replays.ask(request(messages=ALL), "")
    job = await house.ended("r1")
    assert (job.state, job.sent, job.refused) == (JobState.FAILED, 0, {"no_body": 2})
    assert job.reason.startswith("none of the 2 messages was sent: no_body 2. retention.bodies")
    rows = [KeptBody(each, payload(b"message %d" % number), 9) for number, each in enumerate(without)]
    await house.ledger.deliveries.keep_bodies(rows)
    await house.replays.ask(request(messages=ALL), "")
    job = await house.until("r1", lambda job: job.runs == 2 and job.state is JobState.DONE)
    assert (job.sent, job.refused, job.reason) == (2, {}, "")


async def test_old_ones_are_forgotten(house: House) -> None:
    await house.known(1, kept=False)
    await house.replays.ask(request(messages=ALL), "")
    job = await house.ended("r1")
    store = house.replays._store
    assert await store.forget_old(job.ended_at + 30 * 86_400 * 10**6) == 0
    assert await store.forget_old(job.ended_at + 31 * 86_400 * 10**6) == 1
    with pytest.raises(NoSuchReplay):
        await house.replays.get("r1")
    assert await store.refusals(job, 0) == []

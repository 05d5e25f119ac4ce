"""Replays as they are asked for, steered and shared out; who does the work is only noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.work import ownership
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EncodeError,
    EtagMismatch,
    LimitExceeded,
    NoSuchReplay,
    NotFound,
    StateError,
)
from gateway.replays import supervisor
from gateway.replays.jobs import Job, JobState, Refusal, Wish
from gateway.replays.requests import (
    DeliveriesSource,
    MessagesSource,
    QueueSource,
    ReplayRequest,
    ReplaySource,
    ReplayTarget,
)
from gateway.replays.store import KEPT_DAYS, StoredJob
from gateway.replays.supervisor import DAY, FORGET_EVERY, REPLAY_WORK, Replays
from gateway.replays.targets import BrokerTarget, HttpTarget, PurgeTarget, SubscriptionTarget
from gateway.runtime.clock import clock
from tests.core.test_ownership import Process, Rows, until

NOW = 1_700_000_000_000_000
"""Microseconds since 1970."""


class Noted:
    """In place of a runner."""

    made: list[Noted]

    def __init__(self, kept: StoredJob, *_: Any) -> None:
        self.job = kept.job
        self.calls: list[Any] = []
        Noted.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def look(self) -> None:
        self.calls.append("look")

    def drop(self) -> None:
        self.calls.append("drop")

    async def stop(self, within: float) -> None:
        self.calls.append(within)


class Office:
    """A gateway, its ledger and its brokers, as far as replays are asked for."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.changes: list[tuple[str, str]] = []
        self.owned: set[str] = set()
        self.forgotten: list[Any] = []
        self.fault: Exception | None = None
        self.away: Exception | None = None
        self.brokers: dict[str, Any] = {"b": self}
        self.on_load: Callable[[], None] = lambda: None
        self.ledger = self.subscriptions = self.ownership = self
        anything: Any = self
        self.replays = Replays(anything)
        self.replays._store = anything

    # ownership
    def changed(self, kind: str, name: str = "") -> None:
        self.changes.append((kind, name))

    def owns(self, kind: str, name: str) -> bool:
        return name in self.owned

    has = keeps = owns

    # the store
    async def load(self, job_id: str) -> StoredJob:
        if job_id not in self.jobs:
            raise NoSuchReplay(job_id)
        self.on_load()
        found = Job(id="", request=self.jobs[job_id].request)
        found.become(self.jobs[job_id])
        return StoredJob(found, "")

    async def add(self, job: Job) -> None:
        if job.id in self.jobs:
            raise EtagMismatch("there is one")
        self.jobs[job.id] = job
        if self.fault is not None:
            raise self.fault

    async def change(self, job_id: str, change: Callable[[Job], None]) -> Job:
        job = (await self.load(job_id)).job
        change(job)
        self.jobs[job_id] = job
        return job

    async def all(self) -> AsyncIterator[Job]:
        for job in list(self.jobs.values()):
            yield job

    async def refusals(self, job: Job, page: int) -> list[Refusal]:
        return [Refusal(str(page), "state", "")]

    async def forget_refusals(self, job: Job) -> None:
        self.forgotten.append(job.id)

    async def forget_old(self, now: int) -> None:
        self.forgotten.append(now)

    # brokers and endpoints
    def check_url(self, url: str) -> None:
        """Every URL may be called."""

    def broker(self, name: str) -> Any:
        return self

    async def query_exchange(self, exchange: str) -> None:
        if self.away is not None:
            raise self.away

    async def query_queue(self, queue: str) -> Any:
        if queue != "dead":
            raise NotFound(404, f"no queue {queue!r}")
        return SimpleNamespace(message_count=1)

    def ids(self) -> bytes:
        return b"\x01" * 16

    def put(self, name: str, state: JobState, **fields: Any) -> Job:
        job = Job(**{"id": name, "request": asked(name), "state": state, "created_at": NOW, **fields})
        self.jobs[name] = job
        return job


def asked(name: str = "r1", source: ReplaySource | None = None, *, dry: bool = False, **target: Any) -> ReplayRequest:
    found = source or ReplaySource(messages=MessagesSource(broker="b"))
    return ReplayRequest(id=name, source=found, target=ReplayTarget(**target), dry_run=dry)


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    Noted.made = []
    monkeypatch.setattr(supervisor, "Runner", Noted)
    monkeypatch.setattr(clock, "now_ns", lambda: NOW * 1_000)
    return Office()


async def test_a_new_one_is_kept_and_its_owner_hears_of_it(office: Office) -> None:
    office.owned.add("r1")
    job, is_new = await office.replays.ask(asked(dry=True), "me")
    assert is_new
    assert (job.client, job.created_at, job.asked_at, job.runs, job.signed) == ("me", NOW, NOW, 1, None)
    assert not office.jobs["r1"].request.dry_run, "it is asked for in earnest"
    assert office.changes == [(REPLAY_WORK, "r1")]
    assert [each.calls for each in Noted.made] == [["start"]]
    job, _ = await office.replays.ask(asked(""), "me")
    assert job.id == "01010101-0101-0101-0101-010101010101"
    assert len(Noted.made) == 1, "another process does it"


async def test_a_wrong_request_is_refused_before_anything_is_looked_at(office: Office) -> None:
    wrong = asked(endpoint="e", url="https://h.example/")
    with pytest.raises(EncodeError, match="an endpoint is given too"):
        await office.replays.preview(wrong)
    with pytest.raises(EncodeError, match="an endpoint is given too"):
        await office.replays.ask(wrong, "")


async def test_whether_its_requests_are_signed_is_kept_with_it(office: Office) -> None:
    anything: Any = office
    replays = Replays(anything, anything, anything)
    replays._store = anything
    job, _ = await replays.ask(asked(url="https://h.example/"), "")
    assert job.signed is False
    assert office.jobs["r1"].signed is False


async def test_one_that_has_ended_begins_once_more(office: Office) -> None:
    office.put(
        "r1", JobState.CANCELLED, wish=Wish.CANCEL, created_at=NOW - KEPT_DAYS * DAY, ended_at=5, found=4, sent=3,
        skipped=2, resent=1, refused={"state": 1}, total=9, position="7", landed=("a",), pages=1, reason="done",
    )  # fmt: skip
    job, is_new = await office.replays.ask(asked(), "")
    assert not is_new
    assert (job.state, job.wish, job.runs, job.asked_at, job.ended_at) == (JobState.PENDING, Wish.RUN, 2, NOW, 0)
    assert (job.found, job.sent, job.skipped, job.resent, job.refused) == (0, 0, 0, 0, {})
    assert (job.total, job.position, job.landed, job.reason) == (None, "", (), "")
    assert office.forgotten == ["r1"]
    assert office.changes == [(REPLAY_WORK, "r1")]


async def test_one_that_is_under_way_is_left_as_it_is(office: Office) -> None:
    office.put("r1", JobState.RUNNING, sent=3, wish=Wish.PAUSE, created_at=0)
    job, is_new = await office.replays.ask(asked(), "")
    assert (is_new, job.state, job.sent, job.wish, job.runs) == (False, JobState.RUNNING, 3, Wish.PAUSE, 1)
    assert office.forgotten == []
    with pytest.raises(StateError, match="asked for otherwise"):
        await office.replays.ask(asked(broker="b"), "")


async def test_one_that_is_too_old_is_not_begun_once_more(office: Office) -> None:
    office.put("r1", JobState.DONE, created_at=NOW - KEPT_DAYS * DAY - 1)
    with pytest.raises(StateError, match="older than 30 days"):
        await office.replays.ask(asked(), "")
    assert office.jobs["r1"].state is JobState.DONE


async def test_so_many_at_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "JOBS_MAX", 3)
    monkeypatch.setattr(supervisor, "CLIENT_JOBS_MAX", 2)
    office.put("ended", JobState.DONE, client="me")
    await office.replays.ask(asked("a"), "me")
    await office.replays.ask(asked("b"), "me")
    with pytest.raises(LimitExceeded, match="2 of your replays"):
        await office.replays.ask(asked("c"), "me")
    await office.replays.ask(asked("c"), "other")
    with pytest.raises(LimitExceeded, match="3 replays have not ended"):
        await office.replays.ask(asked("d"), "third")
    assert set(office.jobs) == {"ended", "a", "b", "c"}


async def test_one_that_may_be_stored_is_looked_for(office: Office) -> None:
    office.fault = CommitUnknown("cut off")
    with pytest.raises(CommitUnknown):
        await office.replays.ask(asked(), "")
    assert office.changes == [(REPLAY_WORK, "r1")]


async def test_what_is_named_must_be_there_unless_nobody_can_say(office: Office) -> None:
    office.away = NotFound(404, "no exchange")
    with pytest.raises(NotFound):
        await office.replays.ask(asked(exchange="shop"), "")
    office.away = None
    source = ReplaySource(queue=QueueSource(broker="b", queue="gone"))
    with pytest.raises(NotFound, match="gone"):
        await office.replays.ask(asked(source=source), "")
    assert office.jobs == {}
    office.away = BrokerUnavailable("away")
    await office.replays.ask(asked(exchange="shop"), "")
    assert set(office.jobs) == {"r1"}


async def test_refusals_are_read_page_by_page(office: Office) -> None:
    office.put("r1", JobState.DONE, pages=2)
    assert await office.replays.refusals("r1", 0) == ([Refusal("0", "state", "")], 1)
    assert await office.replays.refusals("r1", 1) == ([Refusal("1", "state", "")], None)


async def test_what_is_wished_for(office: Office) -> None:
    office.put("r1", JobState.RUNNING)
    office.owned.add("r1")
    for verb, wish in (("pause", Wish.PAUSE), ("resume", Wish.RUN), ("cancel", Wish.CANCEL), ("pause", Wish.CANCEL)):
        assert (await getattr(office.replays, verb)("r1")).wish is wish
    assert office.changes == [(REPLAY_WORK, "r1")] * 4
    assert [each.calls for each in Noted.made] == [["start", "look", "look", "look"]]
    office.put("r2", JobState.CANCELLED, wish=Wish.RUN)
    assert (await office.replays.cancel("r2")).wish is Wish.RUN
    for name, state in (("r2", JobState.CANCELLED), ("r3", JobState.DONE)):
        office.put(name, state)
        for verb in ("pause", "resume"):
            with pytest.raises(StateError, match=f"is {state}"):
                await getattr(office.replays, verb)(name)
    with pytest.raises(StateError):
        await office.replays.cancel("r3")


async def test_old_ones_are_forgotten_now_and_then(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, state in (("r1", JobState.PENDING), ("r2", JobState.DONE), ("r3", JobState.PAUSED)):
        office.put(name, state)
    office.owned |= {"r1", "r2"}
    assert await office.replays.names() == ["r1", "r3"]
    assert office.forgotten == [NOW]
    hour = int(FORGET_EVERY * 1_000_000)
    for after in (1, hour, hour + 1, hour + 2):
        monkeypatch.setattr(clock, "now_ns", lambda after=after: (NOW + after) * 1_000)
        await office.replays.names()
    assert office.forgotten == [NOW, NOW + hour + 1]
    assert [(each.job.id, each.calls) for each in Noted.made] == [("r1", ["start"])]


async def test_each_is_begun_once_by_its_owner(office: Office) -> None:
    office.put("r1", JobState.RUNNING)
    await office.replays.start("r1")
    assert Noted.made == [], "another process has it"
    office.owned |= {"r1", "gone", "r2"}
    for name in ("r1", "r1", "gone"):
        await office.replays.start(name)
    assert [each.calls for each in Noted.made] == [["start", "look"]]
    office.put("r2", JobState.DONE)
    await office.replays.start("r2")
    assert len(Noted.made) == 1
    office.put("r2", JobState.PENDING)
    office.on_load = lambda: office.owned.discard("r2")
    await office.replays.start("r2")
    assert len(Noted.made) == 1, "it was lost while it was read"


async def test_one_that_was_begun_while_it_was_read_is_not_begun_twice(office: Office) -> None:
    office.put("r1", JobState.PENDING)
    office.owned.add("r1")
    other: Any = Noted(StoredJob(office.jobs["r1"], ""))
    office.on_load = lambda: office.replays._runners.update(r1=other)
    await office.replays.start("r1")
    assert [each.calls for each in Noted.made] == [["look"]]


async def test_work_that_goes_to_another_process(office: Office) -> None:
    for name in ("a", "b", "c", "d"):
        office.put(name, JobState.RUNNING)
        office.owned.add(name)
        await office.replays.start(name)
    office.changes.clear()
    await office.replays.stop("a", 3.0)
    office.replays.lost("b")
    office.replays._ended("c", office.replays._runners["c"])
    for name in ("a", "b", "c"):
        await office.replays.stop(name, 9.0)
        office.replays.lost(name)
    assert office.changes == [(REPLAY_WORK, "")]
    await office.replays.close(2.0)
    assert [each.calls for each in Noted.made] == [["start", 3.0], ["start", "drop"], ["start"], ["start", 2.0]]
    await office.replays.start("a")
    assert len(Noted.made) == 4, "a process that is ending begins none"


async def test_what_is_lost_while_it_is_brought_to_an_end_is_dropped(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunk takes long, and nobody else ends it."""
    ended = asyncio.Event()

    async def stop(self: Noted, within: float) -> None:
        self.calls.append(within)
        await ended.wait()

    monkeypatch.setattr(Noted, "stop", stop)
    office.put("a", JobState.RUNNING)
    office.owned.add("a")
    await office.replays.start("a")
    closing = asyncio.create_task(office.replays.close(30.0))
    await until(lambda: 30.0 in Noted.made[0].calls)
    office.replays.lost("a")
    ended.set()
    await closing
    assert [each.calls for each in Noted.made] == [["start", 30.0, "drop"]]


async def test_the_end_of_one_that_was_dropped_leaves_the_next_one(office: Office) -> None:
    office.put("a", JobState.RUNNING)
    office.owned.add("a")
    await office.replays.start("a")
    former = office.replays._runners["a"]
    office.replays.lost("a")
    await office.replays.start("a")
    office.replays._ended("a", former)
    office.replays.lost("a")
    assert [each.calls for each in Noted.made] == [["start", "drop"], ["start", "drop"]]


@pytest.mark.parametrize("how", ["listed", "asked for"])
async def test_what_is_handed_over_does_not_begin_once_more(
    office: Office, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its owner hears of any replay, or of a pause, while a chunk is brought to its end."""
    ended, process = asyncio.Event(), Process(Rows(), 0, [])
    monkeypatch.setattr(ownership, "LOOK_EVERY", 0.005)

    async def stop(self: Noted, within: float) -> None:
        await ended.wait()
        self.calls.append("stopped")

    monkeypatch.setattr(Noted, "stop", stop)
    office.put("a", JobState.RUNNING)
    anything: Any = process.ownership
    office.ownership = anything
    process.ownership.register(REPLAY_WORK, office.replays)
    await process.ownership.start()
    await until(lambda: Noted.made)
    handing = asyncio.create_task(process.ownership._hand_over(process.ownership._groups[REPLAY_WORK], ["a"], 5.0))
    await asyncio.sleep(0.01)
    if how == "listed":
        process.ownership.changed(REPLAY_WORK)
    else:
        await office.replays._tell("a")
    await asyncio.sleep(0.05)
    office.jobs["a"].state = JobState.DONE
    ended.set()
    await handing
    await process.close()
    assert [[call for call in each.calls if call != "look"] for each in Noted.made] == [["start", "stopped"]]


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        (ReplaySource(messages=MessagesSource()), {}, BrokerTarget),
        (ReplaySource(deliveries=DeliveriesSource()), {}, SubscriptionTarget),
        (ReplaySource(deliveries=DeliveriesSource()), {"broker": "b"}, BrokerTarget),
        (ReplaySource(deliveries=DeliveriesSource()), {"purge": True}, PurgeTarget),
        (ReplaySource(messages=MessagesSource()), {"url": "https://h.example/"}, HttpTarget),
    ],
)
def test_where_messages_go(office: Office, source: ReplaySource, target: dict[str, Any], kind: type) -> None:
    job = Job(id="r1", request=asked(source=source, **target))
    anything: Any = office
    whole = Replays(anything, anything, anything)
    assert type(whole._target(job)) is kind
    for parts in ((None, None), (anything, None), (None, anything)):
        replays = Replays(anything, *parts)
        if kind is HttpTarget:
            with pytest.raises(StateError, match="sends nothing over HTTP"):
                replays._target(job)
        else:
            assert type(replays._target(job)) is kind

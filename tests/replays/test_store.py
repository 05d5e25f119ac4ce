"""Replays in the ledger: neither the owner's word nor another caller's is lost, and old ones go with all they left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import EtagMismatch, NoSuchReplay
from gateway.replays import store as module
from gateway.replays.items import nameless
from gateway.replays.jobs import REFUSALS, REPLAY_RESOURCE, Job, JobState, Refusal, Wish
from gateway.replays.requests import MessagesSource, QueueSource, ReplayRequest, ReplaySource
from gateway.replays.store import KEPT_DAYS, ReplayStore, StoredJob

REQUEST = ReplayRequest(source=ReplaySource(messages=MessagesSource()))
DAY = 86_400 * 1_000_000


class Shelf:
    """A ledger's resources."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], tuple[Any, str]] = {}
        self.writes = 0
        self.listed: list[int] = []
        self.before: list[Any] = []
        """What others do before a write."""

    async def get_resource(self, kind: str, name: str) -> Any:
        found = self.kept.get((kind, name))
        return None if found is None else SimpleNamespace(spec=found[0], etag=found[1])

    async def put_resource(self, kind: str, name: str, spec: Any, etag: str | None) -> tuple[str, bool]:
        if self.before:
            self.before.pop(0)()
        _, known = self.kept.get((kind, name), (None, ""))
        if etag is not None and etag != known:
            raise EtagMismatch("it is another one")
        self.writes += 1
        self.kept[kind, name] = (spec, str(self.writes))
        return str(self.writes), not known

    async def delete_resource(self, kind: str, name: str, etag: str | None) -> None:
        del self.kept[kind, name]

    async def list_resources(self, kind: str, cursor: str | None, limit: int) -> Any:
        self.listed.append(limit)
        names = sorted(name for each, name in self.kept if each == kind and name > (cursor or ""))
        found = [SimpleNamespace(spec=self.kept[kind, name][0]) for name in names[:limit]]
        return found, names[limit - 1] if len(names) > limit else None

    def wish(self, name: str, **fields: Any) -> None:
        """Another caller writes it."""
        spec, etag = self.kept[REPLAY_RESOURCE, name]
        self.kept[REPLAY_RESOURCE, name] = ({**spec, **fields}, f"{etag}x")


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def store(shelf: Shelf) -> ReplayStore:
    anything: Any = shelf
    return ReplayStore(anything)


async def test_the_owner_keeps_what_others_wish_for(shelf: Shelf, store: ReplayStore) -> None:
    kept = await store.add(Job(id="r", request=REQUEST))
    with pytest.raises(EtagMismatch):
        await store.add(Job(id="r", request=REQUEST))
    for count in (1, 2):  # the second time with the etag of the first
        kept.job.sent = count
        await store.save(kept)
    shelf.before = [lambda: shelf.wish("r", wish="pause"), lambda: shelf.wish("r", wish="cancel")]
    kept.job.sent = 3
    await store.save(kept)
    assert kept.job.wish is Wish.CANCEL
    found = (await store.load("r")).job
    assert (found.sent, found.wish) == (3, Wish.CANCEL)


async def test_one_that_was_asked_for_again_is_not_written_over(shelf: Shelf, store: ReplayStore) -> None:
    kept = await store.add(Job(id="r", request=REQUEST, sent=3, state=JobState.RUNNING))
    kept.job.move(JobState.DONE)
    shelf.before = [lambda: shelf.wish("r", runs=2, sent=0, state="pending")]
    await store.save(kept)
    assert (kept.job.runs, kept.job.sent, kept.job.state) == (2, 0, JobState.PENDING)
    writes = shelf.writes
    await store.reread(kept)
    assert shelf.writes == writes
    assert (await store.load("r")).etag == kept.etag


async def test_a_change_is_made_over_what_is_there(shelf: Shelf, store: ReplayStore) -> None:
    await store.add(Job(id="r", request=REQUEST))

    def pause(job: Job) -> None:
        job.wish = Wish.PAUSE

    shelf.before = [lambda: shelf.wish("r", sent=1), lambda: shelf.wish("r", sent=2)]
    assert (await store.change("r", pause)).sent == 2
    assert (await store.load("r")).job.wish is Wish.PAUSE
    writes = shelf.writes
    assert (await store.change("r", pause)).wish is Wish.PAUSE
    assert shelf.writes == writes, "nothing has changed"
    with pytest.raises(NoSuchReplay):
        await store.change("other", pause)


async def test_all_are_read_page_by_page(shelf: Shelf, store: ReplayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for name in "abcde":
        await store.add(Job(id=name, request=REQUEST))
    assert [job.id async for job in store.all()] == list("abcde")
    assert shelf.listed == [2, 2, 2]


async def test_what_others_have_under_way_from_the_same_queue(store: ReplayStore) -> None:
    def job(id: str, queue: QueueSource | None, *flying: str, state: JobState = JobState.RUNNING) -> Job:
        source = ReplaySource(queue=queue) if queue is not None else REQUEST.source
        return Job(id=id, request=ReplayRequest(source=source), flying=flying, state=state)

    queue = QueueSource(broker="a", queue="q")
    mine = job("mine", QueueSource(broker="a", queue="q", limit=5), "own")
    for each in (
        mine, job("runs", queue, "k1", nameless("00", "token") + "@a/q"),
        job("ended", queue, "k2", state=JobState.DONE), job("elsewhere", QueueSource(broker="b", queue="q"), "k3"),
        job("other", QueueSource(broker="a", queue="r"), "k4"), job("messages", None, "k5"),
    ):  # fmt: skip
        await store.add(each)
    assert await store.flying(mine) == {"k1", "k2", "sha256:00@a/q"}
    assert await store.flying(job("messages", None)) == set()


async def test_refusals_of_a_page_replace_each_other(shelf: Shelf, store: ReplayStore) -> None:
    job = Job(id="r", request=REQUEST, pages=1)
    await store.name("r", 0, [Refusal("a", "state", "")])
    await store.name("r", 0, [Refusal("b", "state", "")])
    assert await store.refusals(job, 0) == [Refusal("b", "state", "")]
    assert await store.refusals(job, 1) == []


async def test_old_ones_go_with_their_refusals(shelf: Shelf, store: ReplayStore) -> None:
    now = 100 * DAY
    old, young = now - KEPT_DAYS * DAY - 1, now - KEPT_DAYS * DAY
    for name, state, at in (
        ("old", JobState.DONE, old), ("young", JobState.FAILED, young), ("paused", JobState.PAUSED, old),
        ("cancelled", JobState.CANCELLED, old),
    ):  # fmt: skip
        await store.add(Job(id=name, request=REQUEST, state=state, ended_at=at, pages=2))
        for page in range(2):
            await store.name(name, page, [Refusal("a", "state", "")])
    assert await store.forget_old(now) == 2
    left = {"young", "paused"}
    assert {name for kind, name in shelf.kept if kind == REPLAY_RESOURCE} == left
    assert {name for kind, name in shelf.kept if kind == REFUSALS} == {
        f"{name}/{page:06d}" for name in left for page in range(2)
    }
    kept = StoredJob(Job(id="r", request=REQUEST), "")
    assert kept.job.refusals == 0

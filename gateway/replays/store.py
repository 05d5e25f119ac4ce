"""Replays in the ledger: read, written over what was read, listed, and forgotten after a while."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.errors import EtagMismatch, NoSuchReplay
from gateway.ledger import Ledger
from gateway.replays.items import name_of
from gateway.replays.jobs import ENDED, REFUSALS, REPLAY_RESOURCE, Job, Refusal, read_job

PAGE: Final = 100
KEPT_DAYS: Final = 30
"""Days for which an ended replay is kept, and for which an id can be run again."""


@dataclass(slots=True)
class StoredJob:
    """A job, and the etag that it has in the ledger."""

    job: Job
    etag: str


class ReplayStore:
    """Where replays are kept."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, job_id: str) -> StoredJob:
        """A job by its id. Raises NoSuchReplay."""
        resource = await self._ledger.get_resource(REPLAY_RESOURCE, job_id)
        if resource is None:
            raise NoSuchReplay(f"no replay {job_id!r}")
        return StoredJob(read_job(resource.spec), resource.etag)

    async def add(self, job: Job) -> StoredJob:
        """A new one. Raises EtagMismatch: there is one of that id."""
        etag, _ = await self._ledger.put_resource(REPLAY_RESOURCE, job.id, job.spec(), "")
        return StoredJob(job, etag)

    async def save(self, kept: StoredJob) -> None:
        """Write a job of which this process is the owner. What is wished for is the others' to say. One whose end was
        written without an answer, and that was asked for again since, is as it was asked for."""
        while True:
            try:
                kept.etag, _ = await self._ledger.put_resource(REPLAY_RESOURCE, kept.job.id, kept.job.spec(), kept.etag)
                return
            except EtagMismatch:
                runs = kept.job.runs
                await self.reread(kept)
                if kept.job.runs != runs:
                    return

    async def reread(self, kept: StoredJob) -> None:
        """See what is wished for by now."""
        found = await self.load(kept.job.id)
        if found.job.runs != kept.job.runs:
            kept.job.become(found.job)
        kept.job.wish, kept.etag = found.job.wish, found.etag

    async def change(self, job_id: str, change: Callable[[Job], None]) -> Job:
        """Change a job of which another may be the owner; only what is the caller's to say. Raises NoSuchReplay."""
        while True:
            kept = await self.load(job_id)
            before = kept.job.spec()
            change(kept.job)
            spec = kept.job.spec()
            if spec == before:
                return kept.job
            try:
                await self._ledger.put_resource(REPLAY_RESOURCE, job_id, spec, kept.etag)
            except EtagMismatch:
                continue
            return kept.job

    async def page(self, cursor: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Some, by id, and the cursor behind them."""
        found, cursor = await self._ledger.list_resources(REPLAY_RESOURCE, cursor, limit)
        return [read_job(resource.spec) for resource in found], cursor

    async def all(self) -> AsyncGenerator[Job, None]:
        """All of them."""
        cursor: str | None = None
        while True:
            jobs, cursor = await self.page(cursor, PAGE)
            for job in jobs:
                yield job
            if cursor is None:
                return

    async def flying(self, job: Job) -> set[str]:
        """The names of messages of the same queue that other replays may have sent, those that have ended included."""
        queue = job.request.source.queue
        if queue is None:
            return set()
        found = set[str]()
        async for other in self.all():
            taken = other.request.source.queue
            if taken is None or other.id == job.id or (taken.broker, taken.queue) != (queue.broker, queue.queue):
                continue
            found.update(map(name_of, other.flying))
        return found

    # ---------------------------------------------------------------------------------------------- refusals

    async def name(self, job_id: str, page: int, refusals: Sequence[Refusal]) -> None:
        """Keep a page of refusals, in place of one of the same number."""
        spec = {"refusals": msgspec.to_builtins(refusals)}
        await self._ledger.put_resource(REFUSALS, _page_name(job_id, page), spec, None)

    async def refusals(self, job: Job, page: int) -> list[Refusal]:
        """A page of them."""
        resource = await self._ledger.get_resource(REFUSALS, _page_name(job.id, page))
        return [] if resource is None else msgspec.convert(resource.spec["refusals"], list[Refusal])

    async def forget_refusals(self, job: Job) -> None:
        """All pages go."""
        for page in range(job.pages):
            await self._ledger.delete_resource(REFUSALS, _page_name(job.id, page), None)

    async def forget_old(self, now: int) -> int:
        """Forget replays that ended :data:`KEPT_DAYS` ago, at ``now`` in microseconds since 1970; how many."""
        before = now - KEPT_DAYS * 86_400 * 1_000_000
        old = [job async for job in self.all() if job.state in ENDED and job.ended_at < before]
        for job in old:
            await self.forget_refusals(job)
            await self._ledger.delete_resource(REPLAY_RESOURCE, job.id, None)
        return len(old)


def _page_name(job_id: str, page: int) -> str:
    return f"{job_id}/{page:06d}"

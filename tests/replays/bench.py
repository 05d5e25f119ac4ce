"""Source, target, store and ledger of one replay, whose outcomes a test gives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

from gateway.amqp.message import Message
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import ANY_REPLAY, Job, Wish
from gateway.replays.requests import MessagesSource, ReplayRequest, ReplaySource
from gateway.replays.runner import Runner
from gateway.replays.sources import Chunk
from gateway.replays.store import StoredJob


class Bench:
    """Source, target, store and ledger of one replay."""

    def __init__(self, count: int = 3, *, rate: float = 0.0, **job: Any) -> None:
        request = ReplayRequest(source=ReplaySource(messages=MessagesSource()), rate=rate)
        self.job = Job(id="r1", request=request, **job)
        self.count = count
        self.whole = True
        self.faults: dict[str, list[Exception]] = {}
        """What is done -> what it fails with, one after the other."""
        self.done: list[str] = []
        """What was done, in order."""
        self.most: list[int] = []
        self.sent: list[list[str]] = []
        self.marked: list[str] = []
        self.recorded: list[list[str]] = []
        self.taken_off: list[list[str]] = []
        self.again: Callable[[Sequence[ReplayItem]], list[ReplayItem]] = lambda items: []
        self.saved: list[Job] = []
        self.pages: dict[int, list[str]] = {}
        self.known: dict[str, Any] = {}
        """What the inbox of this replay knows."""
        self.sent_before: set[str] = set()
        """What any replay is known to have sent."""
        self.flying_elsewhere: set[str] = set()
        """What another replay of the queue may have sent."""
        self.redelivered: set[str] = set()
        """Messages of a queue that were delivered before."""
        self.wish: Wish | None = None
        """What is wished for, as the next look finds it."""
        self.ended: list[str] = []
        self.hold: asyncio.Event | None = None
        """Sending waits for it."""
        anything: Any = self
        ledger: Any = SimpleNamespace(seen=self.seen)
        self.runner = Runner(StoredJob(self.job, ""), anything, ledger, self.parts, self.ended.append)

    async def run(self) -> Job:
        """Run it to its end."""
        self.runner.start()
        await self.until(lambda: bool(self.ended))
        return self.job

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)

    def _do(self, what: str) -> None:
        self.done.append(what)
        if faults := self.faults.get(what):
            raise faults.pop(0)

    async def parts(self) -> Any:
        self._do("parts")
        return self, self

    # the target
    async def check(self) -> None:
        self._do("check")

    async def send(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        self.sent.append([item.key for item in items])
        self._do("send")
        self.marked += [item.key for item in items if item.is_marked]
        if self.hold is not None:
            await self.hold.wait()
        return self.again(items)

    async def record(self, items: Sequence[ReplayItem]) -> None:
        self._do("record")
        self.recorded.append([item.key for item in items])

    # the source
    async def total(self) -> tuple[int, bool]:
        return self.count, self.whole

    def begin(self, count: int) -> str:
        return "0"

    async def take(self, position: str, most: int, landed: Counter[str]) -> Chunk:
        self._do("take")
        self.most.append(most)
        begin = int(position)
        end = min(begin + most, self.count)
        items = [ReplayItem(f"key {n}", bytes(16), Message(b"%d" % n), None) for n in range(begin, end)]
        for item in items:
            if item.key in self.redelivered:
                delivery: Any = SimpleNamespace(redelivered=True)
                item.delivery = delivery
        return Chunk(items=items, position=str(end), last=end == self.count)

    async def landed(self, keys: Sequence[str], sent: Collection[str], position: str) -> tuple[list[str], str]:
        return list(sent), str(int(position) + len(sent))

    def ahead(self, names: Counter[str], chunk: Chunk) -> Counter[str]:
        return Counter()

    def left(self, recorded: Sequence[ReplayItem], position: str) -> tuple[bool, str]:
        return True, str(int(position) + len(recorded))

    async def passed(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        self._do("passed")
        self.taken_off.append([item.key for item in items])
        return []

    async def refused(self, items: Sequence[ReplayItem]) -> None:
        self._do("refused")

    async def close(self) -> None:
        self._do("close")

    # store and ledger
    async def save(self, kept: StoredJob) -> None:
        self._do("save")
        saved = Job(id="", request=kept.job.request)
        saved.become(kept.job)
        self.saved.append(saved)

    async def reread(self, kept: StoredJob) -> None:
        self._do("reread")
        if self.wish is not None:
            kept.job.wish = self.wish

    async def name(self, job_id: str, page: int, refusals: Sequence[Any]) -> None:
        self.pages[page] = [refusal.id for refusal in refusals]

    async def flying(self, job: Job) -> set[str]:
        self._do("flying")
        return self.flying_elsewhere

    async def seen(self, scope: str, keys: Sequence[str]) -> dict[str, Any]:
        if scope == ANY_REPLAY:
            self._do("seen")
            return {key: None for key in keys if key in self.sent_before}
        return {key: self.known[key] for key in keys if key in self.known}

"""Things that run until somebody stops them: what is wished for, what is kept of it, and who runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from gateway.core.work import supervised as module
from gateway.core.work.supervised import SupervisedResource, Supervisor, WantedState
from gateway.errors import (
    CommitUnknown,
    ConfigurationError,
    EncodeError,
    EtagMismatch,
    LedgerUnavailable,
    NoSuchTap,
    PeerUnavailable,
    ReadOnly,
)
from gateway.ledger import Ledger
from gateway.observing.repeats import FIELDS
from gateway.runtime.backoff import Backoff


class Settings(msgspec.Struct, frozen=True):
    queue: str = "q"
    paused: bool = False
    wrong: str = ""


class Thing:
    """One that notes what is asked of it."""

    def __init__(self, resource: SupervisedResource[Settings]) -> None:
        self.name, self.settings, self.etag = resource.name, resource.settings, resource.etag
        self.read_only, self.wish = resource.read_only, resource.wish
        self.finished = self.stale = False
        self.said: list[str] = []
        self.on_halt: Callable[[], None] = lambda: None

    def start(self) -> None:
        self.said.append(f"start {self.wish}")

    async def halt(self, within: float = 5.0) -> None:
        self.said.append(f"halt {within:g}")
        self.on_halt()

    async def drop(self) -> None:
        self.said.append("drop")

    async def status(self) -> Any:
        return self.name, self.settings.queue, str(self.wish)

    async def abandon_source(self, heir: Any = None) -> None:
        self.said.append("abandon" if heir is None else f"abandon for {heir.settings.queue}")


class Ownership:
    """Work as the test grants it."""

    def __init__(self) -> None:
        self.takes_work = True
        self.granted = True
        self.holds = True
        self.said: list[tuple[str, ...]] = []
        self.worker: Any = None

    def register(self, kind: str, worker: Any) -> None:
        self.worker = worker
        self.said.append(("register", kind))

    async def review(self, kind: str) -> None:
        self.said.append(("review", kind))
        for name in await self.worker.names():
            await self.worker.start(name)

    def has(self, kind: str, name: str) -> bool:
        return self.holds

    async def acquire(self, kind: str, name: str) -> bool:
        self.said.append(("acquire", name))
        if self.granted:
            await self.worker.start(name)
        return self.granted

    def reread(self, kind: str, name: str) -> None:
        self.said.append(("reread", name))

    def changed(self, kind: str, name: str = "") -> None:
        self.said.append(("changed", name))


class Taps(Supervisor[Settings, Any, Any]):
    kind = "tap"
    settings_type = Settings
    no_such = NoSuchTap

    def __init__(
        self, ledger: Ledger, configured: Mapping[str, Settings] | None = None, *, shared: bool = False
    ) -> None:
        self.ownership = Ownership()
        gateway: Any = SimpleNamespace(
            ledger=ledger, ownership=self.ownership, peers=SimpleNamespace(shared=shared)
        )  # fmt: skip
        super().__init__(gateway, configured or {})
        self.made: list[Thing] = []
        self.forgotten: list[str] = []

    def check(self, name: str, settings: Settings, find: Any = None) -> None:
        if settings.wrong:
            raise EncodeError(f"wrong: {settings.wrong}")

    def build(self, resource: SupervisedResource[Settings]) -> Thing:
        self.check(resource.name, resource.settings)
        self.made.append(Thing(resource))
        return self.made[-1]

    def at_rest(self, resource: SupervisedResource[Settings]) -> Any:
        return resource.name, resource.settings.queue, f"at rest, {resource.wish}"

    def has_moved(self, before: Settings, after: Settings) -> bool:
        return before.queue != after.queue

    def forget_counts(self, name: str) -> None:
        self.forgotten.append(name)

    def said(self, index: int = -1) -> list[str]:
        return self.made[index].said

    async def settle(self) -> None:
        """Until what goes on behind has ended."""
        await self._tasks.join(5.0)


@pytest.fixture
async def taps(ledger: Ledger) -> Taps:
    made = Taps(ledger)
    await made.start()
    return made


async def wish_of(ledger: Ledger, name: str = "t") -> str | None:
    kept = await ledger.get_resource("tap-wish", name)
    return None if kept is None else str(kept.spec["wish"])


# ------------------------------------------------------------------------------------------------------ the start


async def test_all_that_are_defined_are_run(ledger: Ledger) -> None:
    await ledger.put_resource("tap", "stored", {"queue": "a"})
    await ledger.put_resource("tap", "paused", {"paused": True})
    await ledger.put_resource("tap", "bad", {"queue": 7})
    await ledger.put_resource("tap-wish", "file", {"wish": "stop"})
    taps = Taps(ledger, {"file": Settings("f")})
    await taps.start()
    assert taps.ownership.said == [("register", "tap"), ("review", "tap")]
    found = {thing.name: (thing.settings.queue, thing.read_only, thing.said) for thing in taps.made}
    assert found == {
        "stored": ("a", False, ["start run"]),
        "paused": ("q", False, ["start pause"]),
        "file": ("f", True, ["start stop"]),
    }
    assert await taps.names() == {"stored", "paused", "bad", "file"}
    assert set(await taps.all_settings()) == {"stored", "paused", "file"}
    await taps.take("stored")
    assert len(taps.made) == 3, "it is here already"


async def test_settings_of_the_file_that_are_wrong_are_named(ledger: Ledger) -> None:
    taps = Taps(ledger, {"t": Settings(wrong="x")})
    with pytest.raises(ConfigurationError, match=r"^taps\.t\.wrong: x$"):
        await taps.start()
    assert taps.ownership.said == []


async def test_what_is_wrong_in_the_ledger_is_there_to_be_put_right(ledger: Ledger, taps: Taps) -> None:
    await ledger.put_resource("tap", "t", {"queue": 7})
    await taps.take("t")
    with pytest.raises(NoSuchTap):
        await taps.get("t")
    _, created = await taps.put("t", Settings("a"), "*")
    assert not created
    assert await taps.get("t") == ("t", "a", "run")


# ----------------------------------------------------------------------------------------------------- changing


async def test_put_and_put_again(taps: Taps, ledger: Ledger) -> None:
    assert await taps.put("t", Settings("a"), None) == (("t", "a", "run"), True)
    assert taps.is_here("t")
    first = taps.made[-1]
    assert first.said == ["start run"]
    assert await taps.put("t", Settings("a"), None) == (("t", "a", "run"), False)
    assert first.said == ["start run"]
    with pytest.raises(EtagMismatch):
        await taps.put("t", Settings("b"), "another")
    assert await taps.put("t", Settings("b"), first.etag) == (("t", "b", "run"), False)
    assert first.said == ["start run", "halt 5", "abandon for b"]
    assert taps.said() == ["start run"]
    await taps.put("t", structs.replace(Settings("b"), wrong=""), None)
    with pytest.raises(EncodeError):
        await taps.put("t", Settings("b", wrong="x"), taps.made[-1].etag)
    assert taps.said() == ["start run"], "before anything is written"
    assert (await ledger.get_resource("tap", "t")).spec["queue"] == "b"  # type: ignore[union-attr]


async def test_a_wish_outlasts_other_settings_unless_they_say_how_it_begins(taps: Taps, ledger: Ledger) -> None:
    await ledger.put_resource("tap-wish", "t", {"wish": "pause"})  # of another that had this name
    await taps.put("t", Settings("a"), None)
    assert await taps.get("t") == ("t", "a", "run")
    assert await wish_of(ledger) is None
    await taps.pause("t")
    assert await wish_of(ledger) == "pause"
    await taps.put("t", Settings("b"), taps.made[-1].etag)
    assert await taps.get("t") == ("t", "b", "pause")
    await taps.resume("t")
    await taps.put("t", Settings("b", paused=True), taps.made[-1].etag)
    await taps.settle()
    assert await taps.get("t") == ("t", "b", "pause")
    assert await wish_of(ledger) == "pause"


async def test_settings_that_may_be_written_are_read_again(
    taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await taps.put("t", Settings("a"), None)
    real = ledger.put_resource

    async def cut_off(*arguments: Any) -> Any:
        await real(*arguments)
        raise CommitUnknown("cut off")

    monkeypatch.setattr(ledger, "put_resource", cut_off)
    with pytest.raises(CommitUnknown):
        await taps.put("t", Settings("b"), taps.made[-1].etag)
    assert taps.ownership.said[-1] == ("reread", "t")
    monkeypatch.undo()
    await taps.refresh("t")
    assert await taps.get("t") == ("t", "b", "run")


async def test_delete(taps: Taps, ledger: Ledger) -> None:
    await taps.put("t", Settings("a"), None)
    await taps.pause("t")
    with pytest.raises(EtagMismatch):
        await taps.delete("t", "another")
    await taps.delete("t", taps.made[-1].etag)
    assert taps.said()[-2:] == ["halt 5", "abandon"]
    assert (taps.forgotten, taps.is_here("t"), await wish_of(ledger)) == (["t"], False, None)
    assert taps.ownership.said[-1] == ("changed", "t")
    with pytest.raises(NoSuchTap):
        await taps.delete("t", None)
    await ledger.put_resource("tap", "bad", {"queue": 7})
    await taps.delete("bad", None)
    assert await ledger.get_resource("tap", "bad") is None


async def test_a_wish_that_cannot_be_deleted_keeps_nothing(
    taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await taps.put("t", Settings("a"), None)
    real = ledger.delete_resource

    async def failing(kind: str, *arguments: Any) -> Any:
        if kind == "tap-wish":
            raise LedgerUnavailable("away")
        return await real(kind, *arguments)

    monkeypatch.setattr(ledger, "delete_resource", failing)
    await taps.delete("t", None)
    assert [getattr(each, FIELDS)["reason"] for each in caplog.records if each.msg == "tap.wish_left"] == ["away"]


async def test_those_of_the_file_are_paused_and_not_changed(ledger: Ledger) -> None:
    taps = Taps(ledger, {"t": Settings("a")})
    await taps.start()
    with pytest.raises(ReadOnly):
        await taps.put("t", Settings("b"), None)
    with pytest.raises(ReadOnly):
        await taps.delete("t", None)
    assert await taps.pause("t") == ("t", "a", "pause")
    again = Taps(ledger, {"t": Settings("a")})
    await again.start()
    assert again.said() == ["start pause"], "also after a restart"


# ------------------------------------------------------------------------------------------------------- wishes


async def test_a_pause_halts_once(taps: Taps) -> None:
    await taps.put("t", Settings("a"), None)
    for _ in range(2):
        assert await taps.pause("t") == ("t", "a", "pause")
    assert taps.said() == ["start run", "halt 5", "start pause", "start pause"]
    assert await taps.resume("t") == ("t", "a", "run")
    assert taps.said()[4:] == ["start run"]
    with pytest.raises(NoSuchTap):
        await taps.pause("missing")


@pytest.mark.parametrize(("error", "kept"), [(LedgerUnavailable("away"), "run"), (CommitUnknown("cut off"), "run")])
async def test_a_wish_that_cannot_be_kept_does_not_count(
    taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: LedgerUnavailable, kept: str
) -> None:
    """Nor after a restart, where it may be written all the same."""
    monkeypatch.setattr(module, "PAUSE_MIN", 0.001)
    await taps.put("t", Settings("a"), None)
    await taps.resume("t")
    real, failures = ledger.put_resource, [error, LedgerUnavailable("still away")]

    async def failing(*arguments: Any) -> Any:
        if isinstance(error, CommitUnknown) and len(failures) == 2:
            await real(*arguments)
        if failures:
            raise failures.pop(0)
        return await real(*arguments)

    monkeypatch.setattr(ledger, "put_resource", failing)
    with pytest.raises(type(error)):
        await taps.pause("t")
    assert await taps.get("t") == ("t", "a", "run")
    assert "halt 5" not in taps.said()
    await taps.settle()
    assert await wish_of(ledger) in ((kept, None) if not isinstance(error, CommitUnknown) else (kept,))


async def test_what_comes_to_its_end_stops(taps: Taps, ledger: Ledger) -> None:
    await taps.put("t", Settings("a"), None)
    thing: Any = taps.made[-1]
    taps._finished(thing, "drained")
    await taps.settle()
    assert thing.said == ["start run"], "something else was asked for meanwhile"
    thing.finished = True
    taps._finished(thing, "drained")
    await taps.settle()
    assert (thing.said[-1], thing.wish, await wish_of(ledger)) == ("halt 5", WantedState.STOP, "stop")


# --------------------------------------------------------------------------------------------- as work that is owned


async def test_what_goes_to_another_process_is_halted_and_what_is_lost_is_dropped(taps: Taps) -> None:
    for name in ("given", "lost"):
        await taps.put(name, Settings("a"), None)
    await taps.give("given", 3.0)
    taps.lose("lost")
    await taps.settle()
    assert [thing.said[-1] for thing in taps.made] == ["halt 3", "drop"]
    assert not taps.is_here("given")
    assert not taps.is_here("lost")
    assert taps.forgotten == [], "its counts go on if it comes back"
    await taps.give("unknown", 3.0)
    taps.lose("unknown")
    assert await taps.get("given") == ("given", "a", "at rest, run")


async def test_what_was_changed_elsewhere_starts_over(taps: Taps, ledger: Ledger) -> None:
    await taps.put("t", Settings("a"), None)
    await taps.refresh("t")
    assert taps.said() == ["start run"], "nothing is another"
    taps.made[-1].stale = True
    await taps.refresh("t")
    assert (taps.said(-2), taps.said()) == (["start run", "halt 5"], ["start run"])
    await ledger.put_resource("tap", "t", {"queue": "b"})
    await taps.refresh("t")
    assert (taps.said(-2), taps.made[-1].settings.queue) == (["start run", "halt 5"], "b")
    await ledger.put_resource("tap-wish", "t", {"wish": "pause"})
    await taps.refresh("t")
    assert taps.said() == ["start pause"]
    await taps.refresh("t")
    assert taps.said() == ["start pause"]
    await ledger.delete_resource("tap", "t", None)
    await taps.refresh("t")
    assert (taps.said(), taps.is_here("t")) == (["start pause", "halt 5"], False)
    await ledger.put_resource("tap", "new", {"queue": "c"})
    await taps.refresh("new")
    assert taps.said() == ["start run"]


async def test_what_is_lost_while_it_starts_over_is_left_alone(taps: Taps, ledger: Ledger) -> None:
    await taps.put("t", Settings("a"), None)
    count = len(taps.made)
    taps.made[-1].on_halt = lambda: taps.lose("t")
    await ledger.put_resource("tap", "t", {"queue": "b"})
    await taps.refresh("t")
    assert len(taps.made) == count
    assert not taps.is_here("t")


async def test_what_was_lost_before_it_starts_does_not_start(taps: Taps) -> None:
    taps.ownership.holds = False
    await taps.take("t")
    with pytest.raises(NoSuchTap):
        await taps.get("t")
    await taps.put("t", Settings("a"), None)
    assert taps.said() == []
    assert not taps.is_here("t")


async def test_settings_of_the_file_that_change(ledger: Ledger) -> None:
    """The counts of what the file has no more go when it ends; a queue of its own goes where it moves."""
    taps = Taps(ledger, {"moved": Settings("a"), "gone": Settings("b"), "back": Settings("c")})
    await taps.start()
    taps.reconfigure({"moved": Settings("d"), "back": Settings("c")})
    await taps.refresh("moved")
    moved = next(thing for thing in taps.made if thing.name == "moved")
    assert moved.said == ["start run", "halt 5", "abandon for d"]
    taps.reconfigure({"moved": Settings("d")})
    taps.reconfigure({"moved": Settings("d"), "back": Settings("c")})
    for name in ("gone", "back"):
        await taps.give(name, 1.0)
    assert taps.forgotten == ["gone"]
    await taps.take("gone")
    assert not taps.is_here("gone")


async def test_nothing_starts_any_more_once_the_gateway_leaves(taps: Taps) -> None:
    await taps.put("t", Settings("a"), None)
    taps.hold()
    await taps.resume("t")
    assert taps.said() == ["start run"]
    await taps.close(2.0)
    assert taps.said() == ["start run", "halt 2"]
    await taps.put("u", Settings("a"), None)
    assert taps.said() == []


# -------------------------------------------------------------------------------------------- several processes


async def test_one_that_nobody_runs_is_taken_before_it_is_changed(ledger: Ledger) -> None:
    taps = Taps(ledger, shared=True)
    await taps.start()
    await ledger.put_resource("tap", "t", {"queue": "a"})
    assert await taps.pause("t") == ("t", "a", "pause")
    assert taps.ownership.said[-1] == ("acquire", "t")
    with pytest.raises(NoSuchTap):
        await taps.pause("missing")
    assert taps.ownership.said[-1] == ("acquire", "t"), "there is nothing to take"


@pytest.mark.parametrize(
    ("takes_work", "why"), [(True, "has just come to another process"), (False, "is run by no worker now")]
)
async def test_one_that_another_process_has_is_not_changed(ledger: Ledger, takes_work: bool, why: str) -> None:
    taps = Taps(ledger, shared=True)
    await taps.start()
    await ledger.put_resource("tap", "t", {"queue": "a"})
    taps.ownership.granted, taps.ownership.takes_work = False, takes_work
    with pytest.raises(PeerUnavailable, match=why):
        await taps.pause("t")
    assert await taps.put("new", Settings("b"), None) == (("new", "b", "at rest, run"), True)
    assert taps.ownership.said[-1] == ("changed", "new")
    assert taps.made == []


async def test_pages_by_name(ledger: Ledger) -> None:
    taps = Taps(ledger, {"c": Settings("f")}, shared=True)
    await taps.start()
    for name in ("a", "b", "d"):
        await ledger.put_resource("tap", name, {"queue": name})
    await ledger.put_resource("tap", "bad", {"queue": 7})
    page, cursor = await taps.page(None, 3)
    assert ([each[0] for each in page], cursor) == (["a", "b"], "bad")
    page, cursor = await taps.page(cursor, 2)
    assert ([each[:2] for each in page], cursor) == ([("c", "f"), ("d", "d")], None)
    alone = Taps(ledger)
    assert await alone.page(None, 3) == ([], None), "in one process all are here"


async def test_what_cannot_be_read_is_no_end_of_a_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    taps = Taps(ledger, shared=True)
    await ledger.put_resource("tap", "a", {"queue": "a"})
    names = await taps.names()

    async def known() -> set[str]:
        return names

    async def away(*arguments: Any) -> Any:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(taps, "names", known)
    monkeypatch.setattr(ledger, "get_resource", away)
    with pytest.raises(LedgerUnavailable):
        await taps.page(None, 3)
    await asyncio.sleep(0)


async def test_what_is_changed_or_deleted_is_taken_first(ledger: Ledger) -> None:
    """So that its wish stays, and its queue goes."""
    taps = Taps(ledger, shared=True)
    await taps.start()
    etag, _ = await ledger.put_resource("tap", "t", {"queue": "a"})
    await ledger.put_resource("tap-wish", "t", {"wish": "pause"})
    assert await taps.put("t", Settings("b"), etag) == (("t", "b", "pause"), False)
    assert [thing.said for thing in taps.made] == [["start pause", "halt 5", "abandon for b"], ["start pause"]]
    await ledger.put_resource("tap", "u", {"queue": "a"})
    await taps.delete("u", None)
    assert taps.said() == ["start run", "halt 5", "abandon"]
    assert taps.forgotten == ["u"]


async def test_who_has_it_reads_a_wish_that_was_written_when_it_was_lost(
    taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await taps.put("t", Settings("a"), None)
    real = ledger.put_resource

    async def losing(*arguments: Any) -> Any:
        taps.lose("t")
        return await real(*arguments)

    monkeypatch.setattr(ledger, "put_resource", losing)
    await taps.pause("t")
    await taps.settle()
    assert taps.ownership.said[-1] == ("reread", "t")
    assert not taps.is_here("t")
    assert "start pause" not in taps.said()


async def test_a_wish_is_tried_again_after_pauses(taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def wait(self: Backoff) -> None:
        pauses.append(self.next())

    monkeypatch.setattr(Backoff, "wait", wait)
    await taps.put("t", Settings("a"), None)
    real, failures = ledger.put_resource, 3

    async def failing(*arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise LedgerUnavailable("away")
        return await real(*arguments)

    monkeypatch.setattr(ledger, "put_resource", failing)
    thing: Any = taps.made[-1]
    thing.finished = True
    taps._finished(thing, "drained")
    await taps.settle()
    assert (len(pauses), await wish_of(ledger)) == (3, "stop")


async def test_counts_go_once_with_what_the_file_has_no_more(ledger: Ledger) -> None:
    taps = Taps(ledger, {"t": Settings("a")})
    await taps.start()
    taps.reconfigure({})
    await taps.give("t", 1.0)
    await ledger.put_resource("tap", "t", {"queue": "a"})
    await taps.take("t")
    await taps.give("t", 1.0)
    assert taps.forgotten == ["t"]


async def test_nothing_goes_on_once_it_is_closed(taps: Taps) -> None:
    await taps.put("t", Settings("a"), None)
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    taps._spawn(work())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await taps.close(1.0)
    assert ended.is_set()
    await taps.put("u", Settings("a"), None)
    assert taps.said() == []

"""Things that run until somebody stops them: what is wished for, what is kept of it, and who runs them."""

from __future__ import annotations

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
    ReadOnly,
)
from gateway.ledger import Ledger
from gateway.observing.repeats import FIELDS


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

"""Things that run until somebody stops them, as work that goes from process to process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.work.supervised import WantedState
from gateway.errors import LedgerUnavailable, NoSuchTap, PeerUnavailable
from gateway.ledger import Ledger
from gateway.runtime.backoff import Backoff
from tests.core.test_supervised import Settings, Taps, wish_of


@pytest.fixture
async def taps(ledger: Ledger) -> Taps:
    made = Taps(ledger)
    await made.start()
    return made


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


async def test_what_was_changed_elsewhere_without_notice_is_outdated(ledger: Ledger) -> None:
    taps = Taps(ledger, {"file": Settings("c")})
    await taps.start()
    for name in ("same", "changed", "given"):
        await taps.put(name, Settings("a"), None)
    await taps.give("given", 1.0)
    await ledger.put_resource("tap", "elsewhere", {"queue": "a"})
    await taps.names()
    assert taps.outdated == []
    for name in ("changed", "given"):
        await ledger.put_resource("tap", name, {"queue": "b"})
    await taps.names()
    assert taps.outdated == ["changed"]
    await taps.refresh("changed")
    await taps.names()
    assert taps.outdated == []


async def test_the_others_hear_of_a_new_one_at_once(ledger: Ledger) -> None:
    """They take it over where its process dies soon."""
    taps = Taps(ledger, shared=True)
    await taps.start()
    await taps.put("t", Settings("a"), None)
    assert taps.ownership.said.count(("changed", "t")) == 1
    await taps.put("t", Settings("b"), "*")
    assert taps.ownership.said.count(("changed", "t")) == 1, "they read its settings when they take it"


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


@pytest.mark.parametrize("lost", ["at its end", "when it starts over"])
async def test_a_wish_is_refused_where_it_is_lost_before_that_is_written(
    taps: Taps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Who has it by then has read the wish before."""
    await taps.put("t", Settings("a"), None)
    (thing,) = taps.made
    if lost == "at its end":
        thing.finished = True
        thing.on_halt = lambda: taps.lose("t")
    else:
        thing.wish = WantedState.STOP

        async def start_over(name: str) -> None:
            taps.lose(name)

        monkeypatch.setattr(taps, "start_over", start_over)
    with pytest.raises(PeerUnavailable, match="has just come to another process"):
        await (taps.pause if lost == "at its end" else taps.resume)("t")
    assert await wish_of(ledger, "t") is None


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

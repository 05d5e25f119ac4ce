"""Runs of jobs: what is told of them, and that one that is done stays done."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import NoSuchRun, StateError
from gateway.ledger import Ledger, Run
from gateway.ledger.logs import pipeline_runs
from tests.ledger.conftest import NOW


def run(**given: Any) -> Run:
    """What a job tells of a run."""
    values = {
        "id": "r1", "job": "rollup", "state": "running", "started_at": NOW, "ended_at": 0, "fingerprint": "f",
        "detail": {},
    }  # fmt: skip
    return Run(**(values | given))  # type: ignore[arg-type]


async def test_a_run_from_beginning_to_end(ledger: Ledger) -> None:
    assert await ledger.log.put_run(run())
    assert not await ledger.log.put_run(run(detail={"rows": 7, "why": "\udc80"}))
    done = run(state="done", ended_at=NOW + 5, detail={"rows": 9})
    assert not await ledger.log.put_run(done)
    found = await ledger.log.get_run("r1")
    assert (found.state, found.ended_at, found.detail) == ("done", NOW + 5, {"rows": 9})
    assert found.updated_at > 0
    assert not await ledger.log.put_run(done)  # its answer was lost, say
    for other in (run(), run(state="failed"), run(state="done", ended_at=NOW + 6, detail={"rows": 9})):
        with pytest.raises(StateError, match="done, and is not overwritten"):
            await ledger.log.put_run(other)
    assert (await ledger.log.get_run("r1")).detail == {"rows": 9}


async def test_one_that_failed_may_be_begun_again(ledger: Ledger) -> None:
    await ledger.log.put_run(run(state="failed", ended_at=NOW + 1))
    await ledger.log.put_run(run(started_at=NOW + 2))
    assert (await ledger.log.get_run("r1")).state == "running"


@pytest.mark.parametrize(("name", "value"), [("job", "archive"), ("fingerprint", "g")])
async def test_the_id_of_another_run(ledger: Ledger, name: str, value: str) -> None:
    await ledger.log.put_run(run())
    with pytest.raises(StateError, match=f"{name} .*, not '{value}'"):
        await ledger.log.put_run(run(**{name: value}))


async def test_pages_the_newest_first(ledger: Ledger) -> None:
    for number in range(5):
        job = "archive" if number % 2 else "rollup"
        await ledger.log.put_run(run(id=f"r{number}", job=job, started_at=NOW + number // 2, state="done"))
    found: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await ledger.log.list_runs(None, None, cursor, 2)
        found += [each.id for each in page]
        if cursor is None:
            break
    assert found == ["r4", "r3", "r2", "r1", "r0"]
    assert [each.id for each in (await ledger.log.list_runs("archive"))[0]] == ["r3", "r1"]
    assert (await ledger.log.list_runs(state="failed"))[0] == []
    with pytest.raises(ValueError, match="no cursor of this list"):
        await ledger.log.list_runs(cursor="x")
    with pytest.raises(NoSuchRun, match="'r9'"):
        await ledger.log.get_run("r9")


async def test_old_ones_are_forgotten(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_runs, "CHUNK", 2)
    for number in range(5):
        await ledger.log.put_run(run(id=f"r{number}", started_at=NOW if number else NOW * 2))
    before = NOW * 2
    counts = [await ledger.task(lambda connection, _: pipeline_runs.forget(connection, before)) for _ in range(4)]
    assert counts == [2, 2, 0, 0]
    assert [each.id for each in (await ledger.log.list_runs())[0]] == ["r0"]

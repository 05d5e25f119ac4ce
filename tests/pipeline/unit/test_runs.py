"""Runs and their records: what is done is done once, and what failed says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway import errors
from gateway.pipeline.jobs import base, runs
from gateway.pipeline.jobs.base import JOBS, Context, Job, JobRequest, Option, Outcome, job_of, options_of
from gateway.pipeline.reports import Number, Numbers
from gateway.pipeline.settings import Pipeline
from tests.pipeline.unit.board import URL, Board, problem


class Count:
    """Counts how often it ran."""

    name = "count"
    help = "Count."
    options = (Option("limit", "", "whole", default=5), Option("speed", "", "number", identity=False))

    def __init__(self, work: Callable[[Context], Outcome] | None = None) -> None:
        self.ran = 0
        self._work = work or (lambda context: Outcome(rows=7, detail={"found": 3}))

    def run(self, context: Context) -> Outcome:
        self.ran += 1
        return self._work(context)


@pytest.fixture
def board() -> Board:
    return Board()


def context(
    board: Board, run_id: str = "r1", options: dict[str, Any] | None = None, dry_run: bool = False, **more: Any
) -> Context:
    given = options_of(Count(), options or {})
    return Context(Pipeline(url=URL), JobRequest(run_id, given, "count", dry_run), service=board.service(), **more)


def test_a_run_has_a_record(board: Board) -> None:
    ended = runs.run(Count(), context(board), clock=iter(range(1_000_000, 1_000_100)).__next__)
    assert (ended.outcome.rows, ended.repeated) == (7, False)
    record = board.runs["r1"]
    assert (record["job"], record["state"]) == ("count", "done")
    assert record["detail"].items() >= {"rows": 7, "exit": 0, "found": 3}.items()
    assert record["started_at"] < record["ended_at"]
    assert [method for method, _ in board.asked] == ["GET", "PUT", "PUT"]


def test_a_second_run_does_nothing_and_answers_what_the_first_did(board: Board) -> None:
    job = Count(lambda context: Outcome(rows=7, detail={"found": 3}, exit=7))
    runs.run(job, context(board))
    ended = runs.run(job, context(board, options={"speed": 9.0}))
    assert job.ran == 1
    assert ended.repeated
    assert (ended.outcome.rows, ended.outcome.exit, ended.outcome.detail["found"]) == (7, 7, 3)


def test_an_id_of_other_settings_is_refused(board: Board) -> None:
    job = Count()
    runs.run(job, context(board))
    with pytest.raises(errors.FingerprintDiffers, match=r"the run r1 of .* was a count with other options"):
        runs.run(job, context(board, options={"limit": 6}))
    assert job.ran == 1


def test_one_that_failed_says_why_and_may_run_again(board: Board) -> None:
    def fail(_: Context) -> Outcome:
        raise errors.SourceGone("rows 1 to 9 are gone")

    with pytest.raises(errors.SourceGone):
        runs.run(Count(fail), context(board))
    record = board.runs["r1"]
    assert record["state"] == "failed"
    assert record["detail"].items() >= {"code": "source_gone", "error": "rows 1 to 9 are gone", "exit": 9}.items()
    assert runs.run(Count(), context(board)).outcome.rows == 7
    assert board.runs["r1"]["state"] == "done"


def test_what_is_kept_is_there_for_the_next_attempt(board: Board) -> None:
    """Written at once, and with whatever is written of the run until it is done."""
    seen: list[dict[str, Any]] = []

    def fail(context: Context) -> Outcome:
        seen.append(dict(context.kept))
        context.keep(upto=len(seen), place="here")
        assert board.runs["r1"]["detail"]["kept"] == {"upto": len(seen), "place": "here"}
        if len(seen) < 3:
            raise errors.SourceGone("gone")
        return Outcome()

    for _ in range(2):
        with pytest.raises(errors.SourceGone):
            runs.run(Count(fail), context(board))
    runs.run(Count(fail), context(board))
    assert seen == [{}, {"upto": 1, "place": "here"}, {"upto": 2, "place": "here"}]
    assert "kept" not in board.runs["r1"]["detail"]


def test_a_dry_run_keeps_nothing(board: Board) -> None:
    def work(context: Context) -> Outcome:
        context.keep(upto=1)
        return Outcome()

    runs.run(Count(work), context(board, dry_run=True))
    assert board.asked == []


def test_what_is_no_error_of_ours_becomes_one(board: Board) -> None:
    def fail(_: Context) -> Outcome:
        raise RuntimeError("java.io.IOException: No space left on device")

    with pytest.raises(errors.DiskFull):
        runs.run(Count(fail), context(board))
    assert board.runs["r1"]["detail"]["code"] == "disk_full"


def test_one_that_is_told_to_end_can_go_on(board: Board) -> None:
    def stop(_: Context) -> Outcome:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        runs.run(Count(stop), context(board))
    assert board.runs["r1"]["state"] == "failed"
    assert "run it again with its id" in board.runs["r1"]["detail"]["error"]


def test_a_dry_run_leaves_no_record(board: Board) -> None:
    assert runs.run(Count(), context(board, dry_run=True)).outcome.rows == 7
    assert board.asked == []


def test_without_the_gateway_nothing_begins() -> None:
    job = Count()
    with pytest.raises(errors.ServiceUnreachable):
        runs.run(job, Context(Pipeline(url="http://127.0.0.1:9"), JobRequest("r1", options_of(job, {}), "count")))
    assert job.ran == 0


def test_a_failure_is_told_although_its_record_cannot_be_written(board: Board) -> None:
    def fail(_: Context) -> Outcome:
        board.before = lambda request: problem(403, "forbidden", "the key was taken away")
        raise errors.SourceGone("rows 1 to 9 are gone")

    with pytest.raises(errors.SourceGone) as caught:
        runs.run(Count(fail), context(board))
    assert caught.value.__notes__ == [f"its record could not be written: {URL}: the key was taken away [forbidden]"]


def test_progress_is_written_now_and_then(board: Board) -> None:
    time = [0.0]

    def work(context: Context) -> Outcome:
        for done in range(100):
            time[0] += 1.0
            context.progress(done, 100, lost=0)
        assert board.runs["r1"]["state"] == "running"
        assert board.runs["r1"]["detail"]["done"] == 99
        return Outcome()

    runs.run(Count(work), context(board), clock=lambda: time[0])
    assert len([method for method, _ in board.asked if method == "PUT"]) == 2 + 100 // runs.HEARD_EVERY


def test_progress_that_cannot_be_written_does_not_stop_the_work(board: Board) -> None:
    time = [0.0]

    def work(context: Context) -> Outcome:
        board.before = lambda request: problem(422, "invalid_request", "no")
        time[0] += 60.0
        context.progress(1)
        board.before = lambda request: None
        return Outcome(rows=1)

    runs.run(Count(work), context(board), clock=lambda: time[0])
    assert board.runs["r1"]["state"] == "done"


def test_how_far_it_is_is_shown(board: Board) -> None:
    lines: list[str] = []

    class Screen(base.Silent):
        def show(self, found: Any, line: str) -> None:
            lines.append(line)

    def work(context: Context) -> Outcome:
        context.say("reading")
        context.progress(1_000, 5_000, lost=0, state="ok")
        context.progress(3)
        return Outcome()

    runs.run(Count(work), context(board, reporter=Screen()))
    assert lines == ["count  reading", "count  1,000 of 5,000  20%  lost 0  state ok", "count  3"]


def test_as_json_it_is_all_there(board: Board) -> None:
    report = Numbers("Numbers", [Number("lost", 1, bad=True)])
    job = Count(lambda context: Outcome(rows=7, detail={"found": 3}, reports=(report,), exit=7))
    found = runs.as_dict(job, runs.run(job, context(board)))
    assert found.items() >= {"id": "r1", "job": "count", "repeated": False, "rows": 7, "exit": 7}.items()
    assert found["reports"] == [
        {
            "kind": "numbers",
            "title": "Numbers",
            "numbers": [{"label": "lost", "value": 1, "note": "", "bad": True}],
            "note": "",
        }
    ]


def test_ids_are_made_of_job_and_time() -> None:
    first = runs.new_id("rollup", 0.0)
    assert first.startswith("rollup-19700101T000000-")
    assert first != runs.new_id("rollup", 0.0)
    assert runs.path_of("a/b c") == "/v1/pipeline/runs/a%2Fb%20c"


def test_an_option_that_the_job_does_not_have_is_named() -> None:
    with pytest.raises(KeyError, match="the job count has no option 'limits'; it has limit, speed"):
        options_of(Count(), {"limits": 1})
    assert options_of(Count(), {}) == {"limit": 5, "speed": None}


@pytest.mark.parametrize("name", JOBS)
def test_every_job_of_the_table_is_one(name: str) -> None:
    job = job_of(name)
    assert isinstance(job, Job)
    assert job.name == name
    assert job.help.endswith(".")
    names = [option.name for option in job.options]
    assert len(set(names)) == len(names)
    for option in job.options:
        assert option.help, option.name
        assert option.name not in ("id", "dry_run", "html", "master", "config", "url", "storage", "as_json", "run_id")


def test_a_context_without_a_job_starts_no_spark(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(base, "spark_session", lambda *_, **__: asked.append("a session"))
    monkeypatch.setattr(base, "close_session", lambda _: asked.append("an end"))
    context(board).close()
    assert asked == []


def test_the_answer_of_an_unknown_run_is_not_taken_for_the_gateway_of_another_release(board: Board) -> None:
    board.before = lambda request: httpx.Response(404, json={"code": "route_not_found", "detail": "no such route"})
    job = Count()
    with pytest.raises(errors.ServiceRefused, match="no such route"):
        runs.run(job, context(board))
    assert job.ran == 0


def test_a_detail_that_no_record_holds_is_left_out(board: Board) -> None:
    job = Count(lambda context: Outcome(rows=7, detail={"found": 3, "names": ["x" * 100] * 1_000}))
    runs.run(job, context(board))
    assert board.runs["r1"]["detail"].keys() == {"rows", "exit", "found", "left_out"}

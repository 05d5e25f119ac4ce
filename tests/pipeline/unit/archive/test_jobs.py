"""The jobs that keep archives, without Spark and without a gateway: what they ask, in which order, and what they do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from gateway.errors import CursorOwned, DiskFull, NoSuchResource, PipelineFault, ServiceUnreachable, SourceGone
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Appended, Token
from gateway.pipeline.jobs import archive as archiving
from gateway.pipeline.jobs import retention, upkeep
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, job_of, options_of
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.service import Service
from gateway.pipeline.settings import Pipeline
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages


class Gateway:
    """A log of two shards, and cursors; it notes what it is asked, and what the archive held then."""

    def __init__(self) -> None:
        self.head = {"0": 0, "1": 0}
        self.floor = {"0": 1, "1": 1}
        self.cursors: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[dict[str, int], dict[str, int]]] = []
        self.table: Callable[[], ParquetTable] | None = None
        self.released = 0
        self.fenced = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/log/head":
            shards = [{"shard": int(shard), "floor": self.floor[shard], "head": last}
                      for shard, last in self.head.items()]  # fmt: skip
            return httpx.Response(200, json={"log": MESSAGES, "shards": shards, "arrow": True})
        if path == "/v1/log/cursors":
            names = sorted(self.cursors)
            at = int(request.url.params.get("cursor", 0))
            more = {"link": f'</v1/log/cursors?cursor={at + 1}>; rel="next"'} if at + 1 < len(names) else {}
            page = [self.cursors[name] for name in names[at : at + 1]]
            return httpx.Response(200, json={"cursors": page}, headers=more)
        name, _, verb = path.removeprefix("/v1/log/cursors/").partition(":")
        body = json.loads(request.content)
        if verb == "claim":
            start = (
                {shard: first - 1 for shard, first in self.floor.items()}
                if body["start"] == "earliest"
                else body["start"]
            )
            cursor = self.cursors.setdefault(name, {"name": name, "log": body["log"], "position": start, "epoch": 0})
            cursor["epoch"] += 1
            return httpx.Response(200, json=cursor)
        if verb == "release":
            self.released += 1
            return httpx.Response(200, json=self.cursors[name])
        if self.fenced:
            problem = {
                "code": "cursor_owned",
                "detail": "the cursor belongs to ann@elsewhere",
                "title": "",
                "status": 409,
            }
            return httpx.Response(409, json=problem)
        assert self.table is not None
        self.told.append((body["position"], self.table().position()))
        position = self.cursors[name]["position"]
        position.update({shard: max(position.get(shard, 0), last) for shard, last in body["position"].items()})
        return httpx.Response(200, json=self.cursors[name])


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


Run = Callable[..., Outcome]


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], ParquetTable]:
    return lambda: ParquetTable.opened(ArrowEngine(), tmp_path / MESSAGES, MESSAGES)


@pytest.fixture
def run(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Callable[[], ParquetTable]
) -> Iterator[Run]:
    """Run a job with these options."""

    def archive_of(_: object, __: object, log: str, *, create: bool = False) -> ParquetTable:
        if log != MESSAGES:
            raise NoSuchResource("there is no archive of that")
        return ParquetTable.opened(ArrowEngine(), tmp_path / MESSAGES, log, create=create)

    def rows(_: object, log: str, shard: str, after: int, upto: int) -> pa.Table:
        return messages(after + 1, upto, int(shard))

    gateway.table = table
    monkeypatch.setattr(archiving, "archive_of", archive_of)
    monkeypatch.setattr(upkeep, "archive_of", archive_of)
    monkeypatch.setattr(archiving, "_rows", rows)
    monkeypatch.setattr(archiving, "FIRST_ROWS", 10)
    pipeline = Pipeline()
    service = Service(pipeline, transport=httpx.MockTransport(gateway))

    def run_job(name: str, *, dry_run: bool = False, job: Any = None, **options: Any) -> Outcome:
        found = job or job_of(name)
        context = Context(
            pipeline,
            JobRequest("test", options_of(found, options), name, dry_run),
            service=service,
            spark=object(),  # type: ignore[arg-type]
        )
        return found.run(context)

    yield run_job
    service.close()


def numbers(table: ParquetTable) -> list[tuple[int, int]]:
    rows = table.read(["shard", "sequence"]).to_pydict()
    return list(zip(rows["shard"], rows["sequence"], strict=True))


def test_every_shard_is_archived_and_the_cursor_is_told_after_the_commit(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable]
) -> None:
    gateway.head = {"0": 95, "1": 30}
    done = run("archive")
    assert (done.rows, done.detail["position"], done.detail["gaps"]) == (125, {"0": 95, "1": 30}, 0)
    assert numbers(table()) == [(0, n) for n in range(1, 96)] + [(1, n) for n in range(1, 31)]
    assert all(last <= held.get(shard, 0) for position, held in gateway.told for shard, last in position.items()), (
        "never before the rows are there"
    )
    (cursor,) = gateway.cursors.values()
    assert (cursor["position"], gateway.released) == ({"0": 95, "1": 30}, 1)
    assert cursor["name"] == f"archive-messages-{table().id[:8]}"
    assert run("archive").rows == 0


def test_commits_grow_with_what_their_rows_take_and_no_faster(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.head = {"0": 990}
    run("archive")
    assert [file.rows for file in table().files()] == [10, 40, 160, 640, 140]
    assert run("archive", rows=7).rows == 0
    gateway.head = {"0": 999}
    run("archive", rows=7)
    assert [file.rows for file in table().files()][5:] == [7, 2]
    large = table().files()[-1].octets
    monkeypatch.setattr(archiving, "COMMIT_OCTETS", large // 2)
    done = archiving._Done()
    done.add(1, 1, 1, large)
    assert done.next_rows == 1, "a row larger than a commit should be is a commit"


def test_rows_that_are_gone_are_named_or_skipped(gateway: Gateway, run: Run, table: Callable[[], ParquetTable]) -> None:
    gateway.head = {"0": 20}
    run("archive")
    gateway.head, gateway.floor = {"0": 50}, {"0": 31}
    with pytest.raises(SourceGone, match="not archived: shard 0, 20 < sequence <= 30; --skip-gone goes on behind them"):
        run("archive")
    assert (table().position(), gateway.released) == ({"0": 20}, 2)
    done = run("archive", skip_gone=True)
    assert (done.rows, done.detail["gone"]) == (20, ["shard 0, 20 < sequence <= 30"])
    assert numbers(table()) == [(0, n) for n in (*range(1, 21), *range(31, 51))]


def test_a_new_archive_begins_where_the_log_begins(gateway: Gateway, run: Run, tmp_path: Path) -> None:
    gateway.head, gateway.floor = {"0": 50}, {"0": 31}
    assert run("archive", dry_run=True).rows == 20
    assert not (tmp_path / MESSAGES).exists(), "a dry run makes none"
    assert run("archive").rows == 20


def test_an_archive_of_another_ledger_is_refused_before_anything_is_asked(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable]
) -> None:
    table().append(messages(1, 30), Token.of("0", 30))
    gateway.head = {"0": 20}
    with pytest.raises(SourceGone, match=r"ahead of the log of messages, which ends at .* another ledger"):
        run("archive")
    assert gateway.cursors == {}


def test_a_job_that_lost_its_cursor_ends_and_what_it_wrote_stays(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable]
) -> None:
    gateway.head = {"0": 20}
    gateway.fenced = True
    with pytest.raises(CursorOwned, match="ann@elsewhere"):
        run("archive")
    gateway.fenced = False
    assert run("archive").rows == 20
    assert numbers(table()) == [(0, n) for n in range(1, 21)]


def test_two_jobs_at_once_archive_each_row_once(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.head = {"0": 60}
    rows = archiving._rows

    def beside(*arguments: Any) -> Any:
        monkeypatch.setattr(archiving, "_rows", rows)
        assert table().append(messages(1, 25), Token.of("0", 25, 0)).rows == 25
        return rows(*arguments)

    monkeypatch.setattr(archiving, "_rows", beside)
    assert run("archive").rows == 35
    assert numbers(table()) == [(0, n) for n in range(1, 61)]


def test_an_append_that_is_overtaken_for_ever_is_given_up(
    gateway: Gateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.head = {"0": 60}
    monkeypatch.setattr(ParquetTable, "append", lambda *_: Appended(repeated=True))
    with pytest.raises(PipelineFault, match="10 appends of shard 0 behind 0 were overtaken, but nobody appended"):
        run("archive")
    assert gateway.released == 1


def test_a_full_disk_ends_the_job_and_the_cursor_stays_where_it_was(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.head = {"0": 60}

    def full(*_: object) -> None:
        raise DiskFull("the disk: no room")

    with monkeypatch.context() as patched:
        patched.setattr(ArrowEngine, "write", full)
        with pytest.raises(DiskFull):
            run("archive")
    (cursor,) = gateway.cursors.values()
    assert (cursor["position"], table().position(), gateway.released) == ({"0": 0, "1": 0}, {}, 1)
    assert run("archive").rows == 60


def test_one_that_goes_on_looks_again_until_it_is_told_to_end(
    gateway: Gateway, run: Run, table: Callable[[], ParquetTable]
) -> None:
    gateway.head = {"0": 5}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        gateway.head["0"] += 10
        if len(slept) == 3:
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        run("archive", job=archiving.Archive(sleep), continuous=True, every=7.0)
    assert (slept, table().position(), gateway.released) == ([7.0] * 3, {"0": 25}, 1)


# ----------------------------------------------------------------------------------------------------- upkeep


@pytest.fixture
def three_days(table: Callable[[], ParquetTable], monkeypatch: pytest.MonkeyPatch) -> ParquetTable:
    """An archive of three days, the last of which is today."""
    monkeypatch.setattr(upkeep, "today", lambda: date(2026, 11, 3))
    monkeypatch.setattr("gateway.pipeline.jobs.compact.today", lambda: date(2026, 11, 3))
    found = table()
    for upto in range(500, 2_501, 500):
        found.append(messages(upto - 499, upto), Token.of("0", upto))
    return found


def test_days_that_are_over_are_compacted(three_days: ParquetTable, run: Run) -> None:
    before = three_days.files()
    told = run("compact", dry_run=True)
    assert (told.detail["days"], told.detail["files_before"]) == (["2026-11-01", "2026-11-02"], 5)
    assert three_days.files() == before
    done = run("compact", keep_hours=0.0)
    assert (done.detail["days"], done.detail["files_before"], done.detail["files_after"], done.rows) == (
        ["2026-11-01", "2026-11-02"], 5, 2, 1_999,
    )  # fmt: skip
    assert [day.files for day in three_days.days()] == [1, 1, 2]
    assert done.detail["deleted"] == 5
    assert run("compact", day=("2026-11-03",)).detail["files_before"] == 2
    with pytest.raises(NoSuchResource):
        run("compact", log="events")


def test_old_days_go_but_none_above_the_lowest_cursor(three_days: ParquetTable, run: Run, gateway: Gateway) -> None:
    for name, log, last in (("a", MESSAGES, 2_500), ("b", MESSAGES, 1_500), ("c", "events", 3)):
        gateway.cursors[name] = {"name": name, "log": log, "position": {"0": last}, "backlog": 2_500 - last}
    told = run("retention", days=1, dry_run=True)
    assert (told.rows, told.detail["days"], told.detail["kept"]) == (
        999, {MESSAGES: ["2026-11-01"]}, {MESSAGES: {"days": ["2026-11-02"], "cursor": "b"}},
    )  # fmt: skip
    assert len(three_days.days()) == 3
    assert run("retention", days=2).rows == 999
    assert [day.day for day in three_days.days()] == ["2026-11-02", "2026-11-03"]
    gateway.cursors["b"]["position"] = {"0": 1_999}
    assert run("retention", days=1, keep_hours=0.0).rows == 1_000
    assert run("retention", days=1).rows == 0, "today stays"


def test_without_an_answer_about_the_readers_nothing_goes(
    three_days: ParquetTable, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ServiceUnreachable("nobody is there")

    monkeypatch.setattr(Service, "exchange", away)
    with pytest.raises(ServiceUnreachable):
        run("retention", days=1)
    assert len(three_days.days()) == 3


def test_the_floor_is_the_lowest_of_all_cursors() -> None:
    cursors = [{"position": {"0": 7, "1": 3}}, {"position": {"0": 9}}]
    assert retention.floor_of(cursors, {"0": 10, "1": 10, "2": 1}) == {"0": 7, "1": 0, "2": 0}
    assert retention.floor_of([], {"0": 10}) is None

"""Transfers through a gateway that runs, from the embedded broker to itself, under two versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from gateway.commands.demo import gateway_of_our_own
from gateway.config import PipelineSettings
from gateway.errors import BadFilter, Breaks, ConfigurationError, NotFound
from gateway.exits import DONE, exit_status
from gateway.pipeline.jobs import runs
from gateway.pipeline.jobs import transfer as transfers
from gateway.pipeline.jobs.base import Context, JobRequest, options_of
from gateway.pipeline.jobs.transfer import Transfer
from gateway.pipeline.settings import Pipeline
from tests.pipeline.queues import Queue

OLD, NEW = "local-0-8", "local-0-9-1"
MESSAGE = {"properties": {"type": "t", "priority": 3}, "headers": {"n": {"type": "int8", "value": 3}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gateway_of_our_own() as url:
        yield url


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).removeprefix("test_")[:40].replace("[", "-").replace("]", "")


@pytest.fixture
def old(url: str, name: str) -> Queue:
    """With forty messages."""
    queue = Queue(url, f"{name}-old", OLD)
    queue.put({**MESSAGE, "payload": str(number)} for number in range(40))
    return queue


@pytest.fixture
def new(url: str, name: str) -> Queue:
    return Queue(url, f"{name}-new", NEW)


Start = Callable[..., runs.Ended]


@pytest.fixture
def start(spark: SparkSession, url: str, tmp_path: Path, old: Queue, new: Queue, name: str) -> Start:
    """Start a run, from the one queue to the other."""

    def start(dry_run: bool = False, **options: Any) -> runs.Ended:
        pipeline = Pipeline(PipelineSettings(unavailable_timeout=2.0), url=url, storage=str(tmp_path))
        job = Transfer(sleep=lambda _: None)
        found = {"from": (f"{old.name}@{OLD}",), "to": f"amq.default@{NEW}", "routing_key": new.name, **options}
        given = options_of(job, found)
        with closing(Context(pipeline, JobRequest(name, given, "transfer", dry_run), spark=spark)) as context:
            return runs.run(job, context)

    return start


@pytest.fixture
def held(url: str, name: str) -> Callable[[], tuple[int, int]]:
    """How many cursors and taps there are that hold something for the run."""

    def held() -> tuple[int, int]:
        mine = f"transfer-{sha256(name.encode()).hexdigest()[:16]}"
        cursors = httpx.get(f"{url}/v1/log/cursors").json()["cursors"]
        taps = httpx.get(f"{url}/v1/taps").json()["taps"]
        return (
            sum(each["name"].startswith(mine) for each in cursors),
            sum(each["name"].startswith(mine) for each in taps),
        )

    return held


Held = Callable[[], tuple[int, int]]


def test_a_queue_is_moved_and_counted(start: Start, old: Queue, new: Queue, held: Held) -> None:
    outcome = start().outcome
    assert (outcome.rows, outcome.exit, outcome.detail["agree"]) == (40, DONE, True)
    assert (len(old), len(new), held()) == (0, 40, (0, 0))
    taken = new.take()
    assert sorted(int(each["payload"]) for each in taken) == list(range(40))
    assert taken[0]["properties"].items() >= MESSAGE["properties"].items()
    assert taken[0]["headers"] == MESSAGE["headers"]
    assert not any(each["resent"] for each in taken)
    assert start().repeated


def test_what_the_log_may_have_twice_is_marked(start: Start, old: Queue, new: Queue) -> None:
    old.look(3)
    assert start().outcome.exit == DONE
    assert sorted(int(each["payload"]) for each in new.take() if each["resent"]) == [0, 1, 2]


def test_a_transform_makes_others_of_them(start: Start, new: Queue, held: Held, tmp_path: Path) -> None:
    """What it leaves out must be meant; what it doubles is none of its."""
    path = tmp_path / "transform.sql"
    query = "SELECT * EXCEPT (body), encode(concat('<', decode(body, 'utf-8'), '>'), 'utf-8') AS body FROM messages"
    path.write_text(f"{query} UNION ALL {query}")
    with pytest.raises(BadFilter, match="makes 2 messages of one"):
        start(transform=str(path))
    path.write_text(f"{query} WHERE size = 1")
    with pytest.raises(BadFilter, match="leaves out 30 of 40 messages; --leave-out"):
        start(transform=str(path))
    assert (len(new), held()) == (0, (1, 1))
    path.write_text(f"{query};")
    outcome = start(transform=str(path)).outcome
    assert (outcome.detail["agree"], len(new), held()) == (True, 40, (0, 0))
    assert sorted(each["payload"] for each in new.take()) == sorted(f"<{number}>" for number in range(40))


def test_stopped_half_way_it_holds_the_source_and_goes_on(
    start: Start, old: Queue, new: Queue, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is stopped: when the taps are done, when half is published, when it lets go."""

    def stop(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert (len(old), len(new), held()) == (0, 0, (1, 1))
    monkeypatch.setattr(transfers, "SLICE_ROWS", 25)
    publish, done = transfers.publish, []

    def half(*args: Any, **more: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(publish(*args, **more))
        return done[0]

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "publish", half)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert (len(new), held()) == (done[0].rows, (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "_let_go", stop)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert (len(new), held()) == (40, (1, 1))
    outcome = start().outcome
    assert (outcome.rows, len(new), held()) == (40, 40, (0, 0))
    assert len({each["payload"] for each in new.take()}) == 40


def test_what_is_refused_keeps_the_source(start: Start, new: Queue, held: Held, url: str) -> None:
    """Until another attempt finds the queue there."""
    new.delete()
    with pytest.raises(
        Breaks, match=r"nothing was deleted from the source: 40 messages were refused \(unroutable 40\)"
    ):
        start()
    assert held() == (1, 1)
    with pytest.raises(Breaks):
        start()
    Queue(url, new.name, NEW)
    outcome = start().outcome
    assert (outcome.detail["published"], len(new), held()) == (40, 40, (0, 0))


def test_counts_that_differ_keep_the_source(
    start: Start, new: Queue, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = transfers.publish

    def one_less(*args: Any, **more: Any) -> Any:
        counts = publish(*args, **more)
        counts.published -= 1
        return counts

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "publish", one_less)
        with pytest.raises(
            Breaks, match=r"40 messages are in the log, and 39 are confirmed at local-0-9-1, amq.default"
        ):
            start()
    assert held() == (1, 1)
    assert exit_status(Breaks) == 7
    assert start(release=True).outcome.exit == DONE
    assert (len(new), held()) == (40, (0, 0))


def test_a_dry_run_tells_and_does_nothing(start: Start, old: Queue, held: Held) -> None:
    outcome = start(dry_run=True).outcome
    assert outcome.rows == 40
    assert outcome.reports[1].rows == [(old.name, OLD, 40, 0)]  # type: ignore[union-attr]
    assert (len(old), held()) == (40, (0, 0))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"from": ("nowhere",)}, ConfigurationError),
        ({"from": ()}, ConfigurationError),
        ({"from": ("a@b", "a@b")}, ConfigurationError),
        ({"from": (f"missing@{OLD}",)}, NotFound),
        ({"from": (f"q@{NEW}",), "to": NEW, "routing_key": None}, ConfigurationError),
        ({"to": f"missing@{NEW}"}, NotFound),
    ],
)
def test_what_cannot_be_touches_nothing(
    start: Start, old: Queue, held: Held, options: dict[str, Any], error: type[Any]
) -> None:
    with pytest.raises(error):
        start(**options)
    assert (len(old), held()) == (40, (0, 0))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM messages", "is no query"),
        ("SELECT * FROM parquet.`/etc`", "reads the table messages and nothing else"),
        ("SELECT sequence FROM messages", "must have the column shard as int"),
        ("SELECT * EXCEPT (size), rand() AS size FROM messages", "says something else each time"),
    ],
)
def test_a_transform_that_may_not_be(
    start: Start, old: Queue, held: Held, tmp_path: Path, query: str, said: str
) -> None:
    path = tmp_path / "transform.sql"
    path.write_text(query)
    with pytest.raises(BadFilter, match=said):
        start(transform=str(path))
    assert (len(old), held()) == (40, (0, 0))

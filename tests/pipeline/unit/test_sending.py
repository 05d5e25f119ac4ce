"""Where messages go, in which portions, and how often: what replay and transfer work out before Spark is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigurationError
from gateway.pipeline.jobs import transfer
from gateway.pipeline.jobs.replay import SLICE_ROWS, SLICE_SECONDS, Replay, Slice, sliced
from gateway.pipeline.jobs.sending import ID_MAX, Target, check_id, rate_of, sections
from gateway.pipeline.jobs.transfer import QUEUES_MAX, Source, Transfer, sources_of
from gateway.pipeline.reports import Numbers, Table
from gateway.pipeline.source.messages import Counts

START = datetime(2026, 11, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "more", "target", "words"),
    [
        ("modern", {}, Target("modern"), "modern, each to its exchange"),
        ("orders@modern", {}, Target("modern", "orders"), "modern, orders"),
        ("a@b@modern", {"routing_key": ""}, Target("modern", "a@b", ""), "modern, a@b, routing key "),
        ("amq.default@modern", {"routing_key": "q"}, Target("modern", "", "q"), "modern, amq.default, routing key q"),
        ("modern", {"queues": True}, Target("modern", queues=True), "modern, each to its queue"),
    ],
)
def test_a_target(text: str, more: dict[str, Any], target: Target, words: str) -> None:
    assert Target.parse(text, **more) == target
    assert str(target) == words


@pytest.mark.parametrize(
    ("text", "more"),
    [("", {}), ("@modern", {}), ("x@", {}), ("x@b", {"queues": True}), ("b", {"queues": True, "routing_key": "k"})],
)
def test_what_is_no_target(text: str, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Target.parse(text, **more)


def test_an_id_must_fit_into_keys() -> None:
    check_id("x" * ID_MAX)
    for text in ("", "x" * (ID_MAX + 1), "a\nb", "\u00e4"):
        with pytest.raises(ConfigurationError):
            check_id(text)


def minutes(*counts: int) -> list[tuple[datetime, int]]:
    """That many in each minute; none in those of 0."""
    return [(START + number * MINUTE, count) for number, count in enumerate(counts) if count]


def test_slices_hold_what_is_published_in_their_time() -> None:
    rate = 10.0
    most = int(rate * SLICE_SECONDS)
    found = list(sliced(minutes(most // 2, most // 2, 1, 0, 0, 2 * most, 1), rate))
    assert [each.rows for each in found] == [most, 1, 2 * most, 1], "a minute is not divided"
    assert found[0] == Slice(START, START + 2 * MINUTE, most)
    assert found[1].until <= found[2].since
    assert list(sliced([], rate)) == []
    assert [each.rows for each in sliced(minutes(SLICE_ROWS, 1), 0.0)] == [SLICE_ROWS, 1]
    assert [each.rows for each in sliced(minutes(1, 1), 0.001)] == [1, 1]


def test_a_rate_is_measured_without_the_time_between_slices() -> None:
    parts = [Counts(rows=100, began=10.0, ended=20.0), Counts(rows=50, began=100.0, ended=105.0)]
    assert rate_of(parts) == 10.0
    assert rate_of([]) is None
    assert rate_of([Counts()]) is None


def test_what_people_see_of_it() -> None:
    counts = Counts(rows=10, published=6, repeated=1, refused=3, reasons={"a": 1, "b": 2}, named=[("k", "why")])
    numbers, reasons, named = sections(counts, 100.0, 90.0, "Title")
    assert isinstance(numbers, Numbers) and isinstance(reasons, Table) and isinstance(named, Table)  # noqa: PT018
    shown = {each.label: each for each in numbers.numbers}
    assert (shown["refused"].value, shown["refused"].bad) == (3, True)
    assert shown["messages a second"].note == "-10.0% of the 100 that were set: the gateway or the broker took no more"
    assert reasons.rows == [("b", 2), ("a", 1)]
    (calm,) = sections(Counts(rows=1, published=1), 100.0, 101.0, "Title")
    assert isinstance(calm, Numbers)
    assert {each.label: each for each in calm.numbers}["messages a second"].note == "+1.0% of the 100 that were set"


def test_sources(tmp_path: Path) -> None:
    path = tmp_path / "queues"
    path.write_text("b@legacy\n\n c.d@other \n")
    assert sources_of(("a@b@legacy",), str(path)) == [
        Source("legacy", "a@b"), Source("legacy", "b"), Source("other", "c.d"),
    ]  # fmt: skip
    assert Source("legacy", "a/b").path == "/v1/brokers/legacy/queues/a%2Fb"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "no queue is named"),
        (("a",), "is not QUEUE@BROKER"),
        (("@b",), "is not QUEUE@BROKER"),
        (("a@b", "a@b"), "named twice"),
        (tuple(f"q{number}@b" for number in range(QUEUES_MAX + 1)), "1,001 queues are named"),
    ],
)
def test_what_are_no_sources(given: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sources_of(given, None)


def test_the_log_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that has come to be since the run began is read from its beginning."""
    monkeypatch.setattr(transfer, "SLICE_ROWS", 10)
    found = list(transfer._ranges({"0": 5, "10": 7}, {"0": 25, "2": 3, "10": 7}))
    assert found == [("0", 5, 15), ("0", 15, 25), ("2", 0, 3)]


@pytest.mark.parametrize("job", [Replay(), Transfer()], ids=lambda job: job.name)
def test_what_only_says_how_fast_makes_no_other_run(job: Any) -> None:
    names = {option.name for option in job.options if not option.identity}
    assert {"rate", "writers"} <= names
    assert not names & {"where", "to", "from", "transform", "ordered", "since", "until"}

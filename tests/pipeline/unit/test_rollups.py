"""The manifest of rollups: replaced as a whole, one writer at a time, and refused where it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import ArchiveDamaged, ArchiveTooNew, ConfigurationError, StateError
from gateway.pipeline.jobs.reconcile import _route, read_estate
from gateway.pipeline.jobs.rollup import beyond, sql, token_of
from gateway.pipeline.jobs.rollups import MANIFEST, Hour, Manifest, Rollups


def test_nothing_counts_where_nothing_was_written(tmp_path: Path) -> None:
    assert Rollups(tmp_path / "nowhere").manifest() == Manifest()


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rollups = Rollups(tmp_path)
    first = rollups.swap(Manifest(), "a", {7: Hour("a", 3)}, position={"0": 12}, counted_at=8)
    assert rollups.manifest() == first == Manifest({7: Hour("a", 3)}, {"0": 12}, 8, frozenset())
    second = rollups.swap(first, "b", {7: Hour("b", 5, 2), 8: Hour("b", 1)}, position={"0": 20, "3": 1})
    assert rollups.manifest() == second
    assert (second.counted_at, second.before) == (8, {"a"})


def test_what_nobody_reads_any_more_goes_and_what_a_reader_may_read_stays(tmp_path: Path) -> None:
    rollups = Rollups(tmp_path)
    for name in ("a", "b", "c", "killed"):
        (tmp_path / f"run={name}" / "hour=7").mkdir(parents=True)
    first = rollups.swap(Manifest(), "a", {7: Hour("a", 3)})
    assert {path.name for path in tmp_path.glob("run=*")} == {"run=a"}
    (tmp_path / "run=b").mkdir()
    second = rollups.swap(first, "b", {7: Hour("b", 3)})
    assert {path.name for path in tmp_path.glob("run=*")} == {"run=a", "run=b"}
    (tmp_path / "run=c").mkdir()
    rollups.swap(second, "c", {7: Hour("c", 3)})
    assert {path.name for path in tmp_path.glob("run=*")} == {"run=b", "run=c"}


def test_two_do_not_write_at_once(tmp_path: Path) -> None:
    with Rollups(tmp_path).locked(), pytest.raises(StateError, match="another run writes"), Rollups(tmp_path).locked():
        pass
    with Rollups(tmp_path).locked():
        pass


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", ArchiveDamaged),
        ("[]", ArchiveDamaged),
        ('{"version": 1, "hours": {"7": []}}', ArchiveDamaged),
        ('{"version": 2}', ArchiveTooNew),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(error, match=str(tmp_path)):
        Rollups(tmp_path).manifest()


def test_positions_as_conditions() -> None:
    assert beyond({}) == "true"
    assert beyond({"3": 5, "0": 12}) == (
        "CASE shard WHEN 0 THEN sequence > 12 WHEN 3 THEN sequence > 5 ELSE true END"
    )  # fmt: skip


def test_every_run_has_a_folder_of_its_own() -> None:
    assert token_of("rollup-20261103T040506-1f0a9c") == "rollup-20261103T040506-1f0a9c"
    assert len({token_of("a/b"), token_of("a b"), token_of("a-b")}) == 3
    assert "/" not in token_of("../../etc/passwd")


def test_the_queries_are_there() -> None:
    for name in ("rollup_hourly", "rollup_merge", "rates", "percentiles_range"):
        assert "FROM" in sql(name)


def test_an_estate_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "estate.json"
    file.write_text(json.dumps({
        "queues": {"bridge:b": "old/in", "bridge:m": "old/kept"}, "held": {"old/in": 3}, "mirrors": ["bridge:m"],
    }))  # fmt: skip
    estate = read_estate(str(file), {"old/orders": "old/in"})
    assert estate.watched == {"old/in"}
    assert estate.held == {"old/in": 3}
    assert estate.routes == {"old/orders": "old/in"}
    for text in ("", "[]", '{"queues": 3}', '{"queues": {}, "held": {"a": "b"}}'):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match="estate"):
            read_estate(str(file), {})


def test_a_binding_on_the_command_line() -> None:
    assert _route("shop/events/a=b=shop/q") == ("shop/events/a=b", "shop/q")
    for text in ("", "shop=q", "shop/events", "shop/events=q"):
        with pytest.raises(ConfigurationError, match="BROKER/EXCHANGE"):
            _route(text)

"""The bookkeeping of the long run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.simulation.long_run import BLOCK, RESULTS, LongRun, Stretch, joined, load, missing


def stretch(first: int, worlds: int, code: str = "a", failed: tuple[int, ...] = ()) -> Stretch:
    return Stretch(code, first, worlds, 1.0, list(failed))


def test_neighbors_of_the_same_code_are_one() -> None:
    found = joined([stretch(11, 5, failed=(12,)), stretch(1, 10, failed=(3,)), stretch(16, 4, "b"), stretch(30, 1)])
    assert [(each.first, each.end, each.failed) for each in found] == [(1, 16, [3, 12]), (16, 20, []), (30, 31, [])]
    assert found[0].cpu == 2.0


def test_what_is_missing() -> None:
    assert list(missing([], 2 * BLOCK + 1)) == [(1, BLOCK), (BLOCK + 1, BLOCK), (2 * BLOCK + 1, 1)]
    assert list(missing([stretch(1, 10), stretch(21, 10, "b")], 40)) == [(11, 10), (31, 10)]
    assert list(missing([stretch(1, 100)], 50)) == []
    assert list(missing([stretch(40, 100)], 50)) == [(1, 39)]


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    for block in ((1, 2), (3, 1)):
        LongRun(file, 600.0).run(block)
    (found,) = load(file)
    assert (found.first, found.worlds, found.failed) == (1, 3, [])
    assert found.cpu > 0
    LongRun(file, -1.0).run((4, 1))  # the time is up
    assert load(file) == [found]


def test_the_kept_run_has_each_world_once() -> None:
    kept = [Stretch(**each) for each in json.loads(RESULTS.read_text())]
    assert kept == joined(kept)
    assert all(one.end <= other.first for one, other in pairwise(kept))

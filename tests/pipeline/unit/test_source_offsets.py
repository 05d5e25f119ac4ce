"""Positions, admission and pieces."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from gateway.errors import ConfigurationError, ServiceRefused, SourceGone
from gateway.pipeline.source import offsets
from gateway.pipeline.source.offsets import Head, Range, Shard

HEAD = Head("messages", (Shard(0, 11, 100), Shard(3, 1, 50), Shard(7, 1, 0)), True)


def test_where_a_log_begins_and_ends() -> None:
    assert HEAD.start == {"0": 10}
    assert HEAD.end == {"0": 100, "3": 50}


def test_there_is_one_way_to_write_a_position() -> None:
    """Spark compares offsets as text: the same position in another order would be another offset."""
    assert json.dumps(offsets.canonical({"10": 1, "9": 2, "0": 0})) == '{"9": 2, "10": 1}'


def test_the_extent_of_a_log_is_read() -> None:
    document = {"log": "events", "shards": [{"shard": 3, "floor": 2, "head": 9}, {"shard": 0, "floor": 1, "head": 0}]}
    assert offsets.head_of(document, "") == Head("events", (Shard(0, 1, 0), Shard(3, 2, 9)), False)


@pytest.mark.parametrize("document", [None, [], {}, {"log": "events"}, {"log": "events", "shards": [{"shard": "x"}]}])
def test_what_is_no_extent_of_a_log_is_refused(document: object) -> None:
    with pytest.raises(ServiceRefused, match="http://there answered with something that is not the extent of a log"):
        offsets.head_of(document, "http://there")


def test_a_position_is_read() -> None:
    assert offsets.position_of('{"3": 7, "0": 0}', "start") == {"3": 7}


@pytest.mark.parametrize(
    "text", ["", "[]", "latest ", '{"a": 1}', '{"0": -1}', '{"0": true}', '{"0": "1"}', '{"0": 1.5}']
)
def test_what_is_no_position_is_refused_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"start is .* a position names the last sequence number"):
        offsets.position_of(text, "start")


# ------------------------------------------------------------------------------------------------- admission


def test_everything_is_admitted_within_the_limit() -> None:
    assert offsets.admit({}, {"0": 10, "3": 5}, 15) == {"0": 10, "3": 5}


def test_a_busy_shard_does_not_keep_the_others_out() -> None:
    assert offsets.admit({}, {"0": 1_000, "3": 5, "4": 100}, 65) == {"0": 30, "3": 5, "4": 30}


def test_what_was_read_is_not_read_again_and_shards_may_be_new() -> None:
    assert offsets.admit({"0": 10, "5": 3}, {"0": 12, "4": 1}, 100) == {"0": 12, "4": 1, "5": 3}


def test_fewer_rows_than_shards_go_to_the_longest_backlogs() -> None:
    assert offsets.admit({}, {"0": 10, "1": 30, "2": 20}, 2) == {"1": 1, "2": 1}
    assert offsets.admit({"0": 5}, {"0": 10}, 0) == {"0": 5}


def test_admission_ends_takes_no_more_than_it_may_and_never_goes_back() -> None:
    """Whatever the shards and the limit: each step is within the limit, and the end is reached in time."""
    chance = random.Random(7)
    for _ in range(300):
        end = {str(shard): chance.randrange(0, 60) for shard in range(chance.randrange(1, 6))}
        start = {shard: chance.randrange(0, last + 1) for shard, last in end.items() if chance.random() < 0.5}
        limit, reached, steps = chance.randrange(1, 20), start, 0
        left = offsets.backlog(start, end)
        while offsets.backlog(reached, end):
            following = offsets.admit(reached, end, limit)
            taken = offsets.backlog(reached, following)
            assert 0 < taken <= limit
            assert all(following.get(shard, 0) >= last for shard, last in reached.items())
            assert taken == min(limit, left)
            left -= taken
            reached = following
            steps += 1
        assert offsets.canonical(reached) == offsets.canonical(end)


def test_pieces_cover_a_range_once_and_are_of_about_one_length() -> None:
    for length, rows in ((1, 1), (10, 3), (100, 7), (1_000_001, 1_000_000), (12, 100)):
        found = offsets.ranges({"3": 5}, {"3": 5 + length}, rows)
        assert found[0].after == 5
        assert found[-1].upto == 5 + length
        assert all(one.upto == other.after for one, other in pairwise(found))
        assert {each.length for each in found} <= {length // len(found), length // len(found) + 1}
        assert all(each.length <= rows and each.shard == 3 for each in found)


def test_nothing_new_is_nothing_to_read() -> None:
    assert offsets.ranges({"0": 10}, {"0": 10, "1": 0}, 5) == []


# ------------------------------------------------------------------------------------------------- data loss


def test_a_start_that_is_there_stands() -> None:
    assert offsets.check({"0": 10, "3": 50}, HEAD, fail=True) == ({"0": 10, "3": 50}, [])


def test_rows_that_are_gone_are_named() -> None:
    with pytest.raises(SourceGone, match=r"shard 0, 4 < sequence <= 10\. Retention overtook .* failOnDataLoss=false"):
        offsets.check({"0": 4}, HEAD, fail=True)


def test_rows_that_are_gone_are_passed_over_if_they_may_be() -> None:
    assert offsets.check({"0": 4, "3": 2}, HEAD, fail=False) == ({"0": 10, "3": 2}, [Range(0, 4, 10)])


@pytest.mark.parametrize("position", [{"0": 101}, {"7": 1}, {"99": 1}])
def test_a_position_ahead_of_the_log_is_of_another_one(position: dict[str, int]) -> None:
    with pytest.raises(SourceGone, match=r"is ahead of the log of messages, .* belongs to another ledger"):
        offsets.check(position, HEAD, fail=False)


def test_many_ranges_are_named_by_the_first_ones() -> None:
    text = offsets.described([Range(shard, 0, 5) for shard in range(9)])
    assert text.count("sequence") == 5
    assert text.endswith("; and 4 more")

"""Samples, rows and rounds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.benchmarks.rows import ClientFailed, Row, Run, Sample, alternate, by_work, quotient


def row(client: str, *cpu: float, work: str = "work") -> Row:
    return Row("section", work, client, [Sample(100, 2.0, each) for each in cpu])


def test_a_sample_knows_rate_and_price() -> None:
    sample = Sample(1_000, seconds=0.5, cpu=0.02)
    assert sample.rate == 2_000
    assert sample.microseconds == pytest.approx(20.0)


def test_what_was_not_measured_is_none() -> None:
    sample = Sample(memory=5.0)
    assert sample.rate is None
    assert sample.microseconds is None
    assert sample.to_json() == {"number": 0, "seconds": 0.0, "cpu": 0.0, "memory": 5.0}


def test_a_row_is_the_median_of_its_rounds() -> None:
    assert row("gateway", 0.3, 0.1, 0.2).middle("microseconds") == pytest.approx(2_000)
    assert row("gateway").middle("microseconds") is None
    assert row("gateway", 0.1).middle("p50") is None


def test_rows_survive_json() -> None:
    found = Row("section", "work", "gateway", [Sample(3, 0.5, 0.25, p50=0.1, p99=0.2, memory=7.0)], error="why")
    assert Row.from_json(found.to_json()) == found


def test_ratios_are_taken_round_by_round() -> None:
    # The second round was disturbed, for both: the ratio of the medians would be 3.
    slow, quick = row("slow", 0.2, 0.9, 0.3), row("quick", 0.1, 0.45, 0.1)
    assert quotient(slow, quick, "microseconds") == pytest.approx(2.0)
    assert quotient(slow, row("none"), "microseconds") is None


def test_clients_take_turns_and_every_second_round_goes_back() -> None:
    turns: list[str] = []

    def client(name: str) -> Run:
        def run() -> Mapping[str, Sample]:
            turns.append(name)
            return {"publish": Sample(1, 1.0), "consume": Sample(1, 1.0)}

        return run

    rows = alternate("link", [("one", client("one")), ("two", client("two"))], 3)
    assert turns == ["one", "two", "two", "one", "one", "two"]
    assert [(each.work, each.client, len(each.samples)) for each in rows] == [
        ("publish", "one", 3),
        ("publish", "two", 3),
        ("consume", "one", 3),
        ("consume", "two", 3),
    ]


def test_a_client_that_fails_is_out_and_the_others_go_on() -> None:
    tries: list[int] = []

    def fails() -> Mapping[str, Sample]:
        tries.append(1)
        raise ClientFailed("it hung up")

    rows = alternate("link", [("ours", lambda: {"publish": Sample(1, 1.0)}), ("theirs", fails)], 3)
    assert [(each.client, each.error, len(each.samples)) for each in rows] == [
        ("ours", "", 3),
        ("theirs", "it hung up", 0),
    ]
    assert len(tries) == 1


def test_rows_of_a_work_stand_together() -> None:
    rows = [row("b", 1, work="x"), row("a", 1, work="y"), row("a", 1, work="x")]
    assert [(each.work, each.client) for each in by_work(rows, ["a", "b"])] == [("y", "a"), ("x", "a"), ("x", "b")]

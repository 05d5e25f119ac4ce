"""The benchmarks work; how fast anything is, is no test."""

from __future__ import annotations

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import codec, measure


@pytest.mark.parametrize("client", ["gateway", "pika"])
def test_links(client: str) -> None:
    with benchmarks.embedded() as url:
        rows = [row for row in benchmarks.links("embedded", url, 200) if row.client == client]
    assert [row.work for row in rows] == ["embedded: publish, confirmed", "embedded: consume, acknowledged"]
    assert {row.number for row in rows} == {200}


def test_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "NUMBER", 10)
    rows = list(codec.codec())
    assert [row.client for row in rows] == ["gateway", "pamqp"] * 3


def test_the_table_compares_with_ours() -> None:
    rows = [
        measure.Measured("work", "gateway", 1_000, seconds=0.5, cpu=0.1),
        measure.Measured("work", "other", 1_000, seconds=0.5, cpu=0.3),
    ]
    ours, other = measure.table(rows).splitlines()[1:]
    assert ours.split() == ["work", "gateway", "2,000", "100.00", "1.00"]
    assert other.split() == ["work", "other", "2,000", "300.00", "3.00"]

"""A range, read to its end over HTTP: whole, or an error that says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from gateway.errors import ServiceRefused, ServiceUnreachable, SourceGone
from gateway.exits import exit_status
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source.offsets import Range
from gateway.pipeline.source.options import ReadOptions, parse
from gateway.pipeline.source.ranges import read_range
from gateway.pipeline.source.retry import Retry
from gateway.pipeline.source.transports import HttpRows
from tests.pipeline.fake import ARROW, NDJSON, FakeGateway, batch_of
from tests.pipeline.unit.conftest import Time

WHERE = Range(0, 100, 900)
Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["arrow", "ndjson"])
def read(request: pytest.FixtureRequest, gateway: FakeGateway, clock: Time) -> Read:
    """``read(columns, where)``: the rows of a range, as Arrow and as NDJSON."""

    def read(
        columns: tuple[str, ...] = ("sequence", "body"), where: Range = WHERE, fail: bool = True, **options: str
    ) -> list[dict[str, Any]]:
        given = parse(ReadOptions, {"url": gateway.url, "log": "messages", **options})
        transport = HttpRows(given, arrow=request.param == "arrow")
        retry = Retry(30, clock, clock.sleep)
        try:
            found = read_range(transport, "messages", where, columns, given.filters, retry, fail=fail)
            return [row for batch in found for row in batch.to_pylist()]
        finally:
            transport.close()

    return read


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


def test_a_range_comes_whole_and_in_order(read: Read, gateway: FakeGateway, request: pytest.FixtureRequest) -> None:
    assert read() == [{"sequence": number, "body": f"body 0 {number}".encode()} for number in range(101, 901)]
    assert gateway.queries == [
        {"log": "messages", "shard": "0", "after": "100", "upto": "900", "columns": "sequence,body"}
    ]
    assert gateway.headers[0]["accept"] == (ARROW if "arrow" in request.node.name else NDJSON)


def test_every_column_of_both_logs_comes_as_it_is(gateway: FakeGateway, clock: Time) -> None:
    """NDJSON says the same as Arrow, in every column and to the microsecond."""
    for log, columns in COLUMNS.items():
        names = [column.name for column in columns]
        for arrow in (True, False):
            transport = HttpRows(parse(ReadOptions, {"url": gateway.url, "log": log}), arrow=arrow)
            found = read_range(transport, log, Range(0, 5, 50), names, {}, Retry(0), fail=True)
            rows = pa.Table.from_batches(list(found))
            transport.close()
            assert rows.equals(pa.Table.from_batches([batch_of(log, 0, list(range(6, 51)), names)]))


def test_an_answer_that_is_cut_off_is_gone_on_with_and_nothing_comes_twice(
    read: Read, gateway: FakeGateway, clock: Time
) -> None:
    gateway.logs["messages"][0].head = 10_000
    for cut in (0, 10, 70_000, 90_000):
        gateway.fail("/v1/log", 1, cut=cut)
    assert numbers(read(("sequence",), where=Range(0, 5, 9_005))) == list(range(6, 9_006))
    asked = [int(query["after"]) for query in gateway.queries]
    assert asked[0] == 5
    assert len(asked) >= 4
    assert asked == sorted(asked)
    assert asked[-1] > 5, "it began where it had been cut off"


def test_a_gateway_that_goes_away_in_the_middle_is_waited_for(read: Read, gateway: FakeGateway, clock: Time) -> None:
    gateway.fail("/v1/log", 1, cut=2_000)
    gateway.fail("/v1/log", 4, status=503)
    assert numbers(read()) == list(range(101, 901))
    assert len(clock.slept) == 5


def test_a_gateway_that_stays_away_is_an_error_in_the_end(read: Read, gateway: FakeGateway, clock: Time) -> None:
    gateway.fail("/v1/log", 1_000, cut=0)
    with pytest.raises(ServiceUnreachable, match=rf"{gateway.url} .* for 30 s, over \d+ attempts"):
        read()
    assert clock.now == 1_030
    assert exit_status(ServiceUnreachable) == 5


def test_fewer_rows_than_the_range_has_are_an_error_with_range_and_counts(read: Read, gateway: FakeGateway) -> None:
    gateway.fail("/v1/log", 1, fewer=3)
    with pytest.raises(SourceGone, match=r"shard 0, 897 < sequence <= 900 has 3 rows, and 0 came: the log is damaged"):
        read()
    assert exit_status(SourceGone) == 9


def test_a_row_that_is_missing_in_the_middle_is_an_error_even_if_the_answer_breaks_off(
    read: Read, gateway: FakeGateway
) -> None:
    """A gateway that finds it out at the end hangs up: going on behind the last row would lose the hole."""
    gateway.logs["messages"][0].missing = {500}
    gateway.fail("/v1/log", 1, cut=1 << 20)
    with pytest.raises(SourceGone, match=r"shard 0, 100 < sequence <= 900 has 800 rows, and 799 came"):
        read()


def test_a_count_that_is_not_that_of_the_range_is_an_error(read: Read, gateway: FakeGateway) -> None:
    gateway.fail("/v1/log", 1, told=5)
    with pytest.raises(SourceGone, match="shard 0, 100 < sequence <= 900 has 800 rows, and the gateway knows of 805"):
        read()


def test_rows_of_another_range_are_refused(read: Read, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that answers from its cache, say."""
    whole = gateway.range

    def other(query: dict[str, str], accept: str) -> Any:
        log, asked = whole(query, accept)
        return log, {**asked, "after": asked["after"] + 50, "upto": asked["upto"] + 50}

    monkeypatch.setattr(gateway, "range", other)
    with pytest.raises(ServiceRefused, match="rows 151 to 950, which are in no order or not of shard 0"):
        read()


def test_what_is_no_answer_of_a_gateway_is_refused(read: Read, gateway: FakeGateway) -> None:
    gateway.fail("/v1/log", 1, octets=b"<html>Please log in</html>")
    with pytest.raises(ServiceRefused, match=r"answered with text/html and Log-Range-Rows missing.*is it a gateway"):
        read()


def test_a_log_that_ends_before_the_range_is_refused(read: Read, gateway: FakeGateway) -> None:
    with pytest.raises(ServiceRefused, match=r"answered 409: shard 0 ends at 1000 \[log_range_ahead\]"):
        read(where=Range(0, 100, 1_001))


# ---------------------------------------------------------------------------------------------------- filters


def test_filters_go_to_the_gateway(read: Read, gateway: FakeGateway) -> None:
    assert numbers(read(tap="tap-1", broker="broker-0,broker-2")) == [
        number for number in range(101, 901) if number % 2 and number % 3 != 1
    ]
    assert gateway.queries[0]["tap"] == "tap-1"


def test_a_filtered_answer_that_is_cut_off_is_gone_on_with(read: Read, gateway: FakeGateway) -> None:
    gateway.logs["messages"][0].head = 10_000
    gateway.fail("/v1/log", 1, cut=34_000)
    assert numbers(read(("sequence",), where=Range(0, 0, 10_000), tap="tap-1")) == list(range(1, 10_001, 2))
    assert len(gateway.queries) == 2


# -------------------------------------------------------------------------------------------------- data loss


def test_a_range_whose_beginning_is_gone_is_an_error_that_names_it(read: Read, gateway: FakeGateway) -> None:
    gateway.logs["messages"][0].floor = 151
    with pytest.raises(
        SourceGone, match=r"are gone that were not read: shard 0, 100 < sequence <= 150 .*failOnDataLoss"
    ):
        read()


def test_or_it_is_passed_over_and_said_so(read: Read, gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    gateway.logs["messages"][0].floor = 151
    assert numbers(read(fail=False)) == list(range(151, 901))
    (said,) = caplog.records
    assert (said.message, said.gateway_fields) == (  # type: ignore[attr-defined]
        "pipeline.rows_gone", {"log": "messages", "shard": 0, "first": 101, "last": 150, "rows": 50}
    )  # fmt: skip


def test_a_range_that_is_gone_altogether_is_passed_over(read: Read, gateway: FakeGateway) -> None:
    gateway.logs["messages"][0].floor = 950
    assert read(fail=False) == []


def retention_strikes(gateway: FakeGateway, floor: int) -> Callable[[], None]:
    """Rows below are gone by the time that the rows of the answer are read."""

    def strike() -> None:
        log = gateway.logs["messages"][0]
        log.missing = set(range(1, floor))
        threshold = log.numbers

        def numbers(after: int, upto: int) -> list[int]:
            log.floor = floor
            return threshold(after, upto)

        log.numbers = numbers  # type: ignore[method-assign]

    return strike


def test_retention_that_strikes_while_a_range_is_read_is_told_apart_from_damage(
    read: Read, gateway: FakeGateway
) -> None:
    gateway.fail("/v1/log", 1, run=retention_strikes(gateway, 301))
    with pytest.raises(SourceGone, match=r"has 800 rows, and 600 came: retention took some of .* sequence <= 300"):
        read()


def test_or_its_victims_are_passed_over(read: Read, gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    gateway.fail("/v1/log", 1, run=retention_strikes(gateway, 301))
    assert numbers(read(fail=False)) == list(range(301, 901))
    assert caplog.records[0].gateway_fields["last"] == 300  # type: ignore[attr-defined]


def test_a_gateway_that_contradicts_itself_is_not_asked_for_ever(read: Read, gateway: FakeGateway) -> None:
    gateway.fail("/v1/log", 100, status=410)
    with pytest.raises(SourceGone, match="says that shard 0, 100 < sequence <= 900 is gone"):
        read(fail=False)

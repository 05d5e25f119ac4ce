"""The readers, asked as Spark asks them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructType, _parse_datatype_json_value

from gateway.errors import ConfigurationError, CursorOwned, ServiceRefused, ServiceUnreachable, SourceGone
from gateway.logs import Log, columns
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source.datasource import GatewayDataSource
from gateway.pipeline.source.offsets import Range
from gateway.pipeline.source.reader import (
    FilteredLogReader,
    LogPartition,
    LogReader,
    LogStreamReader,
    bounds_of,
    pushed,
)
from tests.pipeline.fake import FakeGateway

SCHEMA = StructType().add("sequence", LongType())
ALL = ReadAllAvailable()
Stream = Callable[..., LogStreamReader]


def source(gateway: FakeGateway, **options: str) -> GatewayDataSource:
    return GatewayDataSource({"url": gateway.url, "log": "messages", **options})


def batch(gateway: FakeGateway, schema: StructType = SCHEMA, **options: str) -> LogReader:
    reader = source(gateway, **options).reader(schema)
    assert isinstance(reader, LogReader)
    return reader


@pytest.fixture
def stream(gateway: FakeGateway) -> Iterator[Stream]:
    """``stream(cursor="c")``: a reader, stopped after the test."""
    with ExitStack() as stack:

        def make(**options: str) -> LogStreamReader:
            reader = source(gateway, poll="0.01", **options).streamReader(SCHEMA)
            assert isinstance(reader, LogStreamReader)
            stack.callback(reader.stop)
            return reader

        yield make


def where(partitions: Any) -> list[Range]:
    assert all(isinstance(each, LogPartition) for each in partitions)
    return [each.where for each in partitions]


def sequences(reader: LogReader | LogStreamReader, partitions: Any) -> list[int]:
    """What the tasks read, each by a reader of its own, as Spark sends it to them."""
    found = []
    for partition in partitions:
        theirs, its = pickle.loads(pickle.dumps((reader, partition)))
        found += [number for each in theirs.read(its) for number in each.column("sequence").to_pylist()]
    return found


# ------------------------------------------------------------------------------------------------------ batch


def test_the_schema_is_that_of_the_log(gateway: FakeGateway) -> None:
    for log in COLUMNS:
        text = source(gateway, log=log).schema()
        assert [part.split() for part in text.split(", ")] == [[each.name, each.type] for each in COLUMNS[log]]
        assert [field.name for field in columns.FIELDS[Log(log)]] == [each.name for each in COLUMNS[log]]


def test_all_of_it_is_read_in_pieces_and_once(gateway: FakeGateway) -> None:
    reader = batch(gateway, rows_max="300")
    partitions = reader.partitions()
    assert isinstance(partitions, list), "Spark takes nothing else"
    assert where(partitions) == [
        Range(0, 0, 250), Range(0, 250, 500), Range(0, 500, 750), Range(0, 750, 1000), Range(3, 0, 100)
    ]  # fmt: skip
    assert sequences(reader, partitions) == [*range(1, 1_001), *range(1, 101)]


def test_only_the_columns_of_the_schema_come_over_the_wire(gateway: FakeGateway) -> None:
    schema = StructType().add("body", _parse_datatype_json_value("binary")).add("shard", "integer")
    reader = batch(gateway, schema, end='{"3": 2}')
    (found,) = reader.read(reader.partitions()[0])
    assert found.schema.names == ["body", "shard"]
    assert found.to_pylist() == [{"body": b"body 3 1", "shard": 3}, {"body": b"body 3 2", "shard": 3}]
    assert gateway.queries[-1]["columns"] == "body,shard,sequence", "the number is asked for to count"


def test_from_one_position_to_another(gateway: FakeGateway) -> None:
    reader = batch(gateway, start='{"0": 990}', end='{"0": 995, "3": 3}')
    assert sequences(reader, reader.partitions()) == [991, 992, 993, 994, 995, 1, 2, 3]
    assert where(batch(gateway, start="latest").partitions()) == []
    assert where(batch(gateway, end='{"0": 5000}').partitions())[-1].upto == 1_000, "there is no more"


def test_an_empty_log_is_nothing_to_read(gateway: FakeGateway) -> None:
    """Spark makes a partition of its own where there is none."""
    gateway.logs["messages"].clear()
    reader = batch(gateway)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_rows_come_as_ndjson_where_the_gateway_has_no_arrow(gateway: FakeGateway) -> None:
    gateway.arrow = False
    reader = batch(gateway)
    assert len(sequences(reader, reader.partitions())) == 1_100
    assert all(each.get("accept") != "application/vnd.apache.arrow.stream" for each in gateway.headers)
    with pytest.raises(ConfigurationError, match=r"format is arrow, and .* sends none: install .*\[arrow\]"):
        batch(gateway, format="arrow").partitions()
    gateway.arrow = True
    reader = batch(gateway, format="ndjson")
    assert len(sequences(reader, reader.partitions())) == 1_100


def test_rows_that_are_gone_fail_the_plan_or_are_passed_over(gateway: FakeGateway) -> None:
    gateway.logs["messages"][0].floor = 101
    with pytest.raises(SourceGone, match="shard 0, 50 < sequence <= 100"):
        batch(gateway, start='{"0": 50}').partitions()
    passed = batch(gateway, start='{"0": 50}', failOnDataLoss="false")
    assert where(passed.partitions())[0] == Range(0, 100, 1_000)
    assert where(batch(gateway).partitions())[0] == Range(0, 100, 1_000), "earliest is what there is"


def test_a_reader_that_stops_early_hangs_up(gateway: FakeGateway) -> None:
    """A query with a limit."""
    gateway.add("messages", 0, 20_000)
    reader = batch(gateway)
    rows = reader.read(reader.partitions()[0])
    next(rows)
    rows.close()  # type: ignore[attr-defined]


def test_neither_a_plan_nor_a_task_holds_the_key(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.key = "hush-hush"
    file = tmp_path / "key"
    file.write_text("hush-hush")
    reader = batch(gateway, api_key_file=str(file))
    partitions = reader.partitions()
    assert b"hush" not in pickle.dumps((reader, partitions))
    assert "hush" not in f"{partitions} {reader.options}"
    assert len(sequences(reader, partitions)) == 1_100


def test_an_overwriting_table_or_an_unknown_column_is_refused_while_planning(gateway: FakeGateway) -> None:
    with pytest.raises(ConfigurationError, match="has no column 'colour'"):
        batch(gateway, StructType().add("colour", "string"))


# ---------------------------------------------------------------------------------------------------- filters


def filtered(gateway: FakeGateway, *filters: Filter, **options: str) -> FilteredLogReader:
    reader = batch(gateway, pushdown="true", **options)
    assert isinstance(reader, FilteredLogReader)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at every row once more"
    return reader


def test_only_who_asks_gets_a_reader_that_takes_filters(gateway: FakeGateway) -> None:
    """Spark refuses one for all whose session does not allow it, which is the default."""
    assert type(batch(gateway)) is LogReader


def test_filters_rule_pieces_out_and_go_to_the_gateway(gateway: FakeGateway) -> None:
    reader = filtered(
        gateway, EqualTo(("tap",), "tap-1"), GreaterThan(("sequence",), 90), LessThanOrEqual(("sequence",), 700),
        In(("shard",), (0, 9)), IsNotNull(("tap",)), rows_max="300",
    )  # fmt: skip
    partitions = reader.partitions()
    assert where(partitions) == [Range(0, 90, 250), Range(0, 250, 500), Range(0, 500, 700)]
    assert sequences(reader, partitions) == list(range(91, 701, 2))
    assert {query["tap"] for query in gateway.queries} == {"tap-1"}


def test_without_filters_it_reads_all(gateway: FakeGateway) -> None:
    reader = batch(gateway, pushdown="true")
    assert len(sequences(reader, reader.partitions())) == 1_100


@pytest.mark.parametrize(
    ("filter", "parameters"),
    [
        (EqualTo(("broker",), "orders"), [("broker", "orders")]),
        (In(("kind",), ("confirmed", "refused")), [("kind", "confirmed,refused")]),
        (In(("queue",), ("one",)), [("queue", "one")]),
        (In(("queue",), ("one", "two")), []),
        (In(("kind",), ("confirmed", None)), []),
        (EqualTo(("broker",), "a,b"), []),
        (EqualTo(("broker",), " a"), []),
        (EqualTo(("broker",), ""), []),
        (EqualTo(("exchange",), "amq.default"), []),
        (EqualTo(("exchange",), '{"type":"binary","value":"/w=="}'), []),
        (EqualTo(("detail",), "{}"), []),
        (EqualTo(("detail", "kind"), "x"), []),
        (GreaterThan(("broker",), "a"), []),
    ],
)
def test_a_filter_becomes_a_parameter_only_where_that_means_the_same(
    filter: Filter, parameters: list[tuple[str, str]]
) -> None:
    assert list(pushed(filter)) == parameters


def test_a_filter_of_the_other_log_stays_with_spark(gateway: FakeGateway) -> None:
    reader = filtered(gateway, EqualTo(("kind",), "confirmed"))
    assert reader.options.filters == {}


def test_an_option_counts_more_than_a_filter(gateway: FakeGateway) -> None:
    assert filtered(gateway, EqualTo(("tap",), "tap-1"), tap="tap-0").options.filters == {"tap": "tap-0"}


def test_bounds_are_those_that_all_filters_leave() -> None:
    assert bounds_of([GreaterThanOrEqual(("sequence",), 5), LessThan(("sequence",), 9)]) == ((5, 8), None)
    assert bounds_of([EqualTo(("sequence",), 5), EqualTo(("shard",), 3), In(("shard",), (3, 4))]) == (
        (5, 5), frozenset({3})
    )  # fmt: skip
    assert bounds_of([EqualTo(("sequence",), "5"), EqualTo(("size",), 5)]) == ((1, 1 << 63), None)


# ----------------------------------------------------------------------------------------------------- stream


def test_where_a_stream_begins_is_said_the_same_each_time(gateway: FakeGateway, stream: Stream) -> None:
    """Spark asks twice."""
    for options in ({"start": "latest"}, {"start": "latest", "cursor": "c"}):
        reader = stream(**options)
        assert reader.initialOffset() == {"0": 1_000, "3": 100}
        gateway.add("messages", 0, 10)
        assert reader.initialOffset() == {"0": 1_000, "3": 100}
        gateway.logs["messages"][0].head = 1_000
    assert stream(start='{"3": 7}').initialOffset() == {"3": 7}
    assert stream().initialOffset() == {}


def test_batches_hold_what_the_limit_allows(stream: Stream) -> None:
    reader = stream()
    assert reader.getDefaultReadLimit() == ReadMaxRows(1_000_000)
    assert stream(max_rows="7").getDefaultReadLimit() == ReadMaxRows(7)
    assert reader.latestOffset({}, ReadMaxRows(300)) == {"0": 200, "3": 100}
    assert reader.latestOffset({"0": 200, "3": 100}, ReadMaxRows(300)) == {"0": 500, "3": 100}
    assert reader.latestOffset({}, ALL) == {"0": 1_000, "3": 100}
    assert reader.latestOffset({}, ReadMinRows(1_101)) == {}
    assert reader.latestOffset({}, ReadMinRows(1_100)) == {"0": 1_000, "3": 100}
    with pytest.raises(ConfigurationError, match="the log is read by rows; Spark asked for ReadMaxBytes"):
        reader.latestOffset({}, ReadMaxBytes(5))


def test_the_end_is_told_as_it_was_where_nothing_is_new(stream: Stream) -> None:
    """Spark compares the text: the same place in other words would be a batch without rows, for ever."""
    start = {"3": 100, "0": 1_000, "7": 0}
    assert json.dumps(stream().latestOffset(start, ALL)) == json.dumps(start)


def test_a_batch_is_read_as_often_as_spark_likes(stream: Stream) -> None:
    reader = stream(rows_max="40")
    for _ in range(2):
        partitions = reader.partitions({"0": 900}, {"0": 1_000, "3": 50})
        assert len(partitions) == 5
        assert sequences(stream(), partitions) == [*range(901, 1_001), *range(1, 51)]
    assert list(reader.partitions({"0": 5}, {"0": 5})) == []


def test_available_now_ends_where_the_log_ended(gateway: FakeGateway, stream: Stream) -> None:
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    gateway.add("messages", 0, 500)
    gateway.add("messages", 4, 500)
    assert reader.latestOffset({}, ALL) == {"0": 1_000, "3": 100}
    assert reader.latestOffset({"0": 990}, ReadMinRows(1_000_000)) == {"0": 1_000, "3": 100}, "no more will come"
    end = {"0": 1_000, "3": 100}
    assert reader.latestOffset(end, ALL) is end
    assert reader.reportLatestOffset() == end


def test_available_now_needs_no_gateway_to_know_its_end(gateway: FakeGateway, stream: Stream) -> None:
    """To say that nothing is new while the gateway is away would end the query in the middle."""
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    gateway.down()
    assert reader.latestOffset({}, ReadMaxRows(300)) == {"0": 200, "3": 100}


def test_a_gateway_that_is_away_is_nothing_new_until_it_has_been_too_long(
    gateway: FakeGateway, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception would end the query."""
    now = [1_000.0]
    monkeypatch.setattr("gateway.pipeline.source.reader.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", lambda: now[0])
    monkeypatch.setattr("gateway.runtime.clock.clock.block", lambda seconds: None)
    reader = stream(unavailable_timeout="100")
    assert reader.latestOffset({}, ALL) == {"0": 1_000, "3": 100}
    gateway.down()
    start = {"0": 10}
    for _ in range(3):
        assert reader.latestOffset(start, ALL) is start
        now[0] += 40
    with pytest.raises(ServiceUnreachable, match="cannot be reached"):
        reader.latestOffset(start, ALL)
    gateway.up()
    assert reader.latestOffset(start, ALL) == {"0": 1_000, "3": 100}


def test_rows_that_went_before_they_were_read_end_the_stream_by_name(gateway: FakeGateway, stream: Stream) -> None:
    gateway.logs["messages"][0].floor = 101
    for ask in (
        lambda reader: reader.latestOffset({"0": 50}, ALL),
        lambda reader: reader.partitions({"0": 50}, {"0": 500}),
    ):
        with pytest.raises(SourceGone, match="shard 0, 50 < sequence <= 100"):
            ask(stream())
    passing = stream(failOnDataLoss="false")
    assert passing.latestOffset({"0": 50}, ReadMaxRows(500)) == {"0": 450, "3": 100}
    assert where(passing.partitions({"0": 50}, {"0": 500})) == [Range(0, 100, 500)]
    assert where(passing.partitions({"0": 50}, {"0": 90})) == []


def test_a_checkpoint_of_another_ledger_is_refused(stream: Stream) -> None:
    with pytest.raises(SourceGone, match="belongs to another ledger"):
        stream().latestOffset({"0": 5_000}, ALL)


# -------------------------------------------------------------------------------------------- stream and cursor


def test_the_cursor_is_told_of_the_batch_before_even_of_the_last_one(gateway: FakeGateway, stream: Stream) -> None:
    """Spark's own ``commit`` comes one batch late, and never for the last one of AvailableNow: these are its calls."""
    reader = stream(cursor="c")
    told = []
    reader.prepareForTriggerAvailableNow()
    reached = reader.initialOffset()
    while True:
        following = reader.latestOffset(reached, ReadMaxRows(500))
        told.append(gateway.told())
        if following == reached:
            break
        if reached:
            reader.commit(reached)
        reader.partitions(reached, following)
        reached = following
    assert told == [{}, {"0": 400, "3": 100}, {"0": 900, "3": 100}, {"0": 1_000, "3": 100}]


def test_the_cursor_is_never_ahead_of_what_is_done(gateway: FakeGateway, stream: Stream) -> None:
    """Planning a batch moves nothing: if it is lost on the way, its rows must still be there."""
    reader = stream(cursor="c")
    reader.initialOffset()
    end = reader.latestOffset({}, ALL)
    reader.partitions({}, end)
    assert gateway.told() == {}


def test_a_second_query_on_a_cursor_is_refused_by_name(stream: Stream) -> None:
    stream(cursor="c", owner="the first").initialOffset()
    for ask in (LogStreamReader.initialOffset, LogStreamReader.prepareForTriggerAvailableNow):
        with pytest.raises(CursorOwned, match="the cursor c belongs to the first since"):
            ask(stream(cursor="c", owner="the second"))


def test_a_query_that_was_taken_over_ends_and_does_so_in_words(gateway: FakeGateway, stream: Stream) -> None:
    one, two = stream(cursor="c", owner="one"), stream(cursor="c", owner="two", take_over="true")
    one.initialOffset()
    two.initialOffset()
    one.commit({"0": 5})  # an exception here would end the query with Spark's words
    with pytest.raises(CursorOwned, match="the cursor c belongs to two now"):
        one.latestOffset({"0": 5}, ALL)
    assert two.latestOffset({}, ALL) == {"0": 1_000, "3": 100}


def test_commit_never_raises(gateway: FakeGateway, stream: Stream) -> None:
    reader = stream(cursor="c")
    reader.initialOffset()
    gateway.down()
    reader.commit({"0": 5})
    gateway.up()
    reader.latestOffset({"0": 5}, ALL)
    assert gateway.told() == {"0": 5}


def test_a_killed_query_comes_back_at_once_under_its_name_and_after_a_minute_under_another(
    gateway: FakeGateway, stream: Stream
) -> None:
    now = [0.0]
    gateway.now = lambda: now[0]
    stream(cursor="c", owner="archive/1").initialOffset()
    stream(cursor="c", owner="archive/1").initialOffset()
    with pytest.raises(CursorOwned):
        stream(cursor="c").initialOffset()
    now[0] += 60
    stream(cursor="c").initialOffset()


def test_nothing_is_asked_where_a_task_reads(gateway: FakeGateway, stream: Stream) -> None:
    """A reader is made, and pickled, in many processes: only the one that Spark asks for offsets claims the cursor."""
    reader = stream(cursor="c")
    pickle.dumps(reader)
    assert gateway.seen.total() == 0
    assert gateway.cursors == {}


def test_a_wrong_key_is_said_in_words(gateway: FakeGateway, stream: Stream) -> None:
    gateway.key = "hush"
    with pytest.raises(ServiceRefused, match="no valid API key"):
        stream(cursor="c").initialOffset()

"""The readers that Spark asks: of a batch, of a batch with filters, and of a stream.

A reader is made, and made again, in processes that have nothing to do with each other, and is sent to where tasks run;
so it holds options and a schema, and connects when it has to. The stream's methods but ``read`` are called in one
process that lives as long as the query: only there are a cursor and what was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from gateway.errors import ConfigurationError, ServiceUnreachable
from gateway.logs import Log
from gateway.logs.columns import BINARY, FILTERS
from gateway.pipeline.source import offsets
from gateway.pipeline.source.choice import transport_of
from gateway.pipeline.source.conform import arrow_schema, columns_of, conform, pieces
from gateway.pipeline.source.cursor import Cursor, new_owner
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.notes import note, rows_gone
from gateway.pipeline.source.offsets import Head, Position, Range
from gateway.pipeline.source.options import FILTER_OPTIONS, LATEST, LISTS, ReadOptions
from gateway.pipeline.source.ranges import SEQUENCE, read_range
from gateway.pipeline.source.retry import Retry
from gateway.pipeline.source.transports import HttpRows
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOOK_SECONDS: Final = 5.0
"""How long a stream waits for the gateway each time that Spark asks what is new, in seconds."""
DEFAULT_EXCHANGE: Final = "amq.default"
"""How a parameter names the exchange whose name is empty."""
TELL_TIMEOUT: Final = 10.0
"""How long the gateway may take to answer about a cursor, in seconds: the next request makes up for a failed one."""


class LogPartition(InputPartition):
    """A range that one task reads."""

    def __init__(self, where: Range, arrow: bool) -> None:
        super().__init__(tuple(where))
        self.arrow = arrow

    @property
    def where(self) -> Range:
        """The range."""
        return Range(*self.value)


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    if not isinstance(partition, LogPartition):
        return  # Spark's stand-in for a plan without any
    columns = columns_of(schema, options.log)
    wanted = arrow_schema(options.log, columns)
    asked = columns if SEQUENCE in columns else (*columns, SEQUENCE)
    transport = transport_of(options, arrow=partition.arrow)
    try:
        for batch in read_range(
            transport, options.log, partition.where, asked, options.filters, Retry(options.unavailable_timeout),
            fail=options.fail_on_data_loss,
        ):  # fmt: skip
            yield from pieces(conform(batch, wanted))
    finally:  # a query with a limit does not read to the end
        transport.close()


def sends_arrow(options: ReadOptions, head: Head) -> bool:
    """Whether rows come as Arrow.

    Raises:
        ConfigurationError: they should, and the gateway has none.
    """
    if options.format == "arrow" and not head.arrow:
        raise ConfigurationError(
            f"format is arrow, and {options.url} sends none: install its extra, amqp-gateway[arrow], or read NDJSON"
        )
    return head.arrow and options.format != "ndjson"


class LogReader(DataSourceReader):
    """Of a batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ConfigurationError where the schema names what the log has not."""
        columns_of(schema, options.log)
        self.options = options
        self.schema = schema
        self.within: list[Range] = []

    def partitions(self) -> list[InputPartition]:
        """What each task reads; Spark takes no other sequence than a list.

        Raises:
            SourceGone: what the start names is gone, or is of another log.
        """
        options = self.options
        control = HttpRows(options, arrow=False)
        try:
            head = control.head(options.log)
        finally:
            control.close()
        start = _word(options.start, head) if (given := options.position("start")) is None else given
        start, missing = offsets.check(start, head, fail=options.fail_on_data_loss)
        rows_gone(options.log, missing)
        end = options.position("end")
        end = head.end if end is None else {shard: min(last, head.end.get(shard, 0)) for shard, last in end.items()}
        planned = offsets.ranges(start, end, options.rows_max)
        arrow = sends_arrow(options, head)
        return [LogPartition(each, arrow) for each in self._cut(planned)]

    def _cut(self, planned: list[Range]) -> list[Range]:
        """What is left of the plan; filters may rule ranges out."""
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_partition(self.options, self.schema, partition)


class FilteredLogReader(LogReader):
    """Of a batch whose filters are pushed down: only for those who ask, for Spark refuses a reader that takes filters
    where ``spark.sql.python.filterPushdown.enabled`` is off, which is its default."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.sequences: tuple[int, int] = (1, 1 << 63)
        self.shards: frozenset[int] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take what helps to read less. Spark looks at every row once more, so that all that counts here is that no
        row is kept out that it would take."""
        changes: dict[str, str] = {}
        for each in filters:
            for name, value in pushed(each):
                if name in FILTERS[Log(self.options.log)] and not getattr(self.options, name):
                    changes.setdefault(name, value)
        if changes:
            self.options = msgspec.structs.replace(self.options, **changes)
        self.sequences, self.shards = bounds_of(filters)
        return filters

    def _cut(self, planned: list[Range]) -> list[Range]:
        low, high = self.sequences
        cut = [
            each._replace(after=max(each.after, low - 1), upto=min(each.upto, high))
            for each in planned
            if self.shards is None or each.shard in self.shards
        ]
        return [each for each in cut if each.length > 0]


def pushed(filter: Filter) -> Iterator[tuple[str, str]]:
    """The parameters that a filter becomes."""
    if isinstance(filter, EqualTo):
        values: tuple[Any, ...] = (filter.value,)
    elif isinstance(filter, In):
        values = filter.value
    else:
        return
    name = filter.attribute[0] if len(filter.attribute) == 1 else ""
    if name in FILTER_OPTIONS and (len(values) == 1 or name in LISTS) and all(map(_plain, values)):
        yield name, ",".join(values)


def _plain(value: Any) -> bool:
    """Whether a value is the same as a parameter: the gateway cuts some at commas, and one name has another one."""
    return (
        isinstance(value, str)
        and bool(value)
        and value == value.strip()
        and "," not in value
        and value != DEFAULT_EXCHANGE
        and not value.startswith(BINARY)
    )


def bounds_of(filters: Iterable[Filter]) -> tuple[tuple[int, int], frozenset[int] | None]:
    """The lowest and the highest sequence number that filters leave, and the shards; None: all."""
    low, high = 1, 1 << 63
    shards: frozenset[int] | None = None
    for each in filters:
        attribute, value = getattr(each, "attribute", ()), getattr(each, "value", None)
        if attribute == ("shard",) and isinstance(each, EqualTo | In):
            these = frozenset(value if isinstance(each, In) else (value,))  # type: ignore[arg-type]
            shards = these if shards is None else shards & these
        if attribute != ("sequence",) or type(value) is not int:
            continue
        if isinstance(each, EqualTo):
            low, high = max(low, value), min(high, value)
        elif isinstance(each, GreaterThan | GreaterThanOrEqual):
            low = max(low, value + isinstance(each, GreaterThan))
        elif isinstance(each, LessThan | LessThanOrEqual):
            high = min(high, value - isinstance(each, LessThan))
    return (low, high), shards


def _word(word: str, head: Head) -> Position:
    return head.end if word == LATEST else head.start


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of a stream. Offsets are positions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ConfigurationError where the schema names what the log has not."""
        columns_of(schema, options.log)
        self.options = options
        self.schema = schema
        self._rows: HttpRows | None = None
        self._cursor: Cursor | None = None
        self._begin: Position | None = None
        self._target: Position | None = None
        """Where ``AvailableNow`` ends; None: nowhere."""
        self._head: Head | None = None
        self._away_since: float | None = None
        self._looked_at = 0.0

    # ---------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> Position:  # noqa: N802  # Spark's name
        """Where a query begins that has no checkpoint. Spark asks more than once, and gets the same."""
        return self._open()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much of a batch, unless Spark says otherwise."""
        return ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; ``start`` itself: nothing is new, or the gateway is away for a while.

        Spark asks once the batch before is done and its commit is on disk, so the cursor moves to ``start``.

        Raises:
            CursorOwned: somebody else reads under this cursor now.
            SourceGone: rows behind ``start`` are gone, or it is of another log.
            ServiceUnreachable: the gateway has been away for too long.
        """
        self._open()
        self._tell(start)
        if self._cursor is not None:
            self._cursor.check()
        end = self._target if self._target is not None else self._look(start)
        if end is None:
            return start
        found = offsets.admit(start, end, _rows_of(limit, offsets.backlog(start, end), final=self._target is not None))
        return start if found == offsets.canonical(start) else found

    def reportLatestOffset(self) -> Position | None:  # noqa: N802
        """The end of the log when it was last looked at."""
        return None if self._head is None else self._head.end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that this run reads."""
        self._open()
        self._head = self._control().head(self.options.log)
        self._target = self._head.end

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for anything up to here again. It never says so of the last batch, and an exception here
        would end the query."""
        self._tell(end)

    def stop(self) -> None:
        """The query is over. Spark does not always say so."""
        if self._cursor is not None:
            self._cursor.close()
        if self._rows is not None:
            self._rows.close()

    # ----------------------------------------------------------------------------------------------- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task of a batch reads.

        Raises:
            SourceGone: some of it is gone.
        """
        self._open()
        head = self._control().head(self.options.log)
        begin, missing = offsets.check(start, head, fail=self.options.fail_on_data_loss)
        rows_gone(self.options.log, missing)
        arrow = sends_arrow(self.options, head)
        return [LogPartition(each, arrow) for each in offsets.ranges(begin, end, self.options.rows_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_partition(self.options, self.schema, partition)

    # ---------------------------------------------------------------------------------------------- internals

    def _control(self) -> HttpRows:
        if self._rows is None:
            self._rows = HttpRows(self.options, arrow=False)
        return self._rows

    def _open(self) -> Position:
        """Claim the cursor, once; where the query begins unless it has a checkpoint."""
        if self._begin is None:
            given = self.options.position("start")
            if self.options.cursor:
                hasty = msgspec.structs.replace(self.options, timeout=min(self.options.timeout, TELL_TIMEOUT))
                cursor = Cursor(Http(hasty), self.options.log, self.options.cursor, self.options.owner or new_owner())
                begin = cursor.claim(self.options.start if given is None else given, take_over=self.options.take_over)
                self._cursor = cursor
                self._begin = begin
            elif given is None:
                self._begin = _word(self.options.start, self._control().head(self.options.log))
            else:
                self._begin = given
        return self._begin

    def _tell(self, position: dict[str, Any]) -> None:
        if self._cursor is not None:
            self._cursor.put(position)

    def _look(self, start: dict[str, Any]) -> Position | None:
        """The end of the log; None: nobody can tell just now."""
        control = self._control()
        wait = self._looked_at + self.options.poll - clock.monotonic()
        if wait > 0:  # Spark asks a hundred times a second
            clock.block(min(wait, self.options.poll))
        try:
            retry = Retry(min(LOOK_SECONDS, self.options.unavailable_timeout))
            self._head = offsets.head_of(
                control.http.ask("GET", "/v1/log/head", {"log": self.options.log}, retry=retry), self.options.url
            )
        except ServiceUnreachable as error:
            now = clock.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= self.options.unavailable_timeout:
                raise
            note("pipeline.gateway_away", url=self.options.url, reason=str(error))
            return None
        finally:
            self._looked_at = clock.monotonic()
        self._away_since = None
        offsets.check(start, self._head, fail=self.options.fail_on_data_loss)
        return self._head.end


def _rows_of(limit: ReadLimit, backlog: int, *, final: bool) -> int:
    """How many rows a limit of Spark's means. ``final``: nothing will come besides what is there."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadMinRows):
        return backlog if final or backlog >= limit.min_rows else 0
    if isinstance(limit, ReadAllAvailable):
        return backlog
    raise ConfigurationError(f"the log is read by rows; Spark asked for {limit}")

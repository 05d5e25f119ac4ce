"""What jobs use: the source and the sink with the options that a :class:`~gateway.pipeline.settings.Pipeline` gives.

The API key and the ledger's URL reach the tasks in files: the one that the settings name, or one that is made for this
run in its own folder, which only its user may read. Where tasks run on other machines, they need the file of the
settings there, or the variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.pipeline.schema import ddl
from gateway.pipeline.source.options import EARLIEST, LATEST, ReadOptions, WriteOptions, parse, secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

    from gateway.pipeline.settings import Pipeline
    from gateway.pipeline.source.cursor import Follower
    from gateway.pipeline.source.offsets import Position


def read(
    spark: SparkSession,
    pipeline: Pipeline,
    log: str,
    columns: Sequence[str] = (),
    start: Mapping[str, int] | str | None = None,
    end: Mapping[str, int] | str | None = None,
    pushdown: bool = False,
    **options: str,
) -> DataFrame:
    """The rows of a log behind ``start`` and up to ``end``: positions, ``earliest`` or ``latest``; None: all there are.

    Args:
        columns: those that are read, over the wire too; empty: all. They come in the order of the log.
        options: more options of the source, :class:`~gateway.pipeline.source.options.ReadOptions`.

    Raises:
        ConfigurationError: an option is wrong, or the log has no such column.
    """
    given = {"start": _position(start, EARLIEST), "end": _position(end, LATEST), "pushdown": str(pushdown).lower()}
    return _loaded(spark.read, pipeline, log, columns, {**given, **options})


def stream(
    spark: SparkSession,
    pipeline: Pipeline,
    log: str,
    columns: Sequence[str] = (),
    cursor: str | None = None,
    **options: Any,
) -> DataFrame:
    """The rows of a log as they come. :class:`Stream` is for those who want their cursor told and let go at the end."""
    return Stream(spark, pipeline, log, columns, cursor, **options).frame


class Stream:
    """A log as a stream, and the cursor that goes with it."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        log: str,
        columns: Sequence[str] = (),
        cursor: str | None = None,
        owner: str | None = None,
        source: int = 0,
        **options: Any,
    ) -> None:
        """Arguments as for :func:`stream`; ``options`` such as ``max_rows`` are those of the source.

        Args:
            cursor: the name of the cursor; None: the stream has none.
            owner: who reads, the same after every restart of the same query. None: nobody else, so that a query that
                was killed finds its cursor taken for a minute.
            source: the place of the log among the query's sources.
        """
        given = {name: str(value) for name, value in options.items()}
        self.cursor = cursor
        self.owner = owner
        if cursor is not None:
            from gateway.pipeline.source.cursor import new_owner

            self.owner = owner or new_owner()
            given |= {"cursor": cursor, "owner": self.owner}
        self._spark = spark
        self._source = source
        self._listener: StreamingQueryListener | None = None
        self._told_by: Follower | None = None
        self._options = _options(pipeline, log, given)
        self.frame = _loaded(spark.readStream, pipeline, log, columns, given)

    def follow(self, query: StreamingQuery) -> None:
        """Tell the cursor of each batch of a query that goes on, as soon as it is done."""
        from gateway.pipeline.source.listener import Listener

        if self.cursor is not None:
            self._listener = Listener(self._follower(), str(query.id))
            self._spark.streams.addListener(self._listener)

    def finish(self, query: StreamingQuery) -> Position | None:
        """After the query has ended: move the cursor to its end, and release it.

        Returns:
            The position behind its last batch; None: it had none.

        Raises:
            CursorOwned: somebody else has the cursor. What the query wrote is written.
            ServiceUnreachable, ServiceRefused
        """
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)
            self._listener = None
        follower = self._follower()
        return follower.reached(query.lastProgress) if self.cursor is None else follower.finish(query)

    def _follower(self) -> Follower:
        from gateway.pipeline.source.cursor import Follower
        from gateway.pipeline.source.http import Http

        if self._told_by is None:
            self._told_by = Follower(Http(self._options), self.cursor or "", self.owner or "", self._source)
        return self._told_by


def write(frame: DataFrame, pipeline: Pipeline, broker: str, exchange: str = "", **options: str) -> DataFrameWriter:
    """A writer that publishes the rows of a batch: ``write(…).save()``. A stream's is
    ``writeStream.format("gateway").options(**write_options(…))``."""
    return frame.write.format("gateway").mode("append").options(**write_options(pipeline, broker, exchange, **options))


def write_options(pipeline: Pipeline, broker: str, exchange: str = "", **options: str) -> dict[str, str]:
    """The options of the sink.

    Raises:
        ConfigurationError: an option is wrong.
    """
    found = {**_connection(pipeline), "broker": broker, "exchange": exchange, **options}
    parse(WriteOptions, found)
    return found


def _loaded(reader: Any, pipeline: Pipeline, log: str, columns: Sequence[str], given: Mapping[str, str]) -> DataFrame:
    from gateway.pipeline.source.conform import check_names

    check_names(log, columns)
    _options(pipeline, log, given)
    found: DataFrame = (
        reader.format("gateway").schema(ddl(log, tuple(columns))).options(**_given(pipeline, log, given)).load()
    )
    return found


def _options(pipeline: Pipeline, log: str, given: Mapping[str, str]) -> ReadOptions:
    return parse(ReadOptions, _given(pipeline, log, given))


def _given(pipeline: Pipeline, log: str, given: Mapping[str, str]) -> dict[str, str]:
    found = {**_connection(pipeline), "log": log, "rows_max": str(pipeline.settings.rows_max)}
    if pipeline.ledger_dsn:
        found |= {"transport": "adbc", "ledger_url_file": _in_file("ledger-url", pipeline.ledger_dsn)}
    return {**found, **given}


def _connection(pipeline: Pipeline) -> dict[str, str]:
    found = {
        "url": pipeline.url,
        "timeout": str(pipeline.settings.timeout),
        "unavailable_timeout": str(pipeline.settings.unavailable_timeout),
    }
    named = pipeline.settings.api_key_file
    if named and secret("api_key_file", named, "", {}) == pipeline.api_key:
        found["api_key_file"] = os.path.abspath(named)
    elif pipeline.api_key:
        found["api_key_file"] = _in_file("api-key", pipeline.api_key)
    return found


def _in_file(name: str, text: str) -> str:
    """A file of this run that holds a secret."""
    from gateway.pipeline.session import scratch

    path = scratch() / name
    beside = path.with_name(f"{name}.{os.getpid()}")
    beside.touch(mode=0o600)
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
    return str(path)


def _position(value: Mapping[str, int] | str | None, default: str) -> str:
    if value is None:
        return default
    return value if isinstance(value, str) else json.dumps(dict(value))

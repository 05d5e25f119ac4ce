"""Rows of a log straight from the ledger's database, by ADBC: the fast path.

How far a log goes is asked of the gateway, as by any reader, and so is everything about cursors; what a task needs for
its rows is the database's address. The rows are made by what the gateway itself makes its Arrow with.

The log's floor is looked at before a range is read, and after one that is filtered. It is raised before anything below
it goes, so rows that were read while it stayed are all there were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

import adbc_driver_manager as adbc

from gateway.errors import ServiceRefused
from gateway.ledger.db.engine import Database
from gateway.logs import Log, arrow
from gateway.logs.columns import Field, fields
from gateway.pipeline.source.http import Away, RangeGone
from gateway.pipeline.source.offsets import Head, Range
from gateway.pipeline.source.options import LISTS, ReadOptions, ledger_url
from gateway.pipeline.source.ranges import Answer
from gateway.pipeline.source.transports import HttpRows

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT: Final = 65_536
"""Most rows of one statement: none runs for long, even with a slow reader."""
OCTETS: Final = 32 << 20
"""Most octets of messages of one statement, unless it is only one message: a driver gathers thousands of rows before it
gives any of them."""
HEAVY: Final = frozenset({"body", "properties"})
"""Columns that may be large: without them the rows alone bound a statement."""
_BEFORE: Final = "SELECT octets FROM message_log WHERE shard = {0} AND sequence >= {1} ORDER BY sequence LIMIT 1"
_WRITTEN: Final = "SELECT log_octets FROM shards WHERE shard = {0}"
_FLOOR: Final = "SELECT floor FROM log_floors WHERE log = '{}' AND shard = {}"
_SECRET: Final = re.compile(r"//[^@\s]*@")


class AdbcRows:
    """A transport: the database for rows, the gateway for the rest."""

    def __init__(self, options: ReadOptions) -> None:
        """Nothing is opened yet.

        Raises:
            ConfigurationError: nobody says where the ledger is, or it is no such database.
        """
        self._database = Database(ledger_url(options))
        self._control = HttpRows(options, arrow=False)
        self._connection: arrow.ArrowConnection | None = None

    def head(self, log: str) -> Head:
        """Where the log begins and ends."""
        return self._control.head(log)

    @contextmanager
    def open(self, log: str, where: Range, columns: Sequence[str], filters: Mapping[str, str]) -> Iterator[Answer]:
        """Ask for a range."""
        wanted = {name: value.split(",") if name in LISTS else [value] for name, value in filters.items()}
        try:
            if self._connection is None:
                self._connection = arrow.ArrowConnection(self._database.dialect, self._database.arrow_uri)
            answer = _AdbcAnswer(self._connection, Log(log), where, fields(Log(log), columns), wanted)
            answer.check()
            yield answer
        except adbc.OperationalError as error:
            self._hang_up()
            raise Away(f"the ledger cannot be read: {_said(error)}") from None
        except adbc.Error as error:
            raise ServiceRefused(f"the ledger cannot be read: {_said(error)}") from None

    def close(self) -> None:
        """Hang up, on both."""
        self._hang_up()
        self._control.close()

    def _hang_up(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


class _AdbcAnswer:
    def __init__(
        self,
        connection: arrow.ArrowConnection,
        log: Log,
        where: Range,
        chosen: Sequence[Field],
        wanted: Mapping[str, Sequence[str]],
    ) -> None:
        self.rows = where.length
        self._connection = connection
        self._log = log
        self._where = where
        self._chosen = chosen
        self._wanted = wanted

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        where = self._where
        upto = where.after
        while upto < where.upto:
            after, upto = upto, self._end(upto)
            rows = arrow.read(self._connection, self._log, where.shard, after, upto, self._chosen, self._wanted)
            with closing(rows) as batches:
                yield from batches
        if self._wanted:  # nobody can count those
            self.check()

    def _end(self, after: int) -> int:
        """Where the statement for the rows behind ``after`` stops: the rows up to there are no more than
        :data:`SEGMENT` and, where they may be large, hold no more than :data:`OCTETS`; it is one row at least."""
        upto = min(after + SEGMENT, self._where.upto)
        if self._log is not Log.MESSAGES or HEAVY.isdisjoint(field.name for field in self._chosen):
            return upto
        most = self._before(after + 1) + OCTETS
        if self._before(upto + 1) <= most:
            return upto
        low = after + 1  # by halving: it is there or further on, or the only one
        while low < upto:
            middle = (low + upto + 1) // 2
            if self._before(middle + 1) <= most:
                low = middle
            else:
                upto = middle - 1
        return low

    def _before(self, sequence: int) -> int:
        """How many octets the log's rows hold that come before this number."""
        shard = int(self._where.shard)
        found = self._connection.rows(_BEFORE.format(shard, int(sequence)))
        # Behind the last one: all that was written.
        return int((found or self._connection.rows(_WRITTEN.format(shard)) or [(0,)])[0][0])

    def check(self) -> None:
        """Raise RangeGone if the log begins behind the range's first row."""
        for (floor,) in self._connection.rows(_FLOOR.format(self._log.value, int(self._where.shard))):
            if floor > self._where.after + 1:
                raise RangeGone(f"shard {self._where.shard} begins at {floor}")


def _said(error: Exception) -> str:
    """What the driver says, without the database's login."""
    return _SECRET.sub("//…@", " ".join(str(error).split()))[:500]

"""One range of a log, read to its end: every row once and in order, or an error that says which are missing.

Numbers have no gaps, so what comes is counted against them, batch by batch; with filters only the gateway can count. An
answer that breaks off is asked for again behind the last row that came, so that what was handed on is never handed on
twice. Where rows are missing, the log's floor tells why: it is raised before anything below it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

import numpy

from gateway.errors import ServiceRefused, SourceGone
from gateway.pipeline.source.http import Away, RangeGone
from gateway.pipeline.source.notes import rows_gone
from gateway.pipeline.source.offsets import Head, Range
from gateway.pipeline.source.retry import Retry

if TYPE_CHECKING:
    import pyarrow as pa

SEQUENCE: Final = "sequence"
"""The column that is always asked for: by it one knows what is missing, and where to go on."""
GO_ON: Final = "With the option failOnDataLoss=false the reader goes on behind them"


class Answer(Protocol):
    """What came back for a range."""

    rows: int
    """How many rows the range has, before filters."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class Transport(Protocol):
    """Where rows come from."""

    def open(
        self, log: str, where: Range, columns: Sequence[str], filters: Mapping[str, str]
    ) -> AbstractContextManager[Answer]:
        """Ask for a range.

        Raises:
            Away: repeat it, perhaps; also while the answer is read.
            RangeGone: the range begins before the log does.
            GatewayError: no.
        """
        ...

    def head(self, log: str) -> Head:
        """Where the log begins and ends."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def read_range(
    transport: Transport,
    log: str,
    where: Range,
    columns: Sequence[str],
    filters: Mapping[str, str],
    retry: Retry,
    *,
    fail: bool,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, with these columns in any order and ``sequence`` among them.

    Args:
        fail: rather fail than pass over rows that are gone.

    Raises:
        SourceGone: rows are gone, or fewer came than there are.
        ServiceUnreachable: the gateway went away and did not come back in time.
        ServiceRefused: the gateway said no, or sent what is no answer.
    """
    left = where
    while left.length > 0:
        begun = left
        try:
            with transport.open(log, left, columns, filters) as answer:
                if answer.rows != left.length:
                    raise SourceGone(f"{left} has {left.length} rows, and the gateway knows of {answer.rows}")
                for batch in answer:
                    if not batch.num_rows:
                        continue
                    if not _follows(batch, left, filtered=bool(filters)):
                        _explain(transport, log, left, batch, fail=fail)
                    retry.progress()
                    left = left._replace(after=_numbers(batch)[1])
                    yield batch
            if left.length > 0 and not filters:
                _explain(transport, log, left, None, fail=fail)
            return
        except RangeGone as error:
            following = _passed_over(transport, log, begun, str(error), fail=fail)
            left = left._replace(after=max(left.after, following.after))
            if left == begun:
                raise SourceGone(
                    f"the gateway says that {begun} is gone ({error}), and that its log begins before it"
                ) from None
        except Away as error:
            retry.wait(error, error.retry_after)
            if filters and left != begun:  # nobody counts those: none of them is missing if the floor is still below
                _passed_over(transport, log, begun._replace(upto=left.after), str(error), fail=fail)


def _numbers(batch: pa.RecordBatch) -> tuple[int, int]:
    """The first and the last sequence number."""
    column = batch.column(batch.schema.get_field_index(SEQUENCE))
    return column[0].as_py(), column[-1].as_py()


def _follows(batch: pa.RecordBatch, left: Range, *, filtered: bool) -> bool:
    """Whether a batch is what comes next: with filters, whether it may be.

    Raises:
        ServiceRefused: its rows are in no order, or of another range.
    """
    first, last = _numbers(batch)
    numbers = batch.column(batch.schema.get_field_index(SEQUENCE)).to_numpy(zero_copy_only=False)
    if not left.after < first <= last <= left.upto or not (numpy.diff(numbers) > 0).all():
        raise ServiceRefused(f"the gateway sent rows {first} to {last}, which are in no order or not of {left}")
    return filtered or (first == left.after + 1 and last - first + 1 == batch.num_rows)


def _explain(transport: Transport, log: str, left: Range, batch: pa.RecordBatch | None, *, fail: bool) -> None:
    """Rows are missing: say which, and whether they may be.

    Raises:
        SourceGone: they may not.
    """
    upto, came = (left.upto, 0) if batch is None else (_numbers(batch)[1], batch.num_rows)
    missing = left._replace(upto=upto)
    told = f"{missing} has {missing.length} rows, and {came} came"
    gone = missing._replace(upto=min(upto, _floor(transport, log, left.shard) - 1))
    if gone.length <= 0:
        raise SourceGone(f"{told}: the log is damaged, or something between here and the gateway is")
    if fail:
        raise SourceGone(f"{told}: retention took some of {gone} meanwhile. {GO_ON}")
    rows_gone(log, [gone])


def _passed_over(transport: Transport, log: str, left: Range, said: str, *, fail: bool) -> Range:
    """What is left of a range of which the beginning is gone, if it is."""
    gone = left._replace(upto=min(left.upto, _floor(transport, log, left.shard) - 1))
    if gone.length <= 0:
        return left
    if fail:
        raise SourceGone(f"rows of the log of {log} are gone that were not read: {gone} ({said}). {GO_ON}")
    rows_gone(log, [gone])
    return left._replace(after=gone.upto)


def _floor(transport: Transport, log: str, shard: int) -> int:
    return next((each.floor for each in transport.head(log).shards if each.shard == shard), 1)

"""The writers that Spark asks: tasks post messages to the gateway, never to a broker.

What a task has posted cannot be unsent, so there is nothing to commit and nothing to abort: the keys see to it that
what is sent again is published once. What is left to do at the end is to count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gateway.errors import ConfigurationError
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.messages import Counts, Keys, Sender, check_columns, messages_of
from gateway.pipeline.source.notes import note
from gateway.pipeline.source.options import WriteOptions
from gateway.runtime.ids import ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    counts: Counts


class _Writer:
    """What both writers do."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises ConfigurationError where the rows are no messages, or should replace others."""
        if overwrite:
            raise ConfigurationError('messages are added to an exchange and replace none: use the mode "append"')
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        self.options = options
        self.run = ids.uuid().hex
        """The same for all attempts of the tasks of one batch write."""

    def post(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """What a task does."""
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        write = f"{self.options.id or query}:{batch}" if query else self.options.id or self.run
        partition = context.partitionId()
        keys = Keys(self.options.id, write, partition)
        http = Http(self.options)
        try:
            return Written(Sender(http, self.options, partition).send(messages_of(batches, self.options, keys)))
        finally:
            http.close()

    def report(self, messages: Sequence[WriterCommitMessage | None], state: str, batch: int | None = None) -> None:
        """Leave the counts where the options say. Batches of a stream are added up, each of them once."""
        counts = Counts()
        for each in messages:
            if isinstance(each, Written):
                counts.add(each.counts)
        if state == "aborted":
            note(
                "pipeline.write_aborted",
                unfinished=sum(each is None for each in messages),
                **msgspec.to_builtins(counts),
            )
        if not self.options.report_file:
            return
        path = Path(self.options.report_file)
        if batch is not None and path.exists():
            before = json.loads(path.read_text())
            if before["batch"] is not None and before["batch"] >= batch:
                return  # Spark has committed it once more
            counts.add(msgspec.convert(before["counts"], Counts))
        document: dict[str, Any] = {"state": state, "batch": batch, "counts": msgspec.to_builtins(counts)}
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps(document))
        os.replace(beside, path)


class MessageWriter(DataSourceArrowWriter):
    """Of a batch."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Post the rows of one task."""
        return self._writer.post(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All of it is written."""
        self._writer.report(messages, "done")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good. What others have posted stays posted, and goes under the same keys another time."""
        self._writer.report(messages, "aborted")


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Post the rows of one task."""
        return self._writer.post(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All of the batch is written."""
        self._writer.report(messages, "done", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task failed for good; the batch goes out again, under the same keys."""
        note("pipeline.batch_aborted", batch=batchId, unfinished=sum(each is None for each in messages))

"""The data source ``gateway``: what Spark asks for a reader or a writer."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from gateway.pipeline.schema import ddl
from gateway.pipeline.source.options import ReadOptions, WriteOptions, parse


class GatewayDataSource(DataSource):
    """``spark.read.format("gateway")`` and its sisters. What is imported here is imported wherever Spark plans."""

    @classmethod
    def name(cls) -> str:
        """What users write."""
        return "gateway"

    def schema(self) -> str:
        """All columns of the log; a query with its own schema reads those columns only, over the wire too."""
        return ddl(parse(ReadOptions, self.options).log)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        from gateway.pipeline.source.reader import FilteredLogReader, LogReader

        options = parse(ReadOptions, self.options)
        return FilteredLogReader(options, schema) if options.pushdown else LogReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Of a stream."""
        from gateway.pipeline.source.reader import LogStreamReader

        return LogStreamReader(parse(ReadOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch."""
        from gateway.pipeline.source.writer import MessageWriter

        return MessageWriter(parse(WriteOptions, self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Of a stream."""
        from gateway.pipeline.source.writer import MessageStreamWriter

        return MessageStreamWriter(parse(WriteOptions, self.options), schema, overwrite)

"""The archive: the logs as tables of files, for as long as one wants to keep them.

:mod:`gateway.pipeline.archive.table` says what an archive can do. It is kept in one of two ways, chosen when it is
made: plain Parquet files with a commit log of our own (:mod:`gateway.pipeline.archive.parquet`), which needs a file
system and nothing else, or Delta (:mod:`gateway.pipeline.archive.delta`), which needs Delta's jars and works on object
stores too.
"""

"""The logs of the gateway as a source of Spark, and its exchanges as a sink.

``offsets``, ``options``, ``retry``, ``http``, ``ranges``, ``conform`` and ``messages`` are plain Python and are
tested without Spark; ``reader`` and ``writer`` wrap them into the classes that Spark asks for. A job uses :func:`read`
and :func:`stream`; anybody else the format ``gateway``, which Spark finds where this package is installed
(:mod:`pyspark_gateway`).
"""

from __future__ import annotations

from gateway.pipeline.source.helpers import Stream, read, stream, write

__all__ = ["Stream", "read", "stream", "write"]

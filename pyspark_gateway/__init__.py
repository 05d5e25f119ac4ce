"""The Spark data source ``gateway``, found by its name where this package is installed.

Spark looks for packages called ``pyspark_…`` and imports each of them, for every query; so this one imports
little.
"""

from __future__ import annotations

from gateway.pipeline.source.datasource import GatewayDataSource

__all__ = ["DefaultSource"]


class DefaultSource(GatewayDataSource):
    """The name that Spark looks for."""

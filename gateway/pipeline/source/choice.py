"""The choice of a transport for the rows of a log."""

from __future__ import annotations

from gateway.pipeline.source.options import ReadOptions
from gateway.pipeline.source.ranges import Transport
from gateway.pipeline.source.transports import HttpRows


def transport_of(options: ReadOptions, *, arrow: bool) -> Transport:
    """The transport that the options name."""
    if options.transport == "adbc":
        from gateway.pipeline.source.adbc import AdbcRows

        return AdbcRows(options)
    return HttpRows(options, arrow=arrow)

"""Rows of a log over HTTP: as Arrow, or as NDJSON where the gateway has no Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Final

import pyarrow as pa

from gateway.errors import ServiceRefused
from gateway.pipeline.source.conform import arrow_schema, from_ndjson
from gateway.pipeline.source.http import ARROW, NDJSON, Away, Http
from gateway.pipeline.source.offsets import Head, Range, head_of
from gateway.pipeline.source.options import ReadOptions
from gateway.pipeline.source.ranges import Answer

LINES: Final = 1 << 20
"""Octets of NDJSON that are looked at together, about."""


class HttpRows:
    """A transport: every request over one connection."""

    def __init__(self, options: ReadOptions, *, arrow: bool) -> None:
        """``arrow``: ask for Arrow, else for NDJSON."""
        self.http = Http(options)
        self._accept = ARROW if arrow else NDJSON

    def head(self, log: str) -> Head:
        """Where the log begins and ends."""
        return head_of(self.http.ask("GET", "/v1/log/head", {"log": log}), self.http.url)

    @contextmanager
    def open(self, log: str, where: Range, columns: Sequence[str], filters: Mapping[str, str]) -> Iterator[Answer]:
        """Ask for a range."""
        query = {
            "log": log, "shard": where.shard, "after": where.after, "upto": where.upto, "columns": ",".join(columns),
            **filters,
        }  # fmt: skip
        with self.http.exchange("GET", "/v1/log", query, headers={"accept": self._accept}) as response:
            kind = response.getheader("content-type", "").partition(";")[0].strip().lower()
            rows = response.getheader("log-range-rows", "")
            if kind != self._accept or not rows.isdecimal():
                raise ServiceRefused(
                    f"{self.http.url}/v1/log answered with {kind or 'no Content-Type'} and Log-Range-Rows "
                    f"{rows or 'missing'}, not with rows as {self._accept}; is it a gateway?"
                )
            if response.length is None and not response.chunked:
                raise ServiceRefused(f"{self.http.url}/v1/log answered without a length: nobody could tell its end")
            yield _HttpAnswer(self.http, response, log, columns, int(rows))

    def close(self) -> None:
        """Hang up."""
        self.http.close()


class _HttpAnswer:
    def __init__(self, http: Http, response: HTTPResponse, log: str, columns: Sequence[str], rows: int) -> None:
        self.rows = rows
        self._http = http
        self._response = response
        self._log = log
        self._columns = columns
        self._arrow = response.getheader("content-type", "").startswith(ARROW)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches() if self._arrow else self._lines()
        self._http.ended(self._response)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with pa.ipc.open_stream(self._response) as reader:
                yield from reader
        except pa.ArrowException as error:  # cut off where the client cannot tell, or octets that are no Arrow
            raise Away(f"{self._http.url} sent Arrow that breaks off or is malformed: {error}") from None

    def _lines(self) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._log, self._columns)
        cut: Exception | None = None
        pieces: list[bytes] = []
        size = 0
        more = True
        while more:
            try:
                piece = self._response.read1(LINES)
            except (OSError, HTTPException) as error:
                cut, piece = error, b""  # what came before is whole lines but for the last
            more = bool(piece)
            pieces.append(piece)
            size += len(piece)
            if not more or (size >= LINES and b"\n" in piece):
                whole, newline, rest = b"".join(pieces).rpartition(b"\n")
                if newline:
                    yield from_ndjson(whole + newline, schema, self._log)
                pieces, size = [rest], len(rest)
        if cut is not None:
            raise cut
        if pieces[0].strip():
            raise Away(f"{self._http.url} broke off in the middle of a row")

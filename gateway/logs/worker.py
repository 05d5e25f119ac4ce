"""A process that makes Arrow of ranges of a log, for the service: one request a line on its standard input, frames on
its standard output. See :mod:`gateway.ledger.logs.arrow_pool`, which starts it and says why it is a process.

::

    stdin     {"dialect": "sqlite", "uri": "…"}                    first
              {"log": "events", "shard": 0, "after": 812, "upto": 1812, "columns": ["kind"], "where": {}, "begin": true}
    stdout    D length octets                                      an encapsulated message: schema or record batch
              E length {"rows": 1000}                              its end
              X length {"error": "…"}                              instead of the end

It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from struct import Struct
from typing import Any, BinaryIO, Final

import msgspec

from gateway.logs import Log
from gateway.logs.columns import fields

FRAME: Final = Struct(">cI")
"""Kind and length of a frame."""
DATA, END, ERROR = b"D", b"E", b"X"


class WithoutPandas(MetaPathFinder):
    """Pandas is not there. PyArrow loads it wherever it is, which takes it a second and is for nothing here."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Raise for the one, and leave all others to those who come after."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


class Hello(msgspec.Struct):
    """First message to a worker."""

    dialect: str
    uri: str
    """Of the ledger's database, as its driver takes it."""


class RangeRequest(msgspec.Struct):
    """A range that is wanted."""

    log: Log
    shard: int
    after: int
    upto: int
    columns: list[str]
    where: dict[str, list[str]]
    begin: bool = False
    """Whether the answer begins with the schema."""


class EndOfRange(msgspec.Struct):
    """The end of an answer."""

    rows: int = 0
    error: str = ""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    from gateway.logs import arrow

    hello = msgspec.json.decode(requests.readline(), type=Hello)
    connection: Any = None
    for line in requests:
        request = msgspec.convert(json.loads(line), RangeRequest)
        rows = 0
        try:
            if connection is None:
                connection = arrow.ArrowConnection(hello.dialect, hello.uri)
            chosen = fields(request.log, request.columns)
            if request.begin:
                _data(answers, arrow.schema_of(chosen).serialize())
            place = (request.log, request.shard, request.after, request.upto)
            for batch in arrow.read(connection, *place, chosen, request.where):
                _data(answers, batch.serialize())
                rows += batch.num_rows
            _end(answers, END, EndOfRange(rows))
        except BrokenPipeError:
            raise
        except Exception as error:  # told to the one who asked; the connection may be dead, and is made anew
            if connection is not None:
                _close(connection)
                connection = None
            _end(answers, ERROR, EndOfRange(error=(str(error).strip().splitlines() or [type(error).__name__])[0]))


def _data(answers: BinaryIO, octets: Any) -> None:
    answers.write(FRAME.pack(DATA, octets.size))
    answers.write(octets)


def _end(answers: BinaryIO, kind: bytes, done: EndOfRange) -> None:
    octets = msgspec.json.encode(done)
    answers.write(FRAME.pack(kind, len(octets)) + octets)
    answers.flush()


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # dead already
        print(f"closing a dead connection: {error}", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Serve on the standard streams; what anything else prints goes where errors go."""
    sys.meta_path.insert(0, WithoutPandas())
    with os.fdopen(os.dup(1), "wb", buffering=1 << 18) as answers:
        os.dup2(2, 1)
        try:
            serve(sys.stdin.buffer, answers)
        except (BrokenPipeError, KeyboardInterrupt):
            os._exit(0)  # nobody reads any more


if __name__ == "__main__":
    main()

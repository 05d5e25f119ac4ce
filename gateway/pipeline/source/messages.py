"""Rows to messages, messages to requests, and what became of each: the writer without Spark.

Every message goes out under an idempotency key, so each repeat is published once: a task that Spark runs
again, a request whose answer was lost, a job that was killed and started again. So a request is repeated while the
gateway is away, and a message while the gateway says that it may be taken later.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from gateway.errors import ConfigurationError, ServiceRefused
from gateway.logs.columns import BINARY
from gateway.pipeline.schema import COLUMNS, MESSAGES
from gateway.pipeline.source.http import Away, Http
from gateway.pipeline.source.notes import note
from gateway.pipeline.source.options import WriteOptions
from gateway.pipeline.source.retry import Retry
from gateway.runtime.clock import block, monotonic_time, wall_time

if TYPE_CHECKING:
    import pyarrow as pa

TAKEN: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "routing_key": ("string",),
    "exchange": ("string",),
    "properties": ("string",),
    "mandatory": ("boolean",),
    "redelivered": ("boolean",),
    "key": ("string",),
    "message_id": ("string",),
}
"""Columns that make a message, and the types that they may have."""
PASSED: Final = frozenset(each.name for each in COLUMNS[MESSAGES]) - set(TAKEN)
"""Columns of the log that say where a message was, and nothing of what is published."""
KEY_MAX: Final = 255
"""Longest key, in characters."""
NAMED_MAX: Final = 20
"""Messages that were refused and are named in the log, of one task."""
TRY: Final = "~"
"""Between a key and the number of the try."""
TRIES_MAX: Final = 100
"""How often a message is tried that is refused each time."""
BURST: Final = 0.5
"""With a rate: how many seconds' worth of messages one request may hold."""
OVERHEAD: Final = 200
"""Octets that a message's JSON has beside its body and its properties, about."""


class Outgoing(msgspec.Struct, omit_defaults=True):
    """One message of a request."""

    payload: str
    key: str
    mandatory: bool
    routing_key: Any = ""
    payload_encoding: str = "string"
    logged: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Properties and headers, as the log has them (:mod:`gateway.notation.logged`)."""


class _Result(msgspec.Struct):
    """What became of one message."""

    status: int
    id: str = ""
    key: str = ""
    resent: bool = False
    problem: dict[str, Any] = {}


class _Results(msgspec.Struct):
    results: list[_Result]


class Counts(msgspec.Struct):
    """What a task, a batch or a run has written."""

    rows: int = 0
    published: int = 0
    repeated: int = 0
    """The key was known: it had been published before."""
    refused: int = 0
    resent: int = 0
    """Sent to the broker a second time, marked as a possible duplicate."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """Problem code -> how many were refused for it."""
    named: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Key and reason of the first that were refused, :data:`NAMED_MAX` at most."""
    began: float = 0.0
    """When the first request was sent, in seconds since 1970; 0: none was."""
    ended: float = 0.0
    """When the one behind the last would have been sent, at the rate that was set; without one, when the last was
    answered."""

    def add(self, other: Counts) -> None:
        """Add these."""
        for name in ("rows", "published", "repeated", "refused", "resent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.named = [*self.named, *other.named][:NAMED_MAX]
        self.began = min(filter(None, (self.began, other.began)), default=0.0)
        self.ended = max(self.ended, other.ended)


_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_results = msgspec.json.Decoder(_Results).decode


def check_columns(columns: Mapping[str, str]) -> None:
    """Check that rows with these columns, name to type, are messages.

    Raises:
        ConfigurationError: a column is missing, of another type, or none that anything is made of. The text names it.
    """
    if "body" not in columns:
        raise ConfigurationError(f"the rows have no column body; a message is made of {', '.join(TAKEN)}")
    for name, kind in columns.items():
        if name in PASSED:
            continue
        if name not in TAKEN:
            raise ConfigurationError(f"nothing is made of the column {name!r}; a message is made of {', '.join(TAKEN)}")
        if kind not in TAKEN[name]:
            raise ConfigurationError(f"the column {name} is {kind}, not {' or '.join(TAKEN[name])}")


class Keys:
    """The key of each row: its own; else that of its message, under the id of this write; else its place and digest.

    The digest is there so that a task that gets its rows in another order the second time publishes some of them twice,
    rather than take one for another and lose it.
    """

    def __init__(self, id: str, write: str, partition: int) -> None:
        """``write`` is the same whenever the same rows are written again, and tells them from all others."""
        self._id = id
        self._place = f"{write}:{partition}"
        self._row = 0

    def of(self, row: Mapping[str, Any], body: bytes) -> str:
        """The key of the next row.

        Raises:
            ConfigurationError: it is too long, or not printable ASCII.
        """
        self._row += 1
        key = row.get("key")
        if not key and self._id and row.get("message_id"):
            key = f"{self._id}:{row['message_id']}"
        if not key:
            digest = hashlib.sha256(body)
            for name in ("exchange", "routing_key", "properties"):
                digest.update(b"\0" + (row.get(name) or "").encode())
            key = f"{self._place}:{self._row}:{digest.hexdigest()[:16]}"
        if len(key) > KEY_MAX or not key.isascii() or not key.isprintable():
            raise ConfigurationError(f"the key {key[:300]!r} is not 1 to {KEY_MAX} characters of printable ASCII")
        return str(key)


def messages_of(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, keys: Keys
) -> Iterator[tuple[str, Outgoing, int]]:
    """Exchange, message and its octets, about, of each row.

    Raises:
        ConfigurationError: a row has no body, or its properties are no such JSON.
    """
    for batch in batches:
        names = [name for name in batch.schema.names if name in TAKEN]
        for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            row = dict(zip(names, values, strict=True))
            yield _message(row, options, keys)


def _message(row: Mapping[str, Any], options: WriteOptions, keys: Keys) -> tuple[str, Outgoing, int]:
    body = row["body"]
    if body is None:
        raise ConfigurationError(f"a row has no body: {_shown(row)}")
    octets = body.encode() if isinstance(body, str) else body
    message = Outgoing(
        payload=b2a_base64(octets, newline=False).decode(),
        payload_encoding="base64",
        key=keys.of(row, octets),
        routing_key=_name(_or(row.get("routing_key"), options.routing_key)),
        mandatory=bool(_or(row.get("mandatory"), options.mandatory)),
    )
    properties = row.get("properties")
    if properties:
        try:
            members = _members(properties)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"properties are no JSON object: {error}: {_shown(row)}") from None
        message.logged = msgspec.Raw(_marked(members) if row.get("redelivered") else properties)
    return _or(row.get("exchange"), options.exchange), message, len(message.payload) + len(properties or "") + OVERHEAD


def _marked(members: dict[str, msgspec.Raw]) -> bytes:
    """Properties of a row that the log may have twice, with the mark of the gateway's own header that says so."""
    reserved = msgspec.json.decode(members["reserved"]) if "reserved" in members else {}
    table = reserved
    if isinstance(reserved, dict) and reserved.keys() == {"type", "value"}:  # wrapped, or no table at all
        table = reserved["value"] if reserved["type"] == "table" else None
    if isinstance(table, dict):
        table["resent"] = "1"
    elif isinstance(table, list):
        table[:] = [*(pair for pair in table if pair[0] != "resent"), ["resent", "1"]]
    else:  # somebody has put something else under the name of that header
        return _encode(members)
    members["reserved"] = msgspec.Raw(_encode(reserved))
    return _encode(members)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _name(name: str) -> Any:
    """A name of the log, as the API takes it: one that is not UTF-8 is an object."""
    return msgspec.Raw(name) if name.startswith(BINARY) else name


def _shown(row: Mapping[str, Any]) -> str:
    return str({name: value for name, value in row.items() if name != "body"})[:300]


class Sender:
    """Sends the messages of one task, in their order within an exchange."""

    def __init__(
        self, http: Http, options: WriteOptions, partition: int = 0,
        clock: Callable[[], float] = monotonic_time, sleep: Callable[[float], None] = block,
        wall: Callable[[], float] = wall_time,
    ) -> None:  # fmt: skip
        self._wall = wall
        self._http = http
        self._options = options
        self._rate = options.rate / options.writers
        self._clock = clock
        self._sleep = sleep
        self._due: float | None = None
        self._lead = partition % options.writers / options.writers
        self._rows_max = (
            options.chunk_rows if not self._rate else max(1, min(options.chunk_rows, int(self._rate * BURST)))
        )
        self.counts = Counts()

    def send(self, messages: Iterable[tuple[str, Outgoing, int]]) -> Counts:
        """Send all of them, and wait until each is settled.

        Raises:
            ServiceUnreachable: the gateway went away and did not come back in time.
            ServiceRefused: it said no; or it will never take a message, and ``on_refused`` is ``fail``.
        """
        chunk: list[Outgoing] = []
        there, size = "", 0
        for exchange, message, octets in messages:
            full = len(chunk) >= self._rows_max or size + octets > self._options.chunk_octets
            if chunk and (full or exchange != there):
                self._chunk(there, chunk)
                chunk, size = [], 0
            there = exchange
            chunk.append(message)
            size += octets
        if chunk:
            self._chunk(there, chunk)
        return self.counts

    def _chunk(self, exchange: str, chunk: list[Outgoing]) -> None:
        self._pace(len(chunk))
        self.counts.rows += len(chunk)
        retry = Retry(self._http.unavailable_timeout, self._clock, self._sleep)
        parts = [chunk]
        while parts:
            part = parts.pop(0)
            try:
                results = self._post(exchange, part)
            except Away as error:
                retry.wait(error, error.retry_after)
                parts.insert(0, part)
                continue
            if results is None:  # more than the gateway takes at once
                parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            left = [message for message, result in zip(part, results, strict=True) if not self._settle(message, result)]
            if len(left) < len(part):
                retry.progress()
            if left:
                retry.wait(Away(f"{self._http.url} takes {len(left)} messages later: {_why(results)}"))
                parts.insert(0, left)
        self.counts.ended = max(self.counts.ended, self._wall())

    def _post(self, exchange: str, part: Sequence[Outgoing]) -> list[_Result] | None:
        """What became of each; None: the request was too large, and can be divided."""
        path = f"/v1/brokers/{_segment(self._options.broker)}/exchanges/{_segment(exchange)}:publish"
        try:
            with self._http.exchange("POST", path, body=_encode({"messages": part})) as answer:
                octets = answer.read()
                self._http.ended(answer)
                status = answer.status
        except ServiceRefused as error:
            if "[body_too_large]" in str(error) and len(part) > 1:
                return None
            if "[body_too_large]" in str(error) and self._options.on_refused == "count":
                return [_Result(413, problem={"detail": str(error)})]
            raise
        try:
            found = _results(octets).results
        except msgspec.DecodeError:
            found = []
        if status != 207 or len(found) != len(part):
            raise ServiceRefused(
                f"{self._http.url}{path} answered {status} with {len(found)} results for {len(part)} messages; "
                "is it a gateway?"
            )
        return found

    def _settle(self, message: Outgoing, result: _Result) -> bool:
        """Count a result; whether it is final."""
        if result.status in (200, 202):
            self.counts.resent += result.resent
            if result.key == "repeated":
                self.counts.repeated += 1
            else:
                self.counts.published += 1
            return True
        if result.problem.get("retryable"):
            return False
        if self._options.retry_refused and result.key == "repeated" and self._next_try(message):
            return False
        self.counts.refused += 1
        said = f"{result.status} {result.problem.get('code', '')}: {result.problem.get('detail', '')}"
        if self._options.on_refused == "fail":
            raise ServiceRefused(f"the message with key {message.key} was not taken: {said}")
        code = str(result.problem.get("code") or result.status)
        self.counts.reasons[code] = self.counts.reasons.get(code, 0) + 1
        if len(self.counts.named) < NAMED_MAX:
            self.counts.named.append((message.key, said))
            note("pipeline.message_refused", key=message.key, id=result.id, reason=said)
        return True

    def _next_try(self, message: Outgoing) -> bool:
        """Give a message that was refused before the key of its next try; False: it has had enough of them."""
        key, mark, tries = message.key.rpartition(TRY)
        number = int(tries) + 1 if mark and tries.isdigit() else 2
        if number > TRIES_MAX:
            return False
        message.key = f"{key if number > 2 else message.key}{TRY}{number}"
        return len(message.key) <= KEY_MAX

    def _pace(self, rows: int) -> None:
        """Wait until the next request is due."""
        self._wait_until_due(rows)
        now = self._wall()
        self.counts.began = self.counts.began or now
        self.counts.ended = now + (rows / self._rate if self._rate else 0.0)

    def _wait_until_due(self, rows: int) -> None:
        if not self._rate:
            return
        now = self._clock()
        if self._due is None:  # the tasks of a write do not all begin at the same moment
            self._due = now + self._lead * rows / self._rate
        if self._due > now:
            self._sleep(self._due - now)
        self._due = max(self._due, now - BURST) + rows / self._rate


def _segment(name: str) -> str:
    """A name of the log as one segment of a path. The default exchange, whose name is empty, is ``amq.default``."""
    if name.startswith(BINARY):
        return quote(b64decode(msgspec.json.decode(name, type=dict[str, str])["value"]), safe="")
    return quote(name, safe="") or "amq.default"


def _why(results: Iterable[_Result]) -> str:
    return next((str(each.problem.get("detail", "")) for each in results if each.problem.get("retryable")), "")

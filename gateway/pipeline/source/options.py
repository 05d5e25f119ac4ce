"""The options of the source and the sink, and where their secrets come from.

Spark shows the options of a query to anybody who sees its plan, its pages or its checkpoint, so a secret is never one
of them: what is an option is the *file* that holds it, on every node that reads or writes. Where there is none, the
secret is in the environment. Names are compared without case and underscores, so that ``failOnDataLoss`` is
``fail_on_data_loss``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gateway.config import Seconds
from gateway.errors import ConfigurationError
from gateway.logs import Log, columns
from gateway.pipeline.source.offsets import RANGE_MAX, Position, position_of
from gateway.validation import explain

API_KEY: Final = "GATEWAY_API_KEY"
"""Variable that holds the API key where no file is named."""
LEDGER_URL: Final = "GATEWAY_LEDGER_URL"
"""Variable that holds the ledger's URL where no file is named."""
SECRETS: Final[Mapping[str, str]] = {
    "apikey": f"api_key_file, or the variable {API_KEY}",
    "key": f"api_key_file, or the variable {API_KEY}",
    "token": f"api_key_file, or the variable {API_KEY}",
    "authorization": f"api_key_file, or the variable {API_KEY}",
    "password": "a file",
    "ledgerurl": f"ledger_url_file, or the variable {LEDGER_URL}",
    "ledgerdsn": f"ledger_url_file, or the variable {LEDGER_URL}",
    "dsn": f"ledger_url_file, or the variable {LEDGER_URL}",
}
"""What people would write as an option, and what to do instead."""
SPARKS: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of Spark itself, which it hands on."""
FILTER_OPTIONS: Final = ("tap", "broker", "kind", "version", "queue", "exchange", "routing_key", "origin")
"""Options that filter, and the columns on which they do."""
LISTS: Final = ("tap", "broker", "kind")
"""Those that take several values."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class Connection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both directions need: the gateway, and how long to wait for it."""

    url: str
    """The gateway: ``http://HOST:PORT`` or ``https://HOST:PORT``."""
    api_key_file: str = ""
    """File that holds the API key, on each node; else it is in the variable ``GATEWAY_API_KEY``, if one is needed."""
    ca_file: str = ""
    """File of the certificates (PEM) that the gateway's is checked against; empty: those of the system."""
    timeout: Annotated[float, Meta(gt=0)] = 60.0
    """How long the gateway may say nothing, in seconds."""
    unavailable_timeout: Seconds = 120.0
    """How long a gateway is waited for that was there and went away, in seconds. At first contact nobody waits."""


class ReadOptions(Connection, frozen=True, kw_only=True):
    """What to read, and how."""

    log: Literal["events", "messages"]
    """``events``: what happened to messages. ``messages``: what taps spooled."""
    transport: Literal["http", "adbc"] = "http"
    """``adbc`` reads rows straight from the ledger; all the rest goes through the gateway nevertheless."""
    format: Literal["auto", "arrow", "ndjson"] = "auto"
    """How rows come over HTTP. ``auto``: as Arrow where the gateway can, else as NDJSON."""
    ledger_url_file: str = ""
    """For ``adbc``: file that holds the ledger's URL, on each node; else that is in ``GATEWAY_LEDGER_URL``."""
    start: str = EARLIEST
    """Where to begin: ``earliest``, ``latest``, or a position as JSON. A stream that has a checkpoint or a cursor goes
    on where it was."""
    end: str = LATEST
    """Where a batch ends: ``latest``, what there is when it is planned, or a position as JSON."""
    tap: str = ""
    """Only messages of these taps, with commas between them. This filter and those that follow are for the gateway,
    which sends no other rows."""
    broker: str = ""
    """Only rows of these brokers, with commas between them."""
    kind: str = ""
    """Only events of these kinds, with commas between them."""
    version: str = ""
    """Only rows of this AMQP version."""
    queue: str = ""
    """Only messages from this queue."""
    exchange: str = ""
    """Only rows of this exchange."""
    routing_key: str = ""
    """Only rows of this routing key."""
    origin: str = ""
    """Only events of messages that came this way."""
    pushdown: bool = False
    """Send filters on these columns to the gateway, and read no pieces that filters on ``shard`` and ``sequence`` rule
    out; a batch only. Spark must have ``spark.sql.python.filterPushdown.enabled``."""
    fail_on_data_loss: bool = True
    """Fail where rows are gone that were not read, and name them. ``false``: pass over them, and say so in the log."""
    rows_max: Annotated[int, Meta(ge=1, le=RANGE_MAX)] = 200_000
    """Most rows of one task."""
    max_rows: Annotated[int, Meta(ge=1)] = 1_000_000
    """Most rows of one batch of a stream."""
    cursor: str = ""
    """Of a stream: the cursor that remembers in the gateway how far it is. Retention keeps what is not read yet, and
    only one query at a time may read under a name. Empty: none."""
    owner: str = ""
    """Name of the reader, as others see it. The same one may come back at once; another has to wait for 60 s of
    silence.
    Empty: a new one for each query."""
    take_over: bool = False
    """Take the cursor from its present holder."""
    poll: Annotated[float, Meta(ge=0.01)] = 0.1
    """How often a stream that has read everything looks for more, in seconds."""

    @property
    def filters(self) -> dict[str, str]:
        """The filters, by the name of their parameter."""
        return {name: value for name in FILTER_OPTIONS if (value := getattr(self, name))}

    def position(self, option: Literal["start", "end"]) -> Position | None:
        """The position that an option names; None: it is a word."""
        text: str = getattr(self, option)
        return None if text in (EARLIEST, LATEST) else position_of(text, option)


class WriteOptions(Connection, frozen=True, kw_only=True):
    """Where to write, and how."""

    broker: str
    """The broker that messages are published to."""
    exchange: str = ""
    """The exchange, for rows that name none; empty: the default exchange."""
    routing_key: str = ""
    """The routing key, for rows that have none."""
    mandatory: bool = True
    """Whether a message that no queue takes is refused; with ``false`` it is gone."""
    id: str = ""
    """What the keys of this write begin with. A row's key is its column ``key``; else this and its ``message_id``; else
    this and its place and digest. Empty: the query's id and batch in a stream, a new one for each batch write."""
    chunk_rows: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Most messages of one request."""
    chunk_octets: Annotated[int, Meta(ge=1)] = 8 << 20
    """Most octets of one request, unless a single message has more."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most messages a second, over all tasks; 0: as many as go. It needs ``writers``."""
    writers: Annotated[int, Meta(ge=1)] = 1
    """How many tasks share ``rate``: the partitions of what is written."""
    on_refused: Literal["fail", "count"] = "fail"
    """What to do about a message that the gateway or the broker will never take: ``fail`` at the first one, or
    ``count`` it, name it in the log and go on."""
    retry_refused: bool = False
    """Whether a message that was refused for good by an earlier attempt is tried once more, under another key: its key,
    ``~`` and the number of the try. What refused it has kept nothing of it."""
    report_file: str = ""
    """File on the driver in which the counts are left, as JSON; a stream adds its batches up."""


Options = TypeVar("Options", ReadOptions, WriteOptions)


def parse(kind: type[Options], given: Mapping[str, str]) -> Options:
    """The options from what Spark hands over.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong, or would show a secret. The text names it, and never
            its value if that may be a secret.
    """
    names = {_plain(field): field for field in kind.__struct_fields__}
    found: dict[str, Any] = {}
    for name, value in given.items():
        plain = _plain(name)
        if plain in SECRETS and plain not in names:
            raise ConfigurationError(f"{name} is no option, for Spark shows options to everybody: use {SECRETS[plain]}")
        if plain in names:
            found[names[plain]] = value
        elif plain not in SPARKS:
            raise ConfigurationError(f"there is no option {name!r}; there are {', '.join(sorted(names.values()))}")
    missing = [field for field in required(kind) if field not in found]
    if missing:
        raise ConfigurationError(f"the option {missing[0]} is missing")
    try:
        options = msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        misfit = explain(error, found, kind, strict=False, what="option")
        raise ConfigurationError(f"the option {misfit}") from None
    _check_url(options.url)
    if isinstance(options, ReadOptions):
        if options.end == EARLIEST:
            raise ConfigurationError("end is earliest: nothing would be read")
        for name in options.filters:
            if name not in columns.FILTERS[Log(options.log)]:
                raise ConfigurationError(f"the log of {options.log} is not filtered by {name}")
        options.position("start")
        options.position("end")
    return options


def required(kind: type[msgspec.Struct]) -> Iterable[str]:
    """Fields without a default."""
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("url has a login in it, and Spark shows options to everybody: use an API key")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(f"url is {url!r}, not http://HOST:PORT or https://HOST:PORT")


# --------------------------------------------------------------------------------------------------- secrets


def api_key(options: Connection, environ: Mapping[str, str] = os.environ) -> str:
    """The API key; empty: none.

    Raises:
        ConfigurationError: a file is named that this node does not have, and there is no variable either.
    """
    return secret("api_key_file", options.api_key_file, API_KEY, environ)


def ledger_url(options: ReadOptions, environ: Mapping[str, str] = os.environ) -> str:
    """The ledger's URL, for ``adbc``.

    Raises:
        ConfigurationError: there is none.
    """
    found = secret("ledger_url_file", options.ledger_url_file, LEDGER_URL, environ)
    if not found:
        raise ConfigurationError(
            f"transport=adbc needs the ledger's URL: ledger_url_file, or the variable {LEDGER_URL}"
        )
    return found


def secret(option: str, path: str, variable: str, environ: Mapping[str, str]) -> str:
    """What the file holds; without one, what the variable holds; empty: nothing."""
    if not path:
        return environ.get(variable, "")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        if found := environ.get(variable, ""):
            return found
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{option} {path}: {why}; and this node has no variable {variable}") from None

"""What the logs look like to Spark: the columns of each, their types and what they mean.

Both logs are numbered per shard without gaps, and a position says of each shard how far one has read,
``{"0": 812, "3": 77}``. The service sends the same columns as Arrow and as NDJSON; a caller that asks for some of them
gets those, in the order of the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEMA_VERSION: Final = 1
"""Grows when a column changes its meaning; one that is added does not change it."""
EVENTS: Final = "events"
"""The log of what happened to messages: one row an event."""
MESSAGES: Final = "messages"
"""The log of messages that taps have spooled: one row a message, with its body."""


class Column(NamedTuple):
    """A column: its name, its type as Spark's DDL spells it, and what it holds."""

    name: str
    type: str
    meaning: str


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    EVENTS: (
        Column("shard", "int", "shard of the ledger"),
        Column("sequence", "bigint", "number within the shard, without gaps"),
        Column("message_id", "string", "the gateway's id of the message, a UUIDv7 with hyphens"),
        Column("kind", "string", "what happened: an event kind of the ledger"),
        Column("at", "timestamp", "when, UTC, microseconds"),
        Column("broker", "string", "broker that it concerns, empty for none"),
        Column("version", "string", "AMQP version spoken with it: 0-8, 0-9-1, 0-10 or empty"),
        Column("detail", "string", "the rest, as a JSON object"),
        # What follows is of the message; a reader that asks for none of it spares the ledger a join.
        Column("accepted_at", "timestamp", "when the message came to the gateway"),
        Column("source_broker", "string", "broker that the message was published to or taken from"),
        Column("source_version", "string", "AMQP version there"),
        Column("exchange", "string", "exchange it was published to"),
        Column("routing_key", "string", "its routing key"),
        Column("size", "bigint", "octets of the body"),
        Column("sha256", "string", "digest of the body, 64 hexadecimal digits"),
        Column("origin", "string", "how it came: http, bridge:NAME, subscription:NAME and the like"),
    ),
    MESSAGES: (
        Column("shard", "int", "shard of the ledger"),
        Column("sequence", "bigint", "number within the shard, without gaps"),
        Column("message_id", "string", "the gateway's id of the message, a UUIDv7 with hyphens"),
        Column("tap", "string", "tap that spooled it"),
        Column("accepted_at", "timestamp", "when it was spooled, UTC, microseconds"),
        Column("broker", "string", "broker that it was taken from"),
        Column("version", "string", "AMQP version spoken there"),
        Column("queue", "string", "queue that it was taken from"),
        Column("exchange", "string", "exchange it had been published to"),
        Column("routing_key", "string", "its routing key"),
        Column("redelivered", "boolean", "the broker, or the gateway, knows that it may have come before"),
        Column("origin_id", "string", "id by which copies of one message are known for that; empty: none"),
        Column("properties", "string", "all properties and headers with their types, as the API writes a message"),
        Column("body", "binary", "the body, octet for octet"),
        Column("size", "bigint", "octets of the body"),
        Column("sha256", "string", "digest of the body, 64 hexadecimal digits"),
    ),
}
"""Log -> its columns, in order."""


def ddl(log: str, names: tuple[str, ...] = ()) -> str:
    """The schema of a log as Spark's DDL, of all columns or of these, in the order of the log."""
    return ", ".join(f"{each.name} {each.type}" for each in COLUMNS[log] if not names or each.name in names)

"""``python -m tests.translation.live.conversion``: what Broker-J makes of a message by itself, as a table.

Each sample is published in one version and consumed in another, by what the two versions write and read natively
(``native.py``): nothing of the gateway's translation is in between. Then the same samples go through the gateway, from
the one version to the other and back again, and it is seen whether they are what they were.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.amqp.message import PROPERTY_NAMES, Message, Properties, ReplyTo
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Timestamp, Typed, Value, type_of
from gateway.errors import GatewayError
from gateway.fidelity import forward
from gateway.upstreams import Delivery, Upstream
from gateway.versions import VERSION_NAMES
from tests.translation.live import native
from tests.translation.live.__main__ import servers
from tests.translation.live.compare import canonical, differences, property_of
from tests.translation.live.ends import ENDS, End, Servers
from tests.translation.live.run import upstream
from tests.translation.live.values import A_UUID, TYPES

VERSIONS: Final = VERSION_NAMES
END: Final[Mapping[str, End]] = {end.version: end for end in ENDS if end.broker == "brokerj"}
PATIENCE: Final = 0.5
"""How long a message that does not come is waited for, in seconds."""
HOUSEKEEPING: Final = 45.0
"""How long Broker-J may take to delete what it cannot convert, in seconds: it looks at its queues every 30."""
NOT_DELIVERED: Final = "not delivered"
BODY: Final = b"body"
PACKED: Final = gzip.compress(BODY, mtime=0)


@dataclass(frozen=True)
class Sample:
    """One row."""

    name: str
    properties: Properties
    body: bytes = BODY
    versions: tuple[str, ...] = VERSIONS
    """Those that can say it."""


CLASSIC: Final = ("0-8", "0-9", "0-9-1")
NATIVE: Final = ("0-10",)


def _header(kind: str, value: Value, note: str = "") -> Sample:
    versions = tuple(version for version in VERSIONS if kind in END[version].types)
    return Sample(f"header: {kind}{note}", Properties(headers={"a": value}), versions=versions)


PROPERTY_SAMPLES: Final = (
    Sample("no properties", Properties()),
    Sample("content-type", Properties(content_type="text/plain")),
    Sample("content-type, not UTF-8", Properties(content_type="caf\udce9"), versions=CLASSIC),
    Sample("content-encoding", Properties(content_encoding="deflate")),
    Sample("packed body, content-encoding `gzip`", Properties(content_encoding="gzip"), PACKED),
    Sample("other body, content-encoding `gzip`", Properties(content_encoding="gzip")),
    Sample("delivery-mode", Properties(delivery_mode=2)),
    Sample("priority 7", Properties(priority=7)),
    Sample("priority 200", Properties(priority=200), versions=CLASSIC),
    Sample("correlation-id", Properties(correlation_id="c-1")),
    Sample("correlation-id, empty", Properties(correlation_id="")),
    Sample("correlation-id, not UTF-8", Properties(correlation_id=b"\xff"), versions=NATIVE),
    Sample("correlation-id of 300 octets", Properties(correlation_id="c" * 300), versions=NATIVE),
    Sample("reply-to", Properties(reply_to="answers")),
    Sample("reply-to, empty", Properties(reply_to="")),
    Sample("reply-to, not UTF-8", Properties(reply_to="caf\udce9"), versions=CLASSIC),
    Sample("reply-to with exchange", Properties(reply_to=ReplyTo("amq.direct", "answers")), versions=NATIVE),
    Sample("reply-to of 300 octets", Properties(reply_to=ReplyTo("x" * 150, "k" * 150)), versions=NATIVE),
    Sample("expiration", Properties(expiration="600000")),
    Sample("message-id, no UUID", Properties(message_id="m-1"), versions=CLASSIC),
    Sample("message-id, a UUID", Properties(message_id=A_UUID)),
    Sample("timestamp", Properties(timestamp=1_709_208_000), versions=CLASSIC),
    Sample("type", Properties(type="order"), versions=CLASSIC),
    Sample("user-id", Properties(user_id="guest")),
    Sample("app-id", Properties(app_id="billing")),
    Sample("app-id, empty", Properties(app_id="")),
    Sample("app-id of 300 octets", Properties(app_id="a" * 300), versions=NATIVE),
    Sample("cluster-id", Properties(cluster_id="east"), versions=("0-8", "0-9")),
    Sample("headers, none in them", Properties(headers={})),
    Sample("header without a name", Properties(headers={"": 1})),
    Sample("header `x-jms-type`", Properties(headers={"x-jms-type": "order"})),
)
HEADER_SAMPLES: Final = (
    *(_header(kind, TYPES[kind][-1]) for kind in ("void", "bool", "int8", "int16", "int32", "int64")),
    *(_header(kind, TYPES[kind][-1]) for kind in ("uint8", "uint16", "uint32", "uint64")),
    _header("float", Typed("float", 1.5)),
    _header("double", 0.1),
    _header("decimal", Decimal("1.25")),
    _header("dec64", Typed("dec64", Decimal("1.25"))),
    _header("timestamp", Timestamp(1_709_208_000)),
    _header("char", Typed("char", "a")),
    _header("char-utf32", Typed("char-utf32", "é")),
    _header("uuid", UUID(A_UUID)),
    _header("string", "é"),
    _header("string", Typed("string", b"\xff"), ", not UTF-8"),
    _header("bytes", b"\x00\xff"),
    *(_header(kind, Typed(kind, "a")) for kind in ("str8", "str8-latin", "str8-utf16", "str16-latin", "str16-utf16")),
    *(_header(kind, Typed(kind, b"\x00\xff")) for kind in ("vbin8", "vbin16")),
    *(
        _header(f"bin{bits}", Typed(f"bin{bits}", b"\xff" * (bits // 8)))
        for bits in (8, 16, 32, 40, 64, 72, 128, 256, 512, 1024)
    ),
    _header("bit", Typed("bit", True)),
    _header("typed-array", Typed("typed-array", bytes.fromhex("2100000002ffffffff00000007"))),
    _header("struct32", Typed("struct32", bytes.fromhex("04010000"))),
    _header("table", {"a": {"b": 1}}),
    _header("table", {}, ", empty"),
    _header("array", [1, "two"]),
    _header("array", [{"a": 1}], " of tables"),
)
SAMPLES: Final = (*PROPERTY_SAMPLES, *HEADER_SAMPLES)

# ----------------------------------------------------------------------------------------------- what comes of it


def shown(name: str, value: Any) -> str:
    """A value of a property, short."""
    if value is None:
        return "absent"
    if isinstance(value, ReplyTo):
        return f"`{value.exchange}` `{value.routing_key}`"
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return f"`{text if len(text) <= 48 else text[:40] + '…'}`" if text else "empty"


def shown_header(value: Value) -> str:
    """A header value with its type, short."""
    plain = value.value if isinstance(value, Typed) else value
    text = repr(plain) if isinstance(plain, str | bytes | dict | list) else str(plain)
    return type_of(value) if plain is None or len(text) > 24 else f"{type_of(value)} `{text}`"


def changes(sample: Sample, body: bytes, got: Properties, added: Properties) -> str:
    """What became of a sample, in a cell. ``added``: what the broker puts on a message without properties."""
    found = []
    if body != sample.body:
        found.append("body empty" if not body else "body unpacked" if body == BODY else "body changed")
    for name in (*(name for name in PROPERTY_NAMES if name != "headers"), "headers"):
        before, after = getattr(sample.properties, name), getattr(got, name)
        if property_of(sample.properties, name) == property_of(got, name):
            continue
        if name == "expiration" and before is not None and after is not None and int(after) <= int(before):
            continue
        if before is None and (property_of(added, name) == property_of(got, name) or name == "timestamp"):
            continue
        if name == "headers":
            found += _header_changes(before, after)
        else:
            label = name.replace("_", "-")
            subject = "" if sample.name.startswith(label) else f"{label} "
            found.append(f"{subject}{'lost' if after is None else shown(name, after)}")
    return "; ".join(found) or "kept"


def _header_changes(before: Mapping[str, Value] | None, after: Mapping[str, Value] | None) -> list[str]:
    if after is None:
        return ["headers absent"]
    if before is None:
        return _added(after) or ["headers empty"]
    lost = [f"`{key}` lost" for key in before if key not in after]
    changed = [
        shown_header(after[key]) for key in before if key in after and canonical(before[key]) != canonical(after[key])
    ]
    return [*lost, *changed, *_added({key: value for key, value in after.items() if key not in before})]


def _added(headers: Mapping[str, Value]) -> list[str]:
    return [f"header `{key}`: {shown_header(value)}" for key, value in headers.items()]


async def converted(samples: Sequence[Sample], source: str, target: str, brokers: Servers) -> dict[str, str]:
    """Name of a sample -> what Broker-J makes of it between two versions."""
    cells: dict[str, str] = {}
    left: dict[str, str] = {}
    added = Properties()
    async with upstream(END[source], brokers) as publisher, upstream(END[target], brokers) as consumer:
        for sample in samples:
            if source not in sample.versions:
                continue
            for is_last in (False, True):  # where the machine stalls, the housekeeping may be quicker than the consumer
                queue = f"conversion.{uuid4().hex[:12]}"
                await publisher.declare_queue(queue)
                try:
                    await publisher.publish("", queue, native.message(source, sample.properties, sample.body))
                except GatewayError:
                    cells[sample.name] = "cannot be published: the broker hangs up"
                    await publisher.wait_up(10)
                else:
                    cells[sample.name], got = await _consumed(sample, target, consumer, queue, added)
                    if sample.properties == Properties():
                        added = got
                    if cells[sample.name] == NOT_DELIVERED and is_last:
                        left[sample.name] = queue
                        continue
                await publisher.delete_queue(queue)
                if cells[sample.name] != NOT_DELIVERED:
                    break
        cells |= await _kept(left, publisher)
    return cells


async def _kept(left: Mapping[str, str], publisher: Upstream) -> dict[str, str]:
    """Name of a sample that was not delivered -> what has become of it when Broker-J has looked at its queue."""
    end = asyncio.get_running_loop().time() + HOUSEKEEPING
    cells = {}
    waiting = dict(left)
    while waiting:
        for name, queue in tuple(waiting.items()):
            gone = not (await publisher.query_queue(queue)).message_count
            if gone or asyncio.get_running_loop().time() > end:
                cells[name] = "the message is deleted" if gone else "held back"
                await publisher.delete_queue(waiting.pop(name))
        await asyncio.sleep(0.5)
    return cells


async def _consumed(
    sample: Sample, target: str, consumer: Upstream, queue: str, added: Properties
) -> tuple[str, Properties]:
    try:
        deliveries = await consumer.fetch(queue, 1, PATIENCE)
    except GatewayError:
        await consumer.wait_up(10)
        return "ends the consumer's session (541)", added
    if not deliveries:
        return NOT_DELIVERED, added
    (delivery,) = deliveries
    delivery.settle(Settlement.ACCEPT)
    got = native.received(target, delivery.message)
    return changes(sample, delivery.message.body, got, added), got


async def through_the_gateway(
    samples: Sequence[Sample], source: str, target: str, brokers: Servers
) -> dict[str, list[str]]:
    """Name of a sample -> what is not the same when it was there and back through the gateway's translation."""
    chosen = [sample for sample in samples if source in sample.versions]
    sent = [Message(sample.body, sample.properties) for sample in chosen]
    async with upstream(END[source], brokers) as ours, upstream(END[target], brokers) as theirs:
        messages = sent
        for one in (ours, theirs, ours):
            queue = f"conversion.{uuid4().hex[:12]}"
            await one.declare_queue(queue)
            for message in messages:
                assert (await one.publish("", queue, forward(message, {"hops": "1"}))).routed
            deliveries: list[Delivery] = []
            while len(deliveries) < len(sent):
                some = await one.fetch(queue, len(sent), 5.0)
                assert some, f"{len(deliveries)} of {len(sent)} came"
                deliveries += some
            for delivery in deliveries:
                delivery.settle(Settlement.ACCEPT)
            messages = [delivery.message for delivery in deliveries]
            await one.delete_queue(queue)
    return {
        sample.name: differences(END[source], one, other, 60.0, END[source].keeps_order)
        for sample, one, other in zip(chosen, sent, messages, strict=True)
    }


# -------------------------------------------------------------------------------------------------------- the table

COLUMNS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "0-8 to 0-9-1 → 0-10": tuple((version, "0-10") for version in CLASSIC),
    "0-10 → 0-8 to 0-9-1": tuple(("0-10", version) for version in CLASSIC),
    "0-10 → 0-10": (("0-10", "0-10"),),
    "between 0-8, 0-9 and 0-9-1": tuple((source, target) for source in CLASSIC for target in CLASSIC),
}
"""Heading -> the pairs that the column is about; where they do not agree, each says its own."""

Seen = Mapping[tuple[str, str], Mapping[str, str]]


async def look(brokers: Servers) -> tuple[dict[tuple[str, str], dict[str, str]], dict[tuple[str, str], dict[str, Any]]]:
    """What Broker-J does with every sample in every pair, and what is changed by the gateway."""
    pairs = [pair for column in COLUMNS.values() for pair in column]
    cells = await asyncio.gather(*(converted(SAMPLES, *pair, brokers) for pair in pairs))
    kept = await asyncio.gather(*(through_the_gateway(SAMPLES, *pair, brokers) for pair in pairs))
    return dict(zip(pairs, cells, strict=True)), dict(zip(pairs, kept, strict=True))


def table(seen: Seen) -> str:
    """All samples as markdown; those that are kept everywhere in one sentence."""
    rows = []
    kept = []
    for sample in SAMPLES:
        cells = [_cell(sample, column, seen) for column in COLUMNS.values()]
        if set(cells) <= {"kept", ""}:
            kept.append(sample.name)
        else:
            rows.append(f"| {sample.name} | " + " | ".join(cells) + " |")
    heading = f"| | {' | '.join(COLUMNS)} |"
    same = f"Kept in every direction: {'; '.join(kept)}."
    return "\n".join([heading, "|" + " --- |" * (len(COLUMNS) + 1), *rows, "", same])


def _cell(sample: Sample, pairs: Sequence[tuple[str, str]], seen: Seen) -> str:
    said: dict[str, list[str]] = {}
    for pair in pairs:
        if sample.name in seen[pair]:
            said.setdefault(seen[pair][sample.name], []).append(" → ".join(pair))
    if len(said) <= 1:
        return next(iter(said), "")
    return "; ".join(f"{', '.join(who)}: {what}" for what, who in said.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if the gateway does not keep everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.translation.live.conversion", description=__doc__)
    parser.add_argument("--servers", metavar="FILE", help="running servers, instead of private ones")
    options = parser.parse_args(arguments)
    with servers(options.servers) as brokers:
        seen, through = asyncio.run(look(brokers))
    print(table(seen))
    changed = [
        f"{' → '.join(pair)}: {name}: {what}" for pair, found in through.items() for name, what in found.items() if what
    ]
    for line in changed:
        print(line, file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())

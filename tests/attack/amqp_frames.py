"""Octets that AMQP forbids, sizes that lie, and connections that only stay: the embedded broker refuses and goes on."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
from typing import Final

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Consume, DeleteQueue, Done, OpenChannel, Operation, Publish
from gateway.session import Role, Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.attack.client import at_once, talk
from tests.attack.judge import Record
from tests.attack.lab import SLOW, Target
from tests.broker.raw import Raw
from tests.fuzz.broker import STATES, tape
from tests.fuzz.states import LIMITS
from tests.hostile import (
    command,
    content,
    control,
    frame,
    frame010,
    headers010,
    long,
    map010,
    method,
    nested_arrays,
    nested_maps,
    nested_tables,
    short,
    transfer,
)

MIB: Final = 1 << 20
AGREED: Final = LIMITS.channel_max
"""How many channels the taped client agrees to."""
KINDS: Final = (0, 1, 2, 3, 4, 7, 8, 9, 65, 255)
PAYLOADS: Final[tuple[bytes, ...]] = (
    b"", b"\x00", bytes(4), bytes(8), bytes(14), b"\xff" * 14, struct.pack(">HH", 10, 11), struct.pack(">HH", 60, 40),
    struct.pack(">HH", 99, 99), struct.pack(">HHQ", 60, 0, 2**63), b"\xce" * 100, bytes(4_096),
)  # fmt: skip
CHANNELS: Final = (0, 1, 2, 2_047, 2_048, 65_535)
SIZES: Final = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 131_065, 131_064, 1 << 24, 0, 1)
FIRST: Final[tuple[bytes, ...]] = (
    b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"AMQP\x01\x01\x00\x0b",
    b"AMQP\xff\xff\xff\xff", b"AMQ", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes.fromhex("16030100a5010000a1"),
    b"\x00" * 8, b"\xff" * 8, b"SSH-2.0-x\r\n", b"amqp\x00\x00\x09\x01", b"AMQP\x00\x00\x09\x02",
)  # fmt: skip
"""What else may come first on a connection."""


def _bombs() -> dict[str, bytes]:
    """Name -> a table of 0-8 and 0-9-1 that costs much, or lies."""
    return {
        "nested tables": nested_tables(9_000),
        "nested arrays": nested_arrays(9_000),
        "a length of 2 GiB": struct.pack(">I", 0x7FFFFFFE) + bytes(20),
        "entries": long(b"".join(short(b"%d" % number) + b"t\x01" for number in range(12_000))),
        "void": long(b"\x01aA" + long(b"V" * 120_000)),
        "a string that lies": long(b"\x01aS" + struct.pack(">I", 0xFFFFFFFF)),
        "an array that lies": long(b"\x01aA" + struct.pack(">I", 0xFFFFFFFF)),
        "an unknown tag": long(b"\x01a\x01"),
        "no UTF-8": long(short(b"\xff\xfe") + b"t\x01"),
        "decimals": long(b"".join(short(b"%d" % number) + b"D\xff\xff\xff\xff\xff" for number in range(4_000))),
    }


def _maps() -> dict[str, bytes]:
    """The same of 0-10."""
    return {
        "nested maps": nested_maps(5_000),
        "a length of 2 GiB": struct.pack(">I", 0x7FFFFFFE) + bytes(20),
        "a count that lies": map010(0x40000000, b"\x01a\xf0"),
        "void": map010(1, b"\x01a\xaa" + long(b"\xf0" + struct.pack(">I", 0x10000000))),
        "no UTF-8": map010(1, b"\x01a\x95\x00\x02\xff\xff"),
        "structs": map010(1, b"\x01a\xab" + long(b"\x04\x03\xff\xff")),
    }


async def frames(target: Target, record: Record) -> None:
    """Every kind of frame on every channel, in every state of every version, on a connection of its own."""
    tries: list[tuple[Version, str, bytes]] = []
    for version in (V0_8, V0_9_1):
        for state in ("new", *STATES):
            for kind in KINDS:
                for channel in CHANNELS:
                    tries += [(version, state, frame(kind, channel, payload)) for payload in PAYLOADS]
            tries += [(version, state, struct.pack(">BHI", 1, 1, size) + bytes(64)) for size in SIZES]
            for table in _bombs().values():
                tries.append((version, state, method(10, 11, table + short(b"PLAIN") + long(b"") + short(b"en"), 0)))
                tries.append((version, state, method(50, 10, b"\x00\x00" + short(b"q") + b"\x00" + table, 1)))
                tries.append((version, state, content(Role.SERVER, 1, b"\x20\x00" + table)))
    for state in ("new", *STATES):
        for kind in (0, 1, 2, 3, 4, 15, 255):
            for track in (0, 1, 2, 15):
                for flags in (0x00, 0x0F, 0x08, 0xFF):
                    tries.append((V0_10, state, frame010(bytes(8), kind, track, 0, flags)))
        tries += [(V0_10, state, frame010(b"", 1, 1, 0, 0x0F, size)) for size in (0, 1, 11, 65_535)]
        for table in _maps().values():
            tries.append((V0_10, state, control(1, 2, 0x0100, table)))
            tries.append((V0_10, state, command(8, 1, 0x0001, short(b"q") + table)))
            tries.append((V0_10, state, transfer(Role.SERVER, headers010(table))))
    chosen = tries[:: max(1, len(tries) // target.scaled(2_400, 60))]

    async def one(version: Version, state: str, octets: bytes) -> None:
        chunks = () if state == "new" else tape(version, state)
        began = time.monotonic()
        await talk(target.amqp_port, *chunks, octets, within=0.15)
        record.check(time.monotonic() - began < 10, f"{version.value} in state {state}: {octets[:20].hex()}")

    await at_once(16, [one(*each) for each in chosen])
    for octets in FIRST:
        said = await talk(target.amqp_port, octets, within=0.3)
        record.check(len(said) < 1_000, f"{octets[:8]!r}: {len(said)} bytes were said")


async def noise(target: Target, record: Record) -> None:
    """Random octets behind a good beginning."""
    source = random.Random(7)  # the same in each run

    async def one(version: Version, state: str, octets: bytes) -> None:
        said = await talk(target.amqp_port, *tape(version, state), octets, within=0.15)
        record.check(len(said) < 1 << 20, f"{len(said)} bytes were said")

    await at_once(
        8,
        [
            one(
                source.choice(list(VERSIONS)),
                source.choice(list(STATES)),
                source.randbytes(source.choice((7, 64, 4_096))),
            )
            for _ in range(target.scaled(400, 30))
        ],
    )


async def silent(target: Target, record: Record) -> None:
    """Open connections and say nothing, or half a header: all are closed in time."""
    count = target.scaled(1_000, 60)
    within = SLOW + 5

    async def one(said: bytes) -> None:
        began = time.monotonic()
        await talk(target.amqp_port, said, within=within)
        took = time.monotonic() - began
        record.check(took < within - 0.1, f"{said!r}: still open after {took:.1f} s")

    await asyncio.gather(*(one((b"", b"AMQP", b"AMQP\x00\x00\x09\x01")[number % 3]) for number in range(count)))


async def half_frames(target: Target, record: Record) -> None:
    """Begin the largest frames on many connections, and never end them."""
    count = target.scaled(300, 40)
    clients = []
    try:
        for _ in range(count):
            client = await Raw.open(target.amqp_port, V0_9_1)
            await client.write(struct.pack(">BHI", 1, 1, 131_064) + bytes(120_000))
            clients.append(client)
        record.check(len(clients) == count)
        record.tries = count
        await asyncio.sleep(0.5)
    finally:
        for client in clients:
            client.close()


async def unfinished(target: Target, record: Record) -> None:
    """Begin large messages and never end them."""
    clients = []
    size = 16 * MIB
    count = target.scaled(32, 4)
    piece = frame(3, 1, bytes(131_064))
    try:
        for _ in range(count):
            client = await Raw.open(target.amqp_port, V0_9_1)
            clients.append(client)
            await client.stuff(content(Role.SERVER, size) + piece * 100, patience=1.0)
        record.check(len(clients) == count)
        record.tries = count
        await asyncio.sleep(0.5)
    finally:
        for client in clients:
            client.close()


async def channels(target: Target, record: Record) -> None:
    """Open channels to the cap and one more, on a few connections."""
    for version in VERSIONS:
        client = await Raw.open(target.amqp_port, version)
        octets = b"".join(client.octets(OpenChannel(number)) for number in range(2, target.scaled(2_047, 300)))
        await client.write(octets)
        await client.hear(Done)
        record.check(True)
        client.close()
    more = b"".join(method(20, 10, b"\x00", number) for number in range(3, AGREED + 2))
    said = await talk(target.amqp_port, *tape(V0_9_1, "channel"), more, within=1)
    record.check(struct.pack(">HHH", 10, 50, 530) in said, f"a channel over the cap: {said[-60:].hex()}")
    beats = frame(8, 0, b"") * 10_000
    said = await talk(target.amqp_port, *tape(V0_9_1, "channel"), *[beats] * target.scaled(20, 2), within=2)
    record.check(len(said) < 100_000, f"{len(said)} bytes were said to heartbeats")


async def slow_reader(target: Target, record: Record) -> None:
    """Consume much and read nothing: deliveries stop at the bound. The messages fit into their user's share, of which
    other rows hold some bytes, too."""
    readers = []
    queue = f"unread-{os.urandom(4).hex()}"
    publisher = await Raw.open(target.amqp_port, V0_9_1)
    await publisher.declare(queue)
    body = bytes(64 * 1_024)
    for _ in range(target.scaled(800, 200)):
        await publisher.tell(Publish(1, "", queue, Message(body, Properties())))
    try:
        for _ in range(target.scaled(20, 5)):
            client = await Raw.open(target.amqp_port, V0_9_1, receive_buffer=4_096)
            await client.tell(Consume(1, queue, "t", acquired=True))
            readers.append(client)
        await asyncio.sleep(target.scaled(3, 1))
        record.check(readers)
    finally:
        for client in [*readers, publisher]:
            client.close()
    cleaner = await Raw.open(target.amqp_port, V0_9_1)
    await cleaner.tell(DeleteQueue(1, queue))
    await cleaner.hear(Operation)
    cleaner.close()

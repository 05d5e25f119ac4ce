"""The codec alone: no socket, no clock, no broker.

Beside pamqp: the three frames of a small message, whole, both ways. "Properties left raw" is what a bridge does
between equal dialects: the octets of the properties are passed on, and decoded when someone asks.

Beside each other: the three versions as sessions, so with everything that a client does for a message: publishes from
the operation to octets, deliveries from octets to the operation, with and without a look at the properties.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Consume, Consuming, Deliver, Operation, Publish
from gateway.classic import methods, properties
from gateway.classic.frames import CONTENT_HEADER, FRAME_HEADER, METHOD_KEY, content_frames, method_frame
from gateway.classic.tables import RABBITMQ_TAGS, TableCodec
from gateway.limits import DEFAULT_LIMITS
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v091.dialect import RABBITMQ
from gateway.v091.version import V0_9_1
from tests.benchmarks.bench import SIZE, Bench
from tests.benchmarks.programs.clock import Stopwatch
from tests.benchmarks.rows import OURS, Row, Run, Sample, alternate
from tests.pair import SessionPair, only

ROUNDS = 15
"""Short rounds, and many: this is the section in which a disturbance is most easily kept out."""
SESSION_ROUNDS = 7
CALLS = 1_000
BODY = b"x" * SIZE
HEADERS = {"customer": "ann", "items": 3, "express": True, "at": 1.5}
PROPERTIES = {"content_type": "text/plain", "delivery_mode": 2, "message_id": "m-1", "headers": HEADERS}
DELIVER = ("consumer-1", 4711, False, "amq.topic", "eu.orders.new")
TABLES = TableCodec(RABBITMQ_TAGS, DEFAULT_LIMITS)

ENCODE = "codec: encode a message"
DECODE = "codec: decode a message"
RAW = "codec: decode, properties left raw"


def run(bench: Bench) -> list[Row]:
    """Both comparisons."""
    rounds, session_rounds = (1, 1) if bench.quick else (ROUNDS, SESSION_ROUNDS)
    number = bench.number(CALLS, 20)
    clients = [(OURS, partial(calls, ours(), number))]
    if not bench.ours:
        from tests.benchmarks import pamqp_codec  # a peer, and no part of what is compared between commits

        pamqp_codec.check(encode(), lambda data: properties.decode(decode(data)[1], TABLES))
        clients.append(("pamqp", partial(calls, pamqp_codec.works(encode()), number)))
    sessions: list[tuple[str, Run]] = [
        (f"{OURS} {version.value}", partial(session, version, number)) for version in (V0_9_1, V0_8, V0_10)
    ]
    return [*alternate("codec", clients, rounds), *alternate("codec", sessions, session_rounds)]


def calls(works: Mapping[str, Callable[[], object]], number: int) -> dict[str, Sample]:
    """Call each function so many times."""
    found = {}
    for work, function in works.items():
        gc.collect()
        with Stopwatch() as watch:
            for _ in range(number):
                function()
        found[work] = Sample(number, watch.seconds, watch.cpu)
    return found


# ---------------------------------------------------------------------------------------------------- frames


def ours() -> dict[str, Callable[[], object]]:
    """What our codec does."""
    data = encode()
    return {
        ENCODE: encode,
        DECODE: lambda: properties.decode(decode(data)[1], TABLES),
        RAW: lambda: decode(data),
    }


def encode() -> bytes:
    """The message of the constants above, as octets."""
    method = method_frame(1, methods.BasicDeliver(*DELIVER).encode())
    octets = properties.encode(Properties(**PROPERTIES), TABLES)
    return b"".join(content_frames(1, method, octets, BODY, 131_072))


def decode(data: bytes) -> tuple[object, bytes, bytes]:
    """Method, raw properties and body of three frames."""
    at = FRAME_HEADER.size
    _, _, size = FRAME_HEADER.unpack_from(data)
    end = at + size
    method = RABBITMQ.methods[METHOD_KEY.unpack_from(data, at)[0]].decode(data, at + METHOD_KEY.size, end, None)
    _, _, size = FRAME_HEADER.unpack_from(data, end + 1)
    at = end + 1 + FRAME_HEADER.size
    end = at + size
    CONTENT_HEADER.unpack_from(data, at)
    octets = data[at + CONTENT_HEADER.size : end]
    _, _, size = FRAME_HEADER.unpack_from(data, end + 1)
    at = end + 1 + FRAME_HEADER.size
    return method, octets, data[at : at + size]


# -------------------------------------------------------------------------------------------------- sessions


def session(version: Version, number: int) -> dict[str, Sample]:
    """A client session of a version: publishes out, deliveries in."""
    message = Message(BODY, Properties(**PROPERTIES))
    gc.collect()
    return {
        "session: publish, to octets": publishes(SessionPair(version).open(), message, number),
        "session: delivery, properties left raw": deliveries(SessionPair(version).open(), message, number, leave),
        "session: delivery, properties decoded": deliveries(SessionPair(version).open(), message, number, look),
    }


def leave(operations: list[Operation]) -> None:
    """Pass them on as they are."""


def look(operations: list[Operation]) -> None:
    """Look at the properties of each message."""
    for operation in operations:
        assert isinstance(operation, Deliver)
        operation.message.properties  # noqa: B018  # decodes


def publishes(pair: SessionPair, message: Message, number: int) -> Sample:
    """Without confirms, 50 to a write."""
    send, now, total = pair.client.send, pair.now, 0
    with Stopwatch() as watch:
        for _ in range(0, number, 50):
            for _ in range(min(50, number)):
                send(Publish(1, "amq.topic", "eu.orders.new", message), now)
                total += 1
            pair.client.data_to_send()
    return Sample(total, watch.seconds, watch.cpu)


def deliveries(pair: SessionPair, message: Message, number: int, user: Callable[[list[Operation]], None]) -> Sample:
    """Not to be acknowledged, some 64 KiB to a read."""
    tag = "consumer-1"
    pair.ask(Consume(1, "orders", tag, no_ack=True))
    serial = next(operation.serial for operation in pair.requests if isinstance(operation, Consume))
    assert isinstance(only(pair.answer(Consuming(1, serial, serial, tag))), Consuming)
    server, client, now = pair.server, pair.client, pair.now
    for _ in range(number):
        server.send(Deliver(1, tag, 0, False, "amq.topic", "eu.orders.new", message), now)
    data = b"".join(server.data_to_send())
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    found = 0
    with Stopwatch() as watch:
        for piece in pieces:
            operations = client.receive_data(piece, now)
            user(operations)
            found += len(operations)
    assert found == number, f"{found} of {number} deliveries"
    return Sample(number, watch.seconds, watch.cpu)

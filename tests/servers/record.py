"""``python -m tests.servers.record``: make the transcripts in ``tests/golden`` anew.

Independent clients (pika; Qpid's Java client) talk to real brokers through a relay that writes down every octet.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import socket
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.octets import properties as property_list
from tests.interop.raw import Octets
from tests.servers import BrokerJ, RabbitMQ310, Server, started
from tests.servers.judge import Judge, JudgeConnection, octets
from tests.servers.process import HOST
from tests.servers.relay import relay_to

FOLDER = Path(__file__).resolve().parents[1] / "golden"
WHEN = datetime(2024, 2, 29, 12, 0, 0, tzinfo=UTC)

# (pika has no type for a float)
PIKA_HEADERS: dict[str, Any] = {
    "bool": True,
    "int": 3,
    "negative": -70_000,
    "long": 1 << 40,
    "decimal": Decimal("1.25"),
    "string": "é",
    "empty": "",
    "bytes": b"\x00\xff",
    "time": WHEN,
    "void": None,
    "table": {"inner": {"n": 1}},
    "array": [1, "two", [3], {"four": 4}],
}
CLASSIC_HEADERS: list[Any] = [
    ["bool", ["t", True]],
    ["byte", ["b", -3]],
    ["short", ["s", -300]],
    ["int", ["I", 70_000]],
    ["long", ["l", 1 << 40]],
    ["float", ["f", 1.5]],
    ["double", ["d", 0.1]],
    ["decimal", ["D", [2, 125]]],
    ["string", ["S", "é"]],
    ["time", ["T", int(WHEN.timestamp())]],
    ["void", ["V", None]],
    ["bytes", ["x", octets(b"\x00\xff")]],
    ["table", ["F", [["inner", ["F", [["n", ["I", 1]]]]]]]],
    ["array", ["A", [["Integer", 1], ["String", "two"]]]],
]
NATIVE_HEADERS: list[Any] = [
    ["bool", ["Boolean", True]],
    ["byte", ["Byte", -3]],
    ["short", ["Short", -300]],
    ["int", ["Integer", 70_000]],
    ["long", ["Long", 1 << 40]],
    ["float", ["Float", 1.5]],
    ["double", ["Double", 0.1]],
    ["string", ["String", "é"]],
    ["void", ["null", None]],
    ["bytes", ["byte[]", octets(b"\x00\xff")]],
    ["uuid", ["UUID", "0d5c2e0c-8c9f-4b6e-9d43-9b6f3ad9f0c1"]],
    ["map", ["Map", [["inner", ["Map", [["n", ["Integer", 1]]]]]]]],
    ["list", ["List", [["Integer", 1], ["String", "two"]]]],
]
CLASSIC_MESSAGE = {
    "body": octets(b"golden \x00\xff"),
    "content_type": "application/x-golden",
    "content_encoding": "identity",
    "headers": CLASSIC_HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "answers",
    "message_id": "m-1",
    "timestamp": int(WHEN.timestamp()),
    "type": "golden",
    "user_id": "guest",
    "app_id": "recorder",
    "cluster_id": "cluster",
}
NATIVE_MESSAGE = {
    "body": octets(b"golden \x00\xff"),
    "content_type": "application/x-golden",
    "content_encoding": "identity",
    "headers": NATIVE_HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "ttl": 600_000,
    "correlation_id": octets(b"correlation"),
    "reply_to": ["amq.direct", "answers"],
    "message_id": "3f0e6a51-20bb-4f3d-8f0e-2d4f2c1b7a10",
    "user_id": octets(b"guest"),
    "app_id": octets(b"recorder"),
}


def _store(name: str, connection: list[tuple[str, bytes]], **about: str) -> None:
    pieces: list[list[str]] = []
    for who, data in connection:
        if pieces and pieces[-1][0] == who:
            pieces[-1][1] += data.hex()
        else:
            pieces.append([who, data.hex()])
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({**about, "pieces": pieces}, indent=1) + "\n")
    print(f"{path.name}: {path.stat().st_size:,} octets")


# ------------------------------------------------------------------------------------------------- pika


def _pika(
    port: int, frame_max: int = 4096, password: str = "guest", virtual_host: str = "/"
) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            HOST,
            port,
            virtual_host,
            pika.PlainCredentials("guest", password),
            frame_max=frame_max,
            heartbeat=0,
            connection_attempts=1,
        )
    )


def pika_publishes_and_gets(port: int) -> None:
    """Declare, bind, publish with every property and with confirms, a body of several frames and an empty one, a
    return, get, consume with prefetch, ack, nack, cancel, delete."""
    connection = _pika(port)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("golden-exchange", "topic", durable=True)
    channel.queue_declare("golden", durable=True, arguments={"x-max-priority": 9})
    channel.queue_bind("golden", "golden-exchange", "key.#")
    properties = pika.BasicProperties(
        content_type="application/x-golden",
        content_encoding="identity",
        headers=PIKA_HEADERS,
        delivery_mode=2,
        priority=7,
        correlation_id="correlation",
        reply_to="answers",
        expiration="600000",
        message_id="m-1",
        timestamp=int(WHEN.timestamp()),
        type="golden",
        user_id="guest",
        app_id="recorder",
    )
    channel.basic_publish("golden-exchange", "key.1", b"golden \x00\xff", properties, mandatory=True)
    channel.basic_publish("golden-exchange", "key.2", bytes(range(256)) * 40, mandatory=True)
    channel.basic_publish("", "golden", b"", pika.BasicProperties(), mandatory=True)
    try:
        channel.basic_publish("", "golden-nowhere", b"lost", pika.BasicProperties(message_id="m-4"), mandatory=True)
    except pika.exceptions.UnroutableError:
        pass  # the return that is to be recorded
    method, _, _ = channel.basic_get("golden")
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_qos(prefetch_count=2)
    _consume(channel, 3)
    channel.basic_get("golden", auto_ack=True)
    channel.queue_unbind("golden", "golden-exchange", "key.#")
    channel.queue_purge("golden")
    channel.queue_delete("golden")
    channel.exchange_delete("golden-exchange")
    channel.close()
    connection.close()


def _consume(channel: BlockingChannel, number: int) -> None:
    for method, _, _ in channel.consume("golden", inactivity_timeout=10):
        channel.basic_ack(method.delivery_tag)
        number -= 1
        if not number:
            break
    channel.cancel()


def pika_is_refused(port: int) -> None:
    """A missing queue (404), another argument (406), an exclusive queue (405), a reserved name (403), tx,
    recover, flow, an exchange bound to an exchange; each error on a channel of its own."""
    connection = _pika(port)
    other = _pika(port)
    refused: list[Callable[[BlockingChannel], object]] = [
        lambda channel: channel.queue_declare("golden-missing", passive=True),
        lambda channel: channel.queue_declare("golden-durable", durable=True),
        lambda channel: channel.queue_declare("golden-mine", passive=True),
        lambda channel: channel.queue_declare("amq.reserved"),
        lambda channel: channel.basic_ack(99) or channel.queue_declare("", exclusive=True),
    ]
    keeper = connection.channel()
    keeper.queue_declare("golden-durable", durable=False)
    other.channel().queue_declare("golden-mine", exclusive=True)
    for request in refused:
        try:
            request(connection.channel())
        except pika.exceptions.ChannelClosedByBroker:
            pass  # the close that is to be recorded
    keeper.queue_delete("golden-durable")
    keeper.exchange_declare("golden-a", "fanout")
    keeper.exchange_declare("golden-b", "headers", auto_delete=True)
    keeper.exchange_bind("golden-b", "golden-a", "", {"x-match": "any", "n": 1})
    keeper.exchange_unbind("golden-b", "golden-a", "", {"x-match": "any", "n": 1})
    keeper.exchange_delete("golden-a")
    keeper.tx_select()
    keeper.basic_publish("", "golden-nowhere", b"in a transaction")
    keeper.tx_commit()
    keeper.tx_rollback()
    keeper.basic_recover(requeue=True)
    connection.close()
    other.close()


def pika_publishes_no_number(port: int) -> None:
    """A header that holds the double NaN: connection.close 541."""
    connection = _pika(port)
    channel = connection.channel()
    try:
        channel.basic_publish("", "golden-nowhere", b"no number", Octets(property_list(headers=[("a", "d", math.nan)])))
        connection.process_data_events(1)
    except (pika.exceptions.AMQPConnectionError, pika.exceptions.ConnectionClosedByBroker):
        pass  # the close that is to be recorded


def pika_may_not_enter(port: int, **login: str) -> None:
    """A login that is refused."""
    try:
        _pika(port, **login).close()  # type: ignore[arg-type]
    except pika.exceptions.AMQPConnectionError:
        pass  # the close that is to be recorded


# ------------------------------------------------------------------------------------------------- Java


def java_publishes_and_consumes(connection: JudgeConnection, message: dict[str, Any], consume: bool = True) -> None:
    """Declare, bind, publish with every property, an empty body and one of several frames, consume, release,
    consume again and accept, delete."""
    connection.declare("golden", durable=True)
    connection.bind("golden", "amq.direct", "golden-key")
    connection.publish("amq.direct", "golden-key", message, {"body": ""}, {"body": octets(bytes(range(256)) * 8)})
    if consume:
        taken = connection.consume("golden", 3, settlement="release")
        assert len(taken) == 3, taken
        again = connection.consume("golden", 3)
        assert [message["redelivered"] for message in again] == [True] * 3, again
    connection.delete("golden")
    connection.close()


def java_publishes_packed(connection: JudgeConnection, native: bool) -> None:
    """Publish a packed body with the content-encoding gzip, and in 0-10 one that is none; consume: the bodies come
    unpacked, or empty, and without the encoding."""
    connection.declare("golden", durable=True)
    bodies = [gzip.compress(b"golden", mtime=0), *([b"no gzip"] if native else [])]
    messages = [{"body": octets(body), "content_encoding": "gzip"} for body in bodies]
    connection.publish("", "golden", *messages)
    taken = connection.consume("golden", len(bodies))
    assert [message["body"] for message in taken] == [b"golden", *([b""] if native else [])], taken
    connection.delete("golden")
    connection.close()


BRANCHES = ["XA_OK"] * 4 + [60, "XA_OK", 1] + ["XA_OK"] * 7 + [2, "direct", True, "NOT_FOUND"]
"""What the steps of :func:`java_works_on_branches` say."""


def java_works_on_branches(connection: JudgeConnection) -> None:
    """Distributed transactions: a branch started, suspended, resumed, prepared, found in doubt and committed, one
    failed and rolled back, one committed in one phase; queries of queue, exchange and binding; the session ends by
    forgetting a branch that is not known."""
    connection.declare("golden", durable=True)
    said = connection.branches("golden")
    assert said == BRANCHES, said
    connection.close()


RECOVERS = {"rabbitmq": ((100, 1), (110, 1)), "brokerj": ((100, 1), (100, 0), (110, 1), (110, 0))}
"""What each broker is asked over 0-8: number of basic.recover, and whether to requeue."""


def recovers_by_hand(port: int, kind: str) -> None:
    """0-8, with octets written by hand: a message is consumed and not acknowledged, then basic.recover in each way
    that the broker has."""

    def short(text: str) -> bytes:
        return bytes((len(text),)) + text.encode()

    def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
        return struct.pack(">BHIHH", 1, channel, len(arguments) + 4, class_id, method_id) + arguments + b"\xce"

    def heard() -> None:
        """All that comes until the broker has said nothing for a moment."""
        client.settimeout(5)
        assert client.recv(1 << 16)
        client.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while client.recv(1 << 16):
                pass

    queue = "golden-recover"
    table = b"\0\0\0\0" if kind == "brokerj" else b""
    content = struct.pack(">BHIHHQHB", 2, 1, 14, 60, 0, 6, 0, 0xCE) + struct.pack(">BHI", 3, 1, 6) + b"golden\xce"
    login = b"\0\0\0\0" + short("PLAIN") + b"\0\0\0\x0c\0guest\0guest" + short("en_US")
    with socket.create_connection((HOST, port)) as client:
        for octets_ in (
            b"AMQP\x01\x01\x08\x00",
            method(0, 10, 11, login),
            method(0, 10, 31, struct.pack(">HIH", 255, 65_535, 0))
            + method(0, 10, 40, short("default" if kind == "brokerj" else "/") + b"\0\x01"),
            method(1, 20, 10, b"\0"),
            method(1, 50, 10, b"\0\0" + short(queue) + b"\0\0\0\0\0"),
            method(1, 60, 40, b"\0\0\0" + short(queue) + b"\0")
            + content
            + method(1, 60, 20, b"\0\0" + short(queue) + short("t") + b"\0" + table),
            *(method(1, 60, number, bytes((requeue,))) for number, requeue in RECOVERS[kind]),
            method(1, 50, 40, b"\0\0" + short(queue) + b"\0"),
            method(0, 10, 60, struct.pack(">HBHH", 200, 0, 0, 0)),
        ):
            client.sendall(octets_)
            heard()


def record(name: str, server: Server, version: str, client: str, talk: Callable[[int], None], about: str) -> None:
    """One transcript: the first connection that ``talk`` makes."""
    product = {"rabbitmq-3.10": "RabbitMQ 3.10.8", "brokerj": "Apache Qpid Broker-J 9.2.1"}[server.kind]
    with relay_to(server.port) as relay:
        talk(relay.port)
        connection = relay.connections[0]
    _store(name, connection, broker=product, version=version, client=client, about=" ".join(about.split()))


def _talk_branches(judge: Judge) -> Callable[[int], None]:
    return lambda port: java_works_on_branches(judge.connect("0-10", port, "default"))


JMS_STEPS = (
    ("browse leaves messages", "ADDR", "browse"),
    ("recover marks as redelivered", "BURL", "recover"),
    ("commit and rollback", "ADDR", "transaction"),
    ("topic to two subscribers", "BURL", "topic"),
    ("selector", "BURL", "selector"),
)
"""Steps of the scenario that are recorded: name, syntax of addresses, name of the file."""


def record_recovers(server: Server) -> None:
    """How 0-8 gives back what is out."""
    about = recovers_by_hand.__doc__ or ""
    kind = server.kind.partition("-")[0]
    record(f"{kind}-0-8-recover", server, "0-8", "octets by hand", lambda port: recovers_by_hand(port, kind), about)


def main() -> int:
    """Record them all."""
    about = java_publishes_and_consumes.__doc__ or ""
    judge = Judge()
    by_pika = f"pika {pika.__version__}"
    by_java = "Apache Qpid JMS AMQP 0-x client 6.4.0"
    with started(RabbitMQ310()) as rabbitmq:
        for name, talk in (
            ("rabbitmq-0-9-1", pika_publishes_and_gets),
            ("rabbitmq-0-9-1-refused", pika_is_refused),
            ("rabbitmq-0-9-1-refused-float", pika_publishes_no_number),
        ):
            record(name, rabbitmq, "0-9-1", by_pika, talk, talk.__doc__ or "")
        record(
            "rabbitmq-0-9-1-wrong-password",
            rabbitmq,
            "0-9-1",
            by_pika,
            lambda port: pika_may_not_enter(port, password="wrong"),
            "A wrong password: connection.close 403.",
        )
        record(
            "rabbitmq-0-9-1-unknown-virtual-host",
            rabbitmq,
            "0-9-1",
            by_pika,
            lambda port: pika_may_not_enter(port, virtual_host="nowhere"),
            "A virtual host that is not there: connection.close 530.",
        )
        record(
            "rabbitmq-0-8",
            rabbitmq,
            "0-8",
            by_java,
            lambda port: java_publishes_and_consumes(judge.connect("0-8", port), CLASSIC_MESSAGE, consume=False),
            "Declare, bind, publish with every property, an empty body and one of several frames, delete. "
            "Not consume: this client's basic.consume has an argument more than this broker's.",
        )
        record_recovers(rabbitmq)
    with started(BrokerJ()) as brokerj:
        record_recovers(brokerj)
        for version, message in (("0-8", CLASSIC_MESSAGE), ("0-9-1", CLASSIC_MESSAGE), ("0-10", NATIVE_MESSAGE)):

            def talk_java(port: int, version: str = version, message: dict[str, Any] = message) -> None:
                java_publishes_and_consumes(judge.connect(version, port, "default"), message)

            record(f"brokerj-{version}", brokerj, version, by_java, talk_java, about)

            def talk_packed(port: int, version: str = version) -> None:
                java_publishes_packed(judge.connect(version, port, "default"), version == "0-10")

            packed = java_publishes_packed.__doc__ or ""
            record(f"brokerj-{version}-gzip", brokerj, version, by_java, talk_packed, packed)
            if version == "0-10":
                branches = java_works_on_branches.__doc__ or ""
                record("brokerj-0-10-dtx", brokerj, version, by_java, _talk_branches(judge), branches)
                judge.connect(version, brokerj.port, "default").delete("golden")
            for step, syntax, short in JMS_STEPS:

                def talk_jms(port: int, version: str = version, step: str = step, syntax: str = syntax) -> None:
                    steps = judge.scenario(version, port, "memory", syntax, step)
                    assert steps == {step: None}, steps

                record(f"brokerj-{version}-jms-{short}", brokerj, version, by_java, talk_jms, f"JMS: {step}.")
    judge.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

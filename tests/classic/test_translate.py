"""Message to content and back: raw octets, expiration in both meanings, what has no home, what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from gateway.amqp.message import ArrivalTime, Deadline, Message, Properties, ReplyTo, UuidMessageId
from gateway.amqp.values import Timestamp, Typed
from gateway.classic.dialect import Dialect
from gateway.classic.properties import decode
from gateway.classic.tables import TableCodec
from gateway.classic.translate import Translator
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v08.dialect import PUBLISHED
from gateway.v08.dialect import RABBITMQ as RABBITMQ_08
from gateway.v091.dialect import QPID, RABBITMQ

NOW = 1_700_000_000.0


def translator(
    dialect: Dialect = RABBITMQ, user: str | None = "guest", clock: Callable[[], float] | None = lambda: NOW
) -> Translator:
    return Translator(dialect, TableCodec(dialect.tags), user, clock)


def there_and_back(properties: Properties, dialect: Dialect = RABBITMQ, user: str | None = "guest") -> Properties:
    made = translator(dialect, user)
    return made.received(made.encode(Message(b"", properties)), b"body").properties


def wire(properties: Properties, dialect: Dialect = RABBITMQ, user: str | None = "guest") -> Properties:
    return decode(translator(dialect, user).encode(Message(b"", properties)), TableCodec(dialect.tags))


def test_octets_pass_between_equal_dialects() -> None:
    octets = b"\x80\x00\x04text"
    received = translator().received(octets, b"body")
    assert translator().encode(received) is octets
    assert translator(QPID).encode(received) == octets
    assert translator(QPID).encode(received) is not octets
    assert received.properties == Properties(content_type="text")
    assert received.body == b"body"


def test_octets_with_a_user_id_do_not() -> None:
    octets = translator(user=None).encode(Message(b"", Properties(user_id="ann")))
    assert octets == b"\x00\x10\x03ann"
    received = translator(user=None).received(octets, b"")
    assert translator(user=None).encode(received) is octets
    assert translator(user="ann").encode(received) == octets
    assert decode(translator(user="bob").encode(received), TableCodec()).user_id is None


@pytest.mark.parametrize(
    "properties",
    [
        Properties(correlation_id=b"\xff" * 300),
        Properties(correlation_id="x" * 300),
        Properties(correlation_id="\u00e9" * 100),
        Properties(app_id=b"\xff"),
        Properties(reply_to=ReplyTo("ex", "key")),
        Properties(cluster_id="c"),
        Properties(headers={"u": UUID(int=5), "n": {"big": (1 << 64) - 1}, "a": [Typed("char", "x")]}),
        Properties(headers={"d": Decimal("1.5"), "t": Timestamp(5), "v": None, "x": b"\xff"}),
        Properties(headers={"small": Decimal("1e-300"), "large": Decimal(1 << 40)}),
        Properties(headers={}),
        Properties(),
    ],
)
@pytest.mark.parametrize("dialect", [RABBITMQ, QPID, PUBLISHED], ids=lambda dialect: dialect.properties)
def test_what_has_no_home_comes_back(properties: Properties, dialect: Dialect) -> None:
    if dialect is PUBLISHED and properties.headers:
        properties = replace(properties, headers={"s": "text", "i": 5})
    assert there_and_back(properties, dialect) == properties


def test_a_foreign_user_id_is_carried_and_never_restored() -> None:
    properties = wire(Properties(user_id="other"))
    assert properties.user_id is None
    assert properties.headers == {"x-gateway": {"user_id": "other"}}
    assert there_and_back(Properties(user_id="other")).user_id is None
    assert wire(Properties(user_id="guest")) == Properties(user_id="guest")


def test_qpid_would_drop_some_headers() -> None:
    headers = {"raw": Typed("string", b"\xff\xfe"), "empty": {}, "deep": {"empty": {}}}
    on_the_wire = wire(Properties(headers=headers), QPID).headers
    assert on_the_wire is not None
    assert on_the_wire["raw"] == b"\xff\xfe"
    assert on_the_wire["empty"] is None
    assert there_and_back(Properties(headers=headers), QPID).headers == headers
    assert wire(Properties(headers=headers), RABBITMQ).headers == headers


def test_relative_expiration() -> None:
    assert wire(Properties(expiration="60000")).expiration == "60000"
    assert there_and_back(Properties(expiration="0")).expiration == "0"


def test_absolute_expiration() -> None:
    assert wire(Properties(expiration="60000"), QPID).expiration == "1700000060000"
    assert there_and_back(Properties(expiration="60000"), QPID).expiration == "60000"
    for on_the_wire, meaning in (("1600000000000", "0"), ("0", None), ("soon", "soon"), ("9" * 30, "9" * 30)):
        octets = b"\x01\x00" + bytes((len(on_the_wire),)) + on_the_wire.encode()
        assert translator(QPID).received(octets, b"").properties.expiration == meaning
        assert translator(QPID, clock=None).received(octets, b"").properties.expiration == on_the_wire


def test_a_broker_that_holds_a_message_knows_when_it_expires() -> None:
    message = Message(b"", Properties(expiration="60000"))
    message.expires_at = 1_700_000_050_000
    made = translator(QPID, user=None)
    assert decode(made.encode(message), TableCodec(QPID.tags)).expiration == "1700000050000"
    later = made.encode(Message(b"", Properties(expiration="60000")))
    assert decode(later, TableCodec(QPID.tags)).expiration == "1700000060000", "it counts for one message alone"


@pytest.mark.parametrize("dialect", [RABBITMQ, QPID], ids=lambda dialect: dialect.properties)
def test_ids_addresses_and_times_of_0_10_are_as_jms_writes_them(dialect: Dialect) -> None:
    uuid = UuidMessageId("12345678-1234-5678-1234-567812345678")
    properties = Properties(
        message_id=uuid,
        reply_to=ReplyTo("amq.direct", "answers"),
        timestamp=ArrivalTime.of(1_700_000_000, 1_700_000_000_123),
    )
    sent = wire(properties, dialect)
    assert sent.message_id == f"ID:{uuid}"
    assert sent.reply_to == "direct://amq.direct//?routingkey='answers'"
    assert sent.timestamp == 1_700_000_000_123
    found = there_and_back(properties, dialect)
    assert found == properties
    assert type(found.message_id) is UuidMessageId
    assert type(found.timestamp) is ArrivalTime
    assert wire(Properties(message_id=uuid), dialect).message_id == f"ID:{uuid}"
    assert wire(Properties(reply_to=ReplyTo("x", "it's")), dialect).reply_to is None


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", "", "\u0661", "9" * 21, str(1 << 32), str(1 << 63)])
@pytest.mark.parametrize("dialect", [RABBITMQ, QPID], ids=lambda dialect: dialect.properties)
def test_an_expiration_that_brokers_refuse_is_carried(text: str, dialect: Dialect) -> None:
    if dialect is RABBITMQ or not text.isascii() or not text.isdigit() or len(text) > 18:
        assert wire(Properties(expiration=text), dialect).expiration is None
    assert there_and_back(Properties(expiration=text), dialect).expiration == text


def test_absolute_expiration_needs_a_clock() -> None:
    with pytest.raises(EncodeError, match="needs a wall clock"):
        translator(QPID, clock=None).encode(Message(b"", Properties(expiration="5")))


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (Properties(message_id="x" * 256), "message_id: 256 octets are more than 255"),
        (Properties(headers={"k": object()}), "is no AMQP value"),
        (Properties(headers={"k": 1 << 70}), "more than 64 bits"),
        (Properties(headers={"k" * 256: 1}), "more than 255"),
    ],
)
def test_what_must_be_refused(properties: Properties, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        translator().encode(Message(b"", properties))


def test_octets_that_are_no_properties_fail_when_asked_for() -> None:
    received = translator().received(b"\x80\x00\xffshort", b"")
    with pytest.raises(FrameSyntaxError):
        _ = received.properties


@pytest.mark.parametrize("value", ["text", 5, True, b"octets", None, [1], {"a": 1}, 1 << 40, 0.5])
def test_plain_headers_stay(value: Any) -> None:
    assert wire(Properties(headers={"k": value})).headers == {"k": value}


# ------------------------------------------------------------------------- what brokers and dialects take amiss


@pytest.mark.parametrize(
    "properties",
    [
        Properties(headers={"": "x", "a": 1}),
        Properties(headers={"\udcff": "x", "é": {"😀": [1]}}),
        Properties(headers={"a": [Typed("uint8", 5), Typed("uint16", 5), Typed("uint32", 5), b"", b"x"]}),
        Properties(headers={"d": Decimal("1e-200"), "n": Decimal("1.5")}),
        Properties(headers={"l": Typed("str8-latin", "é"), "k": Typed("str8-latin", "e")}),
        Properties(headers={"f": Typed("float", float("inf")), "d": float("-inf"), "n": [0.5]}),
        Properties(content_encoding="gzip"),
        Properties(reply_to="amq.rabbitmq.reply-to"),
        Properties(delivery_mode=0),
        Properties(expiration=Deadline.at(1_700_000_060_000, NOW)),
        Properties(timestamp=ArrivalTime(5)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dialect", [RABBITMQ, QPID], ids=lambda dialect: dialect.properties)
@pytest.mark.parametrize("user", ["guest", None])
def test_what_a_broker_takes_amiss_comes_back(properties: Properties, dialect: Dialect, user: str | None) -> None:
    found = there_and_back(properties, dialect, user)
    assert found == properties
    assert type(found.expiration) is type(properties.expiration)
    assert type(found.timestamp) is type(properties.timestamp)


def test_what_a_client_wrote_for_a_broker_is_read_by_a_server_of_ours() -> None:
    properties = Properties(content_encoding="gzip", headers={"f": float("inf")}, delivery_mode=3)
    for dialect in (RABBITMQ, QPID):
        octets = translator(dialect, "guest").encode(Message(b"", properties))
        assert translator(dialect, None).received(octets, b"").properties == properties


def test_an_instant_stays_one() -> None:
    deadline = Deadline.at(1_700_000_060_000, NOW)
    assert wire(Properties(expiration=deadline), QPID) == Properties(expiration="1700000060000")
    relative = wire(Properties(expiration=deadline), RABBITMQ)
    assert relative.expiration == "60000"
    received = translator().received(translator().encode(Message(b"", Properties(expiration=deadline))), b"")
    again = translator(QPID, clock=lambda: NOW + 30).encode(received)
    assert decode(again, TableCodec()).expiration == "1700000060000"
    left = translator(QPID, clock=lambda: NOW + 30).received(again, b"").properties.expiration
    assert left == "30000"


def test_octets_pass_between_versions_of_one_product() -> None:
    v08, v091 = translator(RABBITMQ_08), translator(RABBITMQ)
    for octets in (b"\x80\x00\x04text", b"\x00\x10\x03ann", b"\x00\x04\x01c"):
        message = v08.received(octets, b"")
        assert (v091.encode(message) is octets) == (octets[0] == 0x80)
        assert v08.encode(v091.received(v091.encode(message), b"")) is not None
    carried = v091.encode(Message(b"", Properties(cluster_id="c")))
    assert decode(carried, TableCodec()).cluster_id is None
    assert decode(v08.encode(v091.received(carried, b"")), TableCodec()) == Properties(cluster_id="c")


def test_without_the_reserved_header_what_does_not_fit_is_left_out() -> None:
    octets = translator().encode(Message(b"", Properties(cluster_id="c", type="t"), None, ()))
    assert decode(octets, TableCodec()) == Properties(type="t")

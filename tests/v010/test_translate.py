"""Messages and header segments: every property there and back, raw octets passed on, what is no header."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import (
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    RawProperties,
    ReplyTo,
    UuidMessageId,
)
from gateway.amqp.values import Timestamp, Typed, Value, type_of
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.v010 import translate
from gateway.v010.structs import STRUCTS, DeliveryProperties, FragmentProperties, MessageProperties, ReplyToStruct
from gateway.v010.translate import (
    BROKER_J_KEEPS,
    DIALECT,
    DISCARD_UNROUTABLE,
    IMMEDIATE,
    REDELIVERED,
    decode,
    decode_milliseconds,
    read_delivery,
    read_message,
    untouched,
    write_header,
)

UUID_TEXT = "12345678-1234-5678-1234-567812345678"
FITS = Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"n": 1, "s": "x"},
    delivery_mode=2,
    priority=9,
    correlation_id="c-1",
    reply_to="replies",
    expiration="60000",
    message_id=UuidMessageId(UUID_TEXT),
    user_id="guest",
    app_id="app",
)


def segment(*structs: Any) -> bytes:
    return b"".join(struct.pack(">I", len(octets)) + octets for octets in (item.encode() for item in structs))


def structs(header: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(header):
        size = struct.unpack_from(">I", header, at)[0]
        octets = header[at + 4 : at + 4 + size]
        found.append(STRUCTS[octets[0] << 8 | octets[1]].decode(octets))
        at += 4 + size
    return found


def write(properties: Properties, user: str | None = "guest", body: bytes = b"") -> bytes:
    return write_header(Message(body, properties), "key", 0, None, user)


def there_and_back(properties: Properties, user: str | None = "guest") -> Properties:
    return decode(write(properties, user))


def test_what_fits_is_in_its_fields() -> None:
    delivery, message = structs(write_header(Message(b"12345", FITS), "key", IMMEDIATE, None, "guest"))
    assert delivery == DeliveryProperties(immediate=True, priority=9, delivery_mode=2, ttl=60000, routing_key="key")
    assert message == MessageProperties(
        5,
        UUID(UUID_TEXT),
        b"c-1",
        ReplyToStruct(None, "replies"),
        "text/plain",
        "gzip",
        b"guest",
        b"app",
        {"n": 1, "s": "x"},
    )


def test_what_jms_writes_in_other_versions_has_its_field() -> None:
    properties = Properties(
        message_id=f"ID:{UUID_TEXT}", reply_to="direct://amq.direct//q?routingkey='q'", timestamp=1_700_000_000_123
    )
    for broker_j in (False, True):
        header = write_header(Message(b"", properties), "key", 0, None, "guest", broker_j)
        delivery, message = structs(header)
        assert delivery.timestamp == 1_700_000_000_123
        assert message.message_id == UUID(UUID_TEXT)
        assert message.reply_to == ReplyToStruct("amq.direct", "q")
        assert decode(header, broker_j) == properties
    seconds = write_header(Message(b"", Properties(timestamp=1_700_000_000)), "key", 0, None, "guest", True)
    assert structs(seconds)[0].timestamp == 1_700_000_000_000
    assert there_and_back(Properties(message_id=UUID_TEXT)).message_id == UUID_TEXT
    assert type(there_and_back(Properties(message_id=UUID_TEXT)).message_id) is str


def test_a_jms_message_of_broker_j_keeps_its_milliseconds() -> None:
    properties = Properties(
        content_type="text/plain",
        delivery_mode=2,
        priority=4,
        message_id=UuidMessageId(UUID_TEXT),
        timestamp=ArrivalTime.of(1_700_000_000, 1_700_000_000_123),
    )
    header = write_header(Message(b"", properties), "key", 0, None, "guest", True)
    time = decode(header, True).timestamp
    assert type(time) is ArrivalTime
    assert (time, time.milliseconds) == (1_700_000_000, 1_700_000_000_123)


def test_a_server_says_when_a_message_expires() -> None:
    message = Message(b"", Properties(expiration="60000"))
    message.expires_at = 1_700_000_060_000
    delivery = structs(write_header(message, "k", 0, "x", None))[0]
    assert (delivery.ttl, delivery.expiration) == (60_000, 1_700_000_060_000)
    assert read_delivery(write_header(message, "k", 0, "x", None))[1:] == ("x", "k")


def test_a_delivery_names_its_exchange() -> None:
    header = write_header(Message(), "k", REDELIVERED, "x", None)
    assert structs(header)[0] == DeliveryProperties(redelivered=True, exchange="x", routing_key="k")
    flags, *names = read_delivery(header)
    assert flags & REDELIVERED
    assert names == ["x", "k"]
    assert read_delivery(header)[1:] == ("x", "k")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 10},
        {"priority": 255},
        {"delivery_mode": 0},
        {"delivery_mode": 7},
        {"message_id": "m-1"},
        {"message_id": UUID_TEXT.upper().replace("1", "A")},
        {"message_id": "x" * 36},
        {"message_id": "1-" * 18},
        {"message_id": ""},
        {"message_id": "\udcff"},
        {"correlation_id": b"\xff"},
        {"correlation_id": "ü"},
        {"correlation_id": "\udcff"},
        {"app_id": b"\xfe"},
        {"app_id": "\udcfe"},
        {"reply_to": ReplyTo("x", "k")},
        {"reply_to": ReplyTo("", "k")},
        {"reply_to": ""},
        {"expiration": "060"},
        {"expiration": "soon"},
        {"expiration": ""},
        {"expiration": "-1"},
        {"expiration": str(1 << 64)},
        {"expiration": "0"},
        {"timestamp": 1_700_000_000},
        {"type": "order"},
        {"cluster_id": "c"},
        {"headers": None},
        {"headers": {}},
        {"headers": {}, "type": "t"},
        {"headers": {"x-jms-type": "t"}},
        {"headers": {"x-jms-type": "t"}, "type": "t"},
        {"headers": {"x-jms-type": "t"}, "type": "other"},
        {"headers": None, "type": "t"},
        {"headers": {"m": {"l": [1, "x", None]}, "d": Decimal("1.5"), "t": Timestamp(7)}},
        {"headers": {"d": Decimal("1e30")}},
        {"headers": {"s": "x" * 70_000}},
        {"headers": {"s": "x" * 60_000}},
        {"headers": {"b": Typed("string", b"\xff")}},
        {"headers": {"l": Typed("uint64", 5), "u": UUID(UUID_TEXT), "a": Typed("typed-array", b"\x02\0\0\0\x01\x05")}},
        {"headers": {"i": 1 << 40, "b": True, "f": 1.5, "x": b"\xff", "v": None}},
    ],
    ids=repr,
)
def test_everything_there_and_back(changes: dict[str, Any]) -> None:
    properties = Properties(**{**{name: getattr(FITS, name) for name in Properties.__dataclass_fields__}, **changes})
    assert there_and_back(properties) == properties
    assert there_and_back(properties, None) == properties


def test_a_foreign_user_is_carried_and_not_restored() -> None:
    header = write(Properties(user_id="mallory"))
    assert structs(header)[1].user_id is None
    assert structs(header)[1].application_headers[RESERVED] == {"user_id": "mallory"}
    assert decode(header).user_id is None


def test_the_servers_word_on_the_user_stands() -> None:
    assert there_and_back(Properties(user_id="anyone"), None).user_id == "anyone"
    assert there_and_back(Properties(user_id=b"\xff"), None).user_id == b"\xff"


def test_an_id_that_is_no_uuid_becomes_the_same_uuid_always() -> None:
    first, second = (structs(write(Properties(message_id="m-1")))[1].message_id for _ in range(2))
    assert first == second
    assert first.version == 5


def test_the_brokers_timestamp_is_shown_where_the_publisher_gave_none() -> None:
    header = segment(DeliveryProperties(timestamp=1_700_000_000_123))
    assert decode(header).timestamp == 1_700_000_000_123
    assert decode_milliseconds(header).timestamp == 1_700_000_000
    carried = structs(write(Properties(timestamp=5)))[1]
    assert decode(segment(DeliveryProperties(timestamp=9), carried)).timestamp == 5


def test_the_type_of_qpids_client_is_read_from_its_header() -> None:
    header = segment(MessageProperties(application_headers={"x-jms-type": "order"}))
    assert decode(header).type == "order"
    assert decode(header).headers == {"x-jms-type": "order"}
    assert decode(segment(MessageProperties(application_headers={"x-jms-type": 5}))).type is None


# ------------------------------------------------------------------------------------------- raw octets


def raw(*items: Any, body: bytes = b"") -> Message:
    return read_message(segment(*items), body)


def test_raw_octets_pass_but_for_the_delivery() -> None:
    properties = MessageProperties(4, content_type="x", application_headers={"n": Typed("uint8", 1)})
    came = DeliveryProperties(
        discard_unroutable=True,
        redelivered=True,
        priority=3,
        delivery_mode=2,
        ttl=9,
        timestamp=5,
        expiration=6,
        exchange="old",
        routing_key="old",
        resume_id="r",
        resume_ttl=7,
    )
    message = raw(came, properties, body=b"body")
    assert structs(write_header(message, "new", 0, None, "guest")) == [
        DeliveryProperties(priority=3, delivery_mode=2, ttl=9, timestamp=5, routing_key="new"),
        properties,
    ]
    assert structs(write_header(message, "new", REDELIVERED, "x", None)) == [
        DeliveryProperties(
            redelivered=True, priority=3, delivery_mode=2, ttl=9, timestamp=5, exchange="x", routing_key="new"
        ),
        properties,
    ]
    backwards = raw(properties, came, body=b"body")
    assert write_header(backwards, "k", 0, None, "guest") == write_header(message, "k", 0, None, "guest")


def test_raw_octets_without_one_struct_or_the_other() -> None:
    assert structs(write_header(raw(), "k", 0, None, "guest")) == [DeliveryProperties(routing_key="k")]
    only = MessageProperties(content_type="x")
    assert structs(write_header(raw(only), "k", 0, None, "guest")) == [DeliveryProperties(routing_key="k"), only]
    delivery = DeliveryProperties(priority=1)
    assert structs(write_header(raw(delivery), "k", DISCARD_UNROUTABLE, None, "guest")) == [
        DeliveryProperties(discard_unroutable=True, priority=1, routing_key="k")
    ]


def test_raw_octets_that_are_not_true_are_written_anew() -> None:
    message = raw(MessageProperties(4, user_id=b"mallory"), body=b"body")
    assert structs(write_header(message, "k", 0, None, "guest"))[1].user_id is None
    assert structs(write_header(message, "k", 0, None, "mallory"))[1].user_id == b"mallory"
    assert structs(write_header(message, "k", 0, None, None))[1].user_id == b"mallory"
    message = raw(MessageProperties(99, content_type="x"), body=b"body")
    assert structs(write_header(message, "k", 0, None, None))[1].content_length == 4


def test_octets_of_another_dialect_are_not_passed_on() -> None:
    other = RawProperties(b"\x80\x00\x01x", "0-9-1", lambda octets: Properties(content_type="x"))
    assert structs(write_header(Message(b"", None, other), "k", 0, None, "guest"))[1].content_type == "x"


def test_properties_wait_until_they_are_asked_for() -> None:
    message = read_message(b"\x00\x00\x00\x06\x04\x03\x01\x00\x00\x00", b"body")
    assert message.raw is not None
    assert message.raw.dialect == DIALECT
    with pytest.raises(FrameSyntaxError):
        message.properties  # noqa: B018  # decodes


# ---------------------------------------------------------------------------------- what is no header


@pytest.mark.parametrize(
    "header",
    [
        b"\x00",
        b"\x00\x00\x00\x04\x04\x01\x00",
        b"\x00\x00\x00\x03\x04\x01\x00\x00",
        b"\xff\xff\xff\xff\x04\x01\x00\x00",
        b"\x00\x00\x00\x04\x04\x01\x00\x01",
        b"\x00\x00\x00\x06\x04\x01\x00\x02\x05a",
        b"\x00\x00\x00\x07\x04\x01\x00\x02\x01ab",
        b"\x00\x00\x00\x07\x04\x01\x00\x03\x01a\x01",
        b"\x00\x00\x00\x04\x04\x01\x00\x10",
        b"\x00\x00\x00\x06\x04\x01\x00\x06\x05a",
        b"\x00\x00\x00\x04\x04\x01\x00\x00\x00\x00\x00\x04\x04\x03\x00\x00\x00",
        b"\x00\x00\x00\x02\x04\x01\x00\x00\x00\x00\x00\x04\x04\x03\x00\x00",
    ],
    ids=bytes.hex,
)
def test_delivery_properties_that_are_none(header: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        read_delivery(header)


def test_nothing_is_a_header() -> None:
    assert read_delivery(b"") == (0, "", "")
    assert decode(b"") == Properties()


@pytest.mark.parametrize(
    "fields",
    [
        b"\x01\x00\x00",
        b"\x08\x00\x00\x01\x01",
        b"\x08\x00\x00\x03\x04\x00\x00",
        b"\x08\x00\x00\x02\x01\x00\x01a",
        b"\x00\x02",
        b"\x00\x01\x00\x00\x00\xff",
        b"\x04\x00\x00\x05ab",
    ],
    ids=bytes.hex,
)
def test_message_properties_that_are_none(fields: bytes) -> None:
    octets = b"\x04\x03" + fields
    with pytest.raises(FrameSyntaxError):
        decode(struct.pack(">I", len(octets)) + octets)


def test_a_reply_to_without_fields() -> None:
    octets = b"\x04\x03\x08\x00\x00\x00"
    assert decode(struct.pack(">I", len(octets)) + octets).reply_to is None
    octets = b"\x04\x03\x08\x00\x00\x02\x00\x00"
    assert decode(struct.pack(">I", len(octets)) + octets).reply_to == ""


@given(st.binary(max_size=120))
def test_any_octets_are_properties_or_a_syntax_error(octets: bytes) -> None:
    for header in (octets, struct.pack(">I", len(octets) + 2) + b"\x04\x03" + octets):
        for read in (read_delivery, decode):
            try:
                read(header)
            except FrameSyntaxError:
                pass


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_octet_is_properties_or_a_syntax_error(at: int, change: int) -> None:
    header = bytearray(write(FITS))
    header[at % len(header)] ^= change
    for read in (read_delivery, decode):
        try:
            read(bytes(header))
        except FrameSyntaxError:
            pass


@pytest.mark.parametrize(
    "properties",
    [
        Properties(content_type="x" * 256),
        Properties(content_encoding="\ud800"),
        Properties(reply_to="x" * 256),
        Properties(correlation_id="x" * 65_536),
        Properties(headers={"k" * 256: 1}),
        Properties(headers={"k": object()}),
        Properties(headers={"k": Typed("nonsense", 5)}),
        Properties(headers=[1]),  # type: ignore[arg-type]
        Properties(headers="text"),  # type: ignore[arg-type]
        Properties(content_type=5),  # type: ignore[arg-type]
        Properties(content_encoding=b"x"),  # type: ignore[arg-type]
        Properties(priority=-1),
        Properties(priority="high"),  # type: ignore[arg-type]
        Properties(correlation_id=5),  # type: ignore[arg-type]
        Properties(app_id=["x"]),  # type: ignore[arg-type]
        Properties(message_id=5),  # type: ignore[arg-type]
        Properties(reply_to=5),  # type: ignore[arg-type]
        Properties(expiration=5),  # type: ignore[arg-type]
    ],
    ids=lambda properties: repr(properties)[:60],
)
def test_what_does_not_fit_is_named(properties: Properties) -> None:
    with pytest.raises(EncodeError):
        write(properties)


def test_properties_that_came_broken_are_not_sent_on_in_another_form() -> None:
    """To where they came from they pass as they are; anywhere else they would have to be read."""
    header = b"\x00\x00\x00\x06\x04\x03\x01\x00\x00\x00"
    with pytest.raises(EncodeError, match="the properties do not fit"):
        write_header(read_message(header, b"body", True), "k", 0, None, "guest", False)


def test_a_routing_key_that_does_not_fit_is_named() -> None:
    with pytest.raises(EncodeError, match="routing_key: 256 octets"):
        write_header(Message(), "k" * 256, 0, None, "guest")
    with pytest.raises(EncodeError, match="exchange: 256 octets"):
        write_header(Message(), "k", 0, "x" * 256, None)


def test_the_caches_of_names_stay_small() -> None:
    for number in range(3_000):
        header = write_header(Message(), str(number), 0, "x", None)
        assert read_delivery(header)[2] == str(number)
        header = write_header(Message(), str(number), 0, None, None)
        assert read_delivery(header)[1:] == ("", str(number))
    assert all(0 < len(named) <= 1_024 for named in translate._NAMED.values())
    assert len(translate._WRITTEN) <= 1_024


@given(
    st.builds(
        Properties,
        content_type=st.none() | st.text(max_size=20),
        headers=st.none() | st.dictionaries(st.text(max_size=8), st.integers(-5, 1 << 60) | st.text(max_size=8)),
        delivery_mode=st.none() | st.integers(0, 255),
        priority=st.none() | st.integers(0, 255),
        correlation_id=st.none() | st.text(max_size=20),
        reply_to=st.none() | st.text(max_size=20) | st.builds(ReplyTo, st.text(max_size=5), st.text(max_size=5)),
        expiration=st.none() | st.text(max_size=8) | st.integers(0, 1 << 70).map(str),
        message_id=st.none() | st.text(max_size=40) | st.uuids().map(str),
        timestamp=st.none() | st.integers(0, (1 << 64) - 1),
        type=st.none() | st.text(max_size=8),
        app_id=st.none() | st.text(max_size=8),
        cluster_id=st.none() | st.text(max_size=8),
    )
)
def test_any_properties_there_and_back(properties: Properties) -> None:
    assert there_and_back(properties) == properties


KEPT_BY_BROKER_J = {"i": 5, "s": "a", "b": b"x", "n": None, "l": [1, {"f": 1.5}], "u": UUID(int=5)}


@pytest.mark.parametrize(
    "value",
    [
        Timestamp(5),
        1 << 63,
        Decimal("1.50"),
        Typed("uint8", 5),
        Typed("str8", "a"),
        Typed("bin16", b"ab"),
        {"deep": [Timestamp(5)]},
    ],
)
def test_what_broker_j_rewrites_travels_as_what_it_keeps(value: Value) -> None:
    properties = Properties(headers={**KEPT_BY_BROKER_J, "odd": value})
    header = write_header(Message(b"", properties), "k", 0, None, "guest", broker_j=True)
    kinds: set[str] = set()

    def collect(item: Value) -> None:
        kinds.add(type_of(item))
        for inner in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            collect(inner)

    wire = structs(header)[1].application_headers
    assert wire is not None
    collect(wire)
    assert kinds <= BROKER_J_KEEPS
    back = read_message(header, b"", broker_j=True).properties
    assert back == properties
    assert back.headers is not None
    assert type_of(back.headers["odd"]) == type_of(value)


def test_raw_headers_pass_to_broker_j_only_if_it_wrote_them() -> None:
    header = write_header(Message(b"", Properties(headers={"t": Timestamp(5)})), "k", 0, None, "guest")
    ours = write_header(read_message(header, b""), "k", 0, None, "guest", broker_j=True)
    assert read_message(ours, b"").properties.headers == {"t": Timestamp(5)}
    assert structs(ours) != structs(header)
    kept = write_header(Message(b"", Properties(headers=dict(KEPT_BY_BROKER_J))), "k", 0, None, "guest")
    assert write_header(read_message(kept, b"", broker_j=True), "k", 0, None, "guest", broker_j=True) == kept


def test_a_reply_to_that_is_no_text_is_carried() -> None:
    for to in ("\udcff", ReplyTo("\udcff", "k"), ReplyTo("x", "\udcff"), ReplyTo("", "k")):
        header = write(Properties(reply_to=to))
        assert there_and_back(Properties(reply_to=to)).reply_to == to
        if to != ReplyTo("", "k"):
            assert structs(header)[1].reply_to is None


def test_names_that_are_no_text_travel_under_another() -> None:
    headers = {"\udcff": 1, "a": {"\udcfe": [{"\udcff": "x"}]}, "é": 2}
    assert there_and_back(Properties(headers=headers)).headers == headers
    assert list(there_and_back(Properties(headers=headers)).headers or {}) == list(headers)
    names = list(structs(write(Properties(headers=headers)))[1].application_headers)
    assert names == ["x-gateway-key-0", "a", "é", RESERVED]


def test_other_structs_go_along() -> None:
    fragment = FragmentProperties(first=True, fragment_size=7)
    for message in (
        raw(fragment, MessageProperties(4), body=b"body"),
        raw(fragment, MessageProperties(99), body=b"body"),
    ):
        for broker_j in (False, True):
            header = write_header(message, "k", 0, None, "guest", broker_j)
            assert structs(header)[2] == fragment
            assert structs(header)[1].content_length == 4


def test_whether_octets_stay_as_they_are() -> None:
    message = raw(MessageProperties(4, user_id=b"ann"), body=b"body")
    assert untouched(message, "ann", False)
    assert not untouched(message, "bob", False)
    assert not untouched(message, "ann", True)
    assert not untouched(Message(b"body"), "ann", False)
    assert untouched(raw(), "ann", False)
    assert untouched(read_message(segment(MessageProperties(0)), b"", True), None, False)


def test_a_broker_s_time_goes_along_where_it_means_the_same() -> None:
    segment_of = segment(DeliveryProperties(timestamp=5_000), MessageProperties(0))
    same = write_header(read_message(segment_of, b"", True), "k", 0, None, "guest", True)
    assert structs(same)[0].timestamp == 5_000
    other = write_header(read_message(segment_of, b"", True), "k", 0, None, "guest", False)
    assert structs(other)[0].timestamp is None
    decoded = Message(b"", Properties(timestamp=ArrivalTime(5)))
    assert structs(write_header(decoded, "k", 0, None, "guest", True))[0].timestamp == 5_000
    assert structs(write_header(decoded, "k", 0, None, "guest", False))[0].timestamp == 5
    carried = write_header(Message(b"", Properties(headers={RESERVED: {"id": "x"}})), "k", 0, None, "guest")
    stamped = segment(DeliveryProperties(timestamp=5), *structs(carried)[1:])
    assert decode(stamped).timestamp is None, "a gateway has carried it, and the publisher gave none"


def test_an_instant_stays_one() -> None:
    deadline = Deadline.at(1_700_000_060_000, 1_700_000_000.0)
    found = there_and_back(Properties(expiration=deadline)).expiration
    assert isinstance(found, Deadline)
    assert (found, found.instant) == ("60000", 1_700_000_060_000)


def test_the_type_is_the_header_of_qpids_client() -> None:
    header = write(Properties(type="order", headers={"a": 1}))
    assert structs(header)[1].application_headers == {
        "a": 1, "x-jms-type": "order", RESERVED: {"type": "x-jms-type"},
    }  # fmt: skip
    changed = segment(MessageProperties(application_headers={"x-jms-type": "mine", RESERVED: {"type": "x-jms-type"}}))
    assert decode(changed) == Properties(type="mine")
    gone = segment(MessageProperties(application_headers={RESERVED: {"type": "x-jms-type"}}))
    assert decode(gone) == Properties()


def test_without_the_reserved_header_what_does_not_fit_is_left_out() -> None:
    header = write_header(Message(b"", Properties(timestamp=5, type="t"), None, ()), "k", 0, None, "guest")
    assert structs(header)[1].application_headers == {"x-jms-type": "t"}


def test_a_header_named_like_the_home_of_the_type_is_no_type() -> None:
    properties = Properties(headers={"x-jms-type": "data"})
    assert there_and_back(properties) == properties
    assert there_and_back(Properties(headers={"x-jms-type": "data"}, type="data")).type == "data"

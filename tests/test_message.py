"""Properties stay octets until someone asks."""

from dataclasses import replace

from gateway.amqp.message import (
    PROPERTY_NAMES,
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    RawProperties,
    with_headers,
)


def test_properties_are_decoded_once_and_only_when_asked_for() -> None:
    calls: list[bytes] = []

    def decode(octets: bytes) -> Properties:
        calls.append(octets)
        return Properties(type="t")

    message = Message(b"body", raw=RawProperties(b"\x01", "0-9-1", decode))
    assert repr(message) == "Message(4 octets, None)"
    assert calls == []
    assert message.properties == Properties(type="t")
    assert message.properties is message.properties
    assert calls == [b"\x01"]


def test_messages_are_equal_by_what_they_say() -> None:
    raw = RawProperties(b"", "0-10", lambda octets: Properties(type="t"))
    assert Message(b"x", raw=raw) == Message(b"x", Properties(type="t"))
    assert Message(b"x") != Message(b"y")
    assert Message(b"x") == Message(b"x", Properties())
    assert Message() != 5


def test_other_headers_and_nothing_else() -> None:
    properties = Properties(*(f"value of {name}" for name in PROPERTY_NAMES))  # type: ignore[arg-type]
    assert with_headers(properties, {"a": 1}) == replace(properties, headers={"a": 1})


def test_a_deadline_is_what_is_left_of_it() -> None:
    deadline = Deadline.at(1_700_000_060_000, 1_700_000_000.25)
    assert (deadline, deadline.instant) == ("59750", 1_700_000_060_000)
    assert Deadline.at(5, 1_700_000_000.0) == "0"
    assert Deadline.of(7, "12").instant == 7


def test_a_broker_s_time_is_a_number() -> None:
    assert ArrivalTime(5) == 5
    assert str(ArrivalTime(5)) == "5"


def test_what_came_from_a_broker_is_known() -> None:
    raw = RawProperties(b"", "0-10", lambda octets: Properties())
    assert Message(b"", None, raw).relayed
    assert not Message(b"").relayed
    assert Message(b"", relayed=True).relayed
    assert Message(b"").left_out is None
    assert raw.seam is None

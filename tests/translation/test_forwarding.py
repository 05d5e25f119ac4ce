"""A message as a bridge sends it on: entries, headers that brokers act upon, the last hop, the digest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import ArrivalTime, Deadline, Message, Properties, RawProperties, ReplyTo
from gateway.amqp.values import Table, Typed
from gateway.errors import FrameSyntaxError
from gateway.fidelity import HELD, RESERVED, digest, forward, is_bare, is_held, raw_annotations, strip
from gateway.fidelity.forwarding import HELD_MAX
from tests.translation.ends import ENDS

ENTRIES = {"id": "0190", "origin": "shop/m-1"}
DEATH: Table = {
    "x-death": [{"queue": "q", "count": 3, "exchange": ""}],
    "x-first-death-queue": "q",
    "x-first-death-reason": "expired",
}
ACTED_UPON: Table = {**DEATH, "CC": ["a", "b"], "BCC": ["c"], "x-delay": 5_000}
MERE_DATA: Table = {"x-jms-type": "order", "qpid.subject": "s", "x-received-from": ["x"], "cc": "no", "x-deaths": 1}
CLASSIC = ENDS["0-9-1 rabbitmq"]


def raw(headers: Table | None, end: str = "0-9-1 rabbitmq", **others: Any) -> Message:
    """A message that came from a broker and is not decoded."""
    return ENDS[end].there_and_back(Message(b"body", Properties(headers=headers, **others)))


def headers_of(message: Message) -> Table:
    assert message.properties.headers is not None
    return message.properties.headers


@pytest.mark.parametrize("end", ENDS)
def test_the_usual_message_stays_undecoded(end: str) -> None:
    message = raw({"a": 1, "b": "x"}, end, content_type="t")
    sent = forward(message, ENTRIES)
    assert message._properties is None
    assert sent.raw is not None
    assert sent.relayed
    assert headers_of(sent) == {"a": 1, "b": "x", RESERVED: ENTRIES}
    assert raw_annotations(sent) == ENTRIES
    assert raw_annotations(message) == {}
    again = forward(sent, {"hops": "2", "id": "0191"})
    assert raw_annotations(again) == {"origin": "shop/m-1", "hops": "2", "id": "0191"}
    assert digest(message) == digest(sent) == digest(again) == digest(Message(b"body", message.properties))


@pytest.mark.parametrize("name", ACTED_UPON)
@pytest.mark.parametrize("decoded", [False, True])
def test_what_brokers_act_upon_is_held_and_comes_out_only_where_it_is_asked_for(name: str, decoded: bool) -> None:
    headers = {"a": 1, name: ACTED_UPON[name], "z": 2}
    message = raw(headers)
    if decoded:
        message = Message(message.body, message.properties)
    sent = forward(message, ENTRIES)
    assert headers_of(sent) == {"a": 1, "z": 2, RESERVED: {"held": {name: headers[name]}, "held_at": "1", **ENTRIES}}
    assert digest(sent) == digest(message)
    assert forward(message, ENTRIES, release=frozenset({name})).properties.headers == {**headers, RESERVED: ENTRIES}
    for end in ENDS.values():
        away = end.there_and_back(sent)
        assert name not in headers_of(away)
        on = end.there_and_back(forward(away, {"hops": "2"}))
        assert digest(on) == digest(message)
        out = forward(on, {}, release=frozenset({name}))
        assert list(headers_of(out)) == ["a", name, "z", RESERVED]
        assert headers_of(out)[name] == headers[name]
        assert "held" not in headers_of(out)[RESERVED]


def test_several_come_out_where_they_were() -> None:
    headers = {"a": 1, **ACTED_UPON, "z": 2}
    sent = forward(raw(headers), ENTRIES)
    assert list(headers_of(sent)) == ["a", "z", RESERVED]
    out = forward(sent, {}, release=frozenset(ACTED_UPON))
    assert list(headers_of(out)) == [*headers, RESERVED]
    some = forward(sent, {}, release=frozenset(DEATH))
    assert headers_of(some)[RESERVED]["held"] == {name: headers[name] for name in ("CC", "BCC", "x-delay")}
    there = forward(Message(b"", Properties(headers={"CC": ["new"], RESERVED: {"held": {"CC": ["old"]}}})), {})
    assert headers_of(there)[RESERVED]["held"] == {"CC": ["new"]}
    there = forward(
        Message(b"", Properties(headers={"CC": ["new"], RESERVED: {"held": {"CC": ["old"]}}})),
        {},
        release=frozenset({"CC"}),
    )
    assert headers_of(there) == {"CC": ["new"], RESERVED: {}}


def test_mere_data_stays() -> None:
    sent = forward(raw(MERE_DATA), ENTRIES)
    assert headers_of(sent) == {**MERE_DATA, RESERVED: ENTRIES}
    assert not any(is_held(name) for name in MERE_DATA)
    assert all(is_held(name) for name in ACTED_UPON)
    assert ACTED_UPON.keys() >= HELD


def test_headers_are_set_and_removed() -> None:
    message = raw({"a": 1, "b": 2, "CC": ["x"], RESERVED: {"id": "old", "held": {"x-delay": 5}}})
    sent = forward(
        message,
        ENTRIES,
        set_headers={"a": "new", "c": True, RESERVED: "no"},
        remove_headers=("b", "absent", "x-delay", RESERVED),
    )
    assert headers_of(sent) == {"a": "new", "c": True, RESERVED: {**ENTRIES, "held": {"CC": ["x"]}, "held_at": "1"}}
    assert headers_of(message)["b"] == 2
    assert sent.relayed


@pytest.mark.parametrize(
    "entry",
    [
        {"held": "text"},
        {"held": {"other": 1}},
        {"held": {f"x-first-death-{number}": 1 for number in range(HELD_MAX + 3)}},
        {"held": {"CC": ["x"]}, "held_at": 5},
        {"held": {"CC": ["x"]}, "held_at": "-1"},
        {"held": {"CC": ["x"]}, "held_at": "999999"},
        {"held": {"CC": ["x"]}, "held_at": ",,,,"},
    ],
)
def test_what_is_held_is_not_believed_blindly(entry: Any) -> None:
    message = Message(b"", Properties(headers={"a": 1, RESERVED: entry}))
    out = headers_of(forward(message, {}, release=frozenset({"CC", "other"})))
    assert out.pop(RESERVED) in ({}, {"held": 1})
    assert out in ({"a": 1}, {"a": 1, "CC": ["x"]})
    digest(message)


def test_no_more_is_held_than_there_is_room_for() -> None:
    headers: Table = {f"x-first-death-{number}": number for number in range(HELD_MAX + 9)}
    sent = forward(Message(b"", Properties(headers=headers)), {})
    assert len(headers_of(sent)[RESERVED]["held"]) == HELD_MAX
    assert len(headers_of(sent)) == 10


def test_headers_that_route_copies_are_held_however_many_others_are() -> None:
    headers: Table = {f"x-first-death-{number}": number for number in range(HELD_MAX + 1)}
    message = Message(b"", Properties(headers={**headers, "CC": ["elsewhere"], "BCC": ["there"]}))
    sent = forward(message, {})
    assert headers_of(sent).keys() == {f"x-first-death-{HELD_MAX}", RESERVED}
    assert headers_of(sent)[RESERVED]["held"]["CC"] == ["elsewhere"]
    released = headers_of(forward(sent, {}, release=frozenset({"CC", "BCC"})))
    assert (released["CC"], released["BCC"]) == (["elsewhere"], ["there"])


def test_absent_and_empty_headers_are_told_apart() -> None:
    for end in ENDS:
        for headers in (None, {}):
            message = raw(headers, end)
            for sent in (forward(message, ENTRIES), forward(Message(b"", message.properties), ENTRIES)):
                assert strip(ENDS[end].there_and_back(sent)).properties.headers == headers


def test_properties_that_are_none() -> None:
    def broken(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    message = Message(b"", None, RawProperties(b"?x-gateway", "x", broken))
    for ask in (raw_annotations, digest, strip, lambda message: forward(message, {})):
        with pytest.raises(FrameSyntaxError, match="broken"):
            ask(message)
    passes = Message(b"", None, RawProperties(b"?", "x", broken))
    assert raw_annotations(passes) == {}
    assert strip(passes).raw is passes.raw


def test_annotations_of_every_shape() -> None:
    assert raw_annotations(Message()) == {}
    assert raw_annotations(Message(b"", Properties(headers={RESERVED: "text"}))) == {}
    assert raw_annotations(Message(b"", Properties(headers={RESERVED: {"id": "x", "n": 5}}))) == {"id": "x"}
    assert raw_annotations(raw({"k": RESERVED})) == {}
    assert raw_annotations(raw({RESERVED: 5})) == {}


def test_the_last_hop_takes_everything_off() -> None:
    message = forward(raw({"a": 1, "CC": ["x"]}, timestamp=5, type="t", message_id="m-1"), ENTRIES)
    stripped = strip(message)
    assert stripped.properties == Properties(headers={"a": 1}, timestamp=5, type="t", message_id="m-1")
    assert stripped.left_out == ("CC",)
    there = ENDS["0-10 other"].there_and_back(stripped)
    assert headers_of(there) == {"a": 1, "x-jms-type": "t"}
    assert type(there.properties.timestamp) is ArrivalTime, "it counts as the broker's"
    assert there.properties.message_id not in (None, "m-1")
    untouched = raw({"a": 1})
    assert strip(untouched).raw is untouched.raw
    assert strip(untouched).left_out == ()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("headers", [None, {"a": 1, "b": "x"}])
def test_on_the_last_hop_a_bare_message_is_what_it_was(end: str, headers: Table | None) -> None:
    message = raw(headers, end, content_type="t")
    assert is_bare(message)
    assert message._properties is None
    assert strip(forward(message, ENTRIES)).properties == message.properties


def test_what_is_not_bare() -> None:
    assert not is_bare(Message(b"", Properties()))
    assert not is_bare(forward(raw({"a": 1}), ENTRIES))
    for name, value in ACTED_UPON.items():
        assert not is_bare(raw({name: value}))
    sound = raw({"a": 1}).raw
    assert sound is not None
    for octets, seam in ((sound.octets[:-1], sound.seam), (sound.octets, None)):
        assert not is_bare(Message(b"", None, RawProperties(octets, sound.dialect, sound.decode, seam)))


# ------------------------------------------------------------------------------------------------- the digest


def test_the_digest_covers_everything() -> None:
    base = Properties(content_type="t", headers={"a": 1, "b": [1, {"c": "x"}]}, delivery_mode=2, message_id="m")
    seen = {digest(Message(b"body", base))}
    for body, changes in (
        (b"other", {}),
        (b"body", {"content_type": "u"}),
        (b"body", {"content_type": None}),
        (b"body", {"content_encoding": "t", "content_type": None}),
        (b"body", {"delivery_mode": 1}),
        (b"body", {"timestamp": 5}),
        (b"body", {"expiration": "5"}),
        (b"body", {"expiration": Deadline.of(5, "5")}),
        (b"body", {"reply_to": "k"}),
        (b"body", {"reply_to": ReplyTo("", "k")}),
        (b"body", {"user_id": "ann"}),
        (b"body", {"headers": None}),
        (b"body", {"headers": {"a": Typed("int8", 1), "b": [1, {"c": "x"}]}}),
        (b"body", {"headers": {"a": 1, "b": [1, {"c": b"x"}]}}),
        (b"body", {"headers": {"a": 1, "b": [1, {"c": "y"}]}}),
        (b"body", {"headers": {"a": True, "b": [1, {"c": "x"}]}}),
        (b"body", {"headers": {"a": 1.0, "b": [1, {"c": "x"}]}}),
    ):
        values = {name: getattr(base, name) for name in Properties.__dataclass_fields__}
        seen.add(digest(Message(body, Properties(**{**values, **changes}))))
    assert len(seen) == 18
    swapped = {"b": [1, {"c": "x"}], "a": 1}
    assert digest(Message(b"body", replace(base, headers=swapped))) in seen, "RabbitMQ 4 sorts headers"
    longer = Message(b"body", replace(base, expiration="005"))
    assert digest(longer) in seen, "RabbitMQ 4 writes an expiration anew"
    nested = {"a": 1, "b": [{"c": "x", "d": 1}]}, {"a": 1, "b": [{"d": 1, "c": "x"}]}
    assert len({digest(Message(b"", Properties(headers=headers))) for headers in nested}) == 2


def test_the_digest_leaves_out_what_is_not_the_message_s() -> None:
    one = Properties(headers={"a": 1})
    for other in (
        Properties(headers={"a": 1, RESERVED: {"id": "x"}}),
        Properties(headers={"a": 1}, timestamp=ArrivalTime(5)),
    ):
        assert digest(Message(b"x", one)) == digest(Message(b"x", other))
    assert digest(Message(b"x", Properties(headers={}))) == digest(Message(b"x"))
    assert len(digest(Message())) == 32


def test_a_user_id_that_travels_as_a_claim_counts() -> None:
    message = raw({"a": 1}, user_id="guest")
    assert message.properties.user_id == "guest"
    foreign = Message(b"body", Properties(headers={"a": 1}, user_id="ann"))
    away = CLASSIC.there_and_back(foreign)
    assert away.properties.user_id is None
    assert digest(away) == digest(foreign) != digest(message)
    assert digest(ENDS["0-10 qpid"].there_and_back(away)) == digest(foreign)

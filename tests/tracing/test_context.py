"""W3C Trace Context: what is read, what is not, and who is never overwritten."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.values import Typed
from gateway.tracing import TraceContext, header_pairs, into, of_message, of_request, parse, trace_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (PARENT, 1),
        (f" \t{PARENT} ", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 1),  # flags that are not known are not passed on
        (f"cc-{TRACE}-{SPAN}-01", 1),  # a version that is not known
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", 1),
    ],
)
def test_what_is_a_context(text: str, flags: int) -> None:
    found = parse(text)
    assert found is not None
    assert (found.trace_id, found.span_id, found.flags, found.sampled) == (TRACE, SPAN, flags, bool(flags))
    assert found.traceparent == f"00-{TRACE}-{SPAN}-{flags:02x}"
    assert repr(found) == f"Context(00-{TRACE}-{SPAN}-{flags:02x})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"{PARENT}\n",
        f"00-{TRACE}-{SPAN}-0\u0661",
    ],
)
def test_what_is_none(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("state", "kept"),
    [("a=1,b=2", True), ("", True), ("x" * 512, True), ("x" * 513, False), ("a=\r\nevil: 1", False), ("a=é", False)],
)
def test_a_state_is_passed_on_as_it_is_or_not_at_all(state: str, kept: bool) -> None:
    found = parse(PARENT, state)
    assert found is not None
    assert found.state == (state if kept else "")


def test_a_request_has_one_context() -> None:
    parent = (b"traceparent", PARENT.encode())
    found = of_request([(b"host", b"x"), parent, (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    assert found is not None
    assert (found.trace_id, found.state) == (TRACE, "a=1,b=2")
    assert header_pairs(found) == [parent, (b"tracestate", b"a=1,b=2")]
    assert of_request([parent, parent]) is None
    assert of_request([(b"tracestate", b"a=1")]) is None
    assert of_request([(b"traceparent", b"\xff")]) is None


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ({"traceparent": PARENT}, ""),
        ({"traceparent": PARENT, "tracestate": "a=1"}, "a=1"),
        ({"traceparent": PARENT.encode(), "tracestate": b"a=1"}, "a=1"),
        ({"traceparent": Typed("str8", PARENT)}, ""),
        ({"traceparent": PARENT, "tracestate": 7}, ""),
    ],
)
def test_a_message_brings_one_along_in_whatever_type(headers: dict[str, Any], state: str) -> None:
    found = of_message(Message(b"", Properties(headers=headers)))
    assert found is not None
    assert (found.traceparent, found.state) == (PARENT, state)
    assert trace_of(Message(b"", Properties(headers=headers))) == TRACE


@pytest.mark.parametrize(
    "headers",
    [None, {}, {"tracestate": "a=1"}, {"traceparent": 5}, {"traceparent": "no"}, {"Traceparent": PARENT},
     {"nested": {"traceparent": PARENT}}],
)  # fmt: skip
def test_a_message_that_brings_none(headers: Any) -> None:
    message = Message(b"", Properties(headers=headers))
    assert of_message(message) is None
    assert trace_of(message) == ""


def test_octets_are_decoded_only_where_the_word_stands_in_them() -> None:
    decoded: list[bytes] = []

    def decode(octets: bytes) -> Properties:
        decoded.append(octets)
        return Properties(headers={"traceparent": PARENT})

    assert of_message(Message(b"traceparent", None, RawProperties(b"nothing of it", "d", decode))) is None
    assert decoded == []
    found = of_message(Message(b"", None, RawProperties(b"..traceparent..", "d", decode)))
    assert found is not None
    assert len(decoded) == 1


def test_octets_that_are_no_properties_bring_none() -> None:
    from gateway.errors import FrameSyntaxError

    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no")

    assert of_message(Message(b"", None, RawProperties(b"traceparent", "d", decode))) is None


# ---------------------------------------------------------------------------------------------------- written

OURS = TraceContext(TRACE, SPAN, 1, "ours=1")


def test_a_message_without_headers_gets_both() -> None:
    before = Message(b"body", Properties(content_type="text/plain", delivery_mode=2))
    after = into(before, OURS)
    assert after.properties == Properties(
        content_type="text/plain", delivery_mode=2, headers={"traceparent": PARENT, "tracestate": "ours=1"}
    )
    assert after.body == b"body"
    assert before.properties.headers is None  # what somebody else holds is not changed
    assert of_message(after) is not None


def test_they_stand_behind_the_publishers_own() -> None:
    headers = {"b": 1, "a": [1, {"c": b"\xff"}]}
    after = into(Message(b"", Properties(headers=headers)), TraceContext(TRACE, SPAN, 1))
    assert after.properties.headers is not None
    assert list(after.properties.headers.items()) == [*headers.items(), ("traceparent", PARENT)]


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{'1' * 32}-{'2' * 16}-00"},
        {"traceparent": "no context at all"},
        {"traceparent": 5},
        {"tracestate": "theirs=1"},
    ],
)
def test_nobody_is_overwritten(headers: dict[str, Any]) -> None:
    message = Message(b"", Properties(headers=headers))
    assert into(message, OURS) is message
    assert message.properties.headers == headers


def test_what_came_from_a_broker_or_a_log_is_left_alone() -> None:
    relayed = Message(b"", Properties(), relayed=True)
    assert into(relayed, OURS) is relayed
    raw = Message(b"", None, RawProperties(b"", "d", lambda octets: Properties()))
    assert into(raw, OURS) is raw

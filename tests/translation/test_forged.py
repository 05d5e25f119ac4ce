"""A stale or forged reserved header changes nothing."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Deadline, Message, Properties
from gateway.amqp.values import Table, Timestamp, Typed, Value
from gateway.fidelity import RESERVED, digest, forward
from gateway.fidelity.homes import pack
from tests.pace import pace
from tests.translation.ends import ENDS, HEADER_SAMPLES, PROPERTY_SAMPLES, mine

WIRE = Properties(
    content_type="text/plain",
    delivery_mode=2,
    priority=5,
    correlation_id="c-1",
    reply_to="replies",
    expiration="60000",
    message_id="12345678-1234-5678-1234-567812345678",
    app_id="shop",
    headers={"n": 5, "s": "text", "l": [1, "x"], "t": {"a": "5"}},
)
"""Fits every version as it is."""


def seen(end: str, properties: Properties, entry: Value) -> Properties:
    """What the gateway reads of a message to which somebody gave a reserved header."""
    headers: Table = {**(properties.headers or {}), RESERVED: entry}
    octets = ENDS[end]._side.encode(Message(b"", replace(properties, headers=headers)))
    return mine(ENDS[end]._side.received(octets, b"").properties)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", [name for name in PROPERTY_SAMPLES if getattr(WIRE, name) is not None])
def test_a_property_that_is_there_is_not_replaced(end: str, name: str) -> None:
    plain = mine(ENDS[end].there_and_back(Message(b"", WIRE)).properties)
    for value in PROPERTY_SAMPLES[name]:
        for item in (pack(value), {"value": pack(value)}, {"value": pack(value), "as": "6000"}):
            assert seen(end, WIRE, {"properties": {name: item}}) == plain, (value, item)


@pytest.mark.parametrize("end", ["0-8 rabbitmq", "0-9-1 qpid"])
def test_what_a_version_has_a_place_for_was_not_carried(end: str) -> None:
    bare = Properties(headers={"a": 1})
    for name, value in (("timestamp", 5), ("type", "t"), ("message_id", "m"), ("priority", 9), ("content_type", "x")):
        for item in (pack(value), {"value": pack(value), "as": None}):
            assert seen(end, bare, {"properties": {name: item}}) == bare
    assert seen(end, bare, {"type": "a"}) == bare


@pytest.mark.parametrize("end", ENDS)
def test_nobody_vouches_for_a_user(end: str) -> None:
    for entry in (
        {"user_id": "root"},
        {"properties": {"user_id": "root"}},
        {"properties": {"user_id": {"value": "root"}}},
    ):
        assert seen(end, WIRE, entry).user_id is None


@pytest.mark.parametrize("end", ENDS)
def test_what_an_application_changed_wins(end: str) -> None:
    """It republished what it got, with some properties of its own and the headers as they were."""
    was = Properties(
        message_id="m-1", priority=200, type="order", correlation_id=b"\xff", expiration=Deadline.of(5, "5"),
        headers={"u": Typed("uint8", 5), "d": Typed("dec64", 5), "x": Timestamp(5)},
    )  # fmt: skip
    side = ENDS[end]._side
    octets = side.encode(forward(Message(b"", was), {"id": "0190"}))
    on_the_wire = side.seen(octets)
    headers = dict(on_the_wire.headers or {})
    if "x-jms-type" in headers:
        headers["x-jms-type"] = "mine"
    headers.update({"u": "mine", "d": 7, "x": "mine"})
    fresh = Properties(
        message_id="87654321-1234-5678-1234-567812345678", priority=3, correlation_id="mine", headers=headers,
        type=None if end in ("0-10 qpid", "0-10 other") else "mine", expiration="77",
    )  # fmt: skip
    if "qpid" in end and end[:4] != "0-10":
        fresh = replace(fresh, expiration=Deadline.at(1_700_000_000_077, 1_700_000_000.0))
    # Written by somebody who knows nothing of us: as it is.
    found = side.received(side.encode(Message(b"", fresh, None, ())), b"").properties
    assert (found.message_id, found.priority, found.correlation_id, found.expiration, found.type) == (
        fresh.message_id, 3, "mine", "77", "mine",
    )  # fmt: skip
    assert {key: value for key, value in (found.headers or {}).items() if key in "udx"} == {
        "u": "mine", "d": 7, "x": "mine",
    }  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_header_values_that_are_carried_anyway_keep_their_type(end: str) -> None:
    """For every type: a note that says it was another."""
    plain = mine(ENDS[end].there_and_back(Message(b"", WIRE)).properties).headers
    paths: list[list[Any]] = [["n"], ["s"], ["l", 0], ["l", 1], ["t", "a"], ["l"], ["t"], ["absent"], ["n", "x"], []]
    carried = {"int32", "string", "array", "table"}
    for kind in {*HEADER_SAMPLES, "strange"}:
        for path in paths:
            found = seen(end, WIRE, {"types": json.dumps([[path, kind]])}).headers
            if found != plain:  # a value that could have come from that type, where the version lacks it
                assert found is not None
                assert kind not in carried
                narrow = ENDS["0-10 qpid" if end == "0-10 other" else end]  # so it is read; see v010/translate.py
                again = narrow._side.fitted(Properties(headers=found), True).headers or {}
                assert {key: value for key, value in again.items() if key != RESERVED} == plain


@pytest.mark.parametrize(
    "entry",
    [
        None, 5, "text", [], {"properties": 5}, {"types": 5}, {"types": "{"}, {"types": b"\xff"}, {"type": 5},
        {"type": "n"}, {"empty": 5}, {"properties": {"headers": "x", "body": "x", "__class__": "x"}},
        {"types": json.dumps([[[["n"]], "uuid"], [["n"], 5], [5], {}, "x", [["n"], "key", "zz"]])},
        {"types": json.dumps([[["x-gateway-key-0"], "key", "ff"], [["n", "x-gateway-key-0"], "key", "ff"]])},
        {"held": {"x-death": [{"queue": "q"}]}, "held_at": "0"},
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("end", [end for end in ENDS if "published" not in end])  # lacks most of these types
def test_a_header_of_any_shape(end: str, entry: Value) -> None:
    plain = mine(ENDS[end].there_and_back(Message(b"", WIRE)).properties)
    if entry == {"type": "n"}:
        entry = {"type": "s"}
    found = seen(end, WIRE, entry) if isinstance(entry, dict) else None
    if found is not None:
        assert found == plain
        return
    headers = {**(WIRE.headers or {}), RESERVED: entry}
    plain = replace(plain, expiration=None, message_id=None)
    message = ENDS[end].there_and_back(Message(b"", replace(WIRE, headers=headers, expiration=None, message_id=None)))
    if (end, entry) == ("0-10 qpid", []):  # it has to be reshaped, and the note of that takes its place
        del headers[RESERVED]
    assert message.properties.headers == headers, "no header of ours is left alone"
    assert digest(message) == digest(Message(b"", plain))
    sent = forward(message, {"id": "0190"}).properties.headers
    assert sent is not None
    assert sent[RESERVED] == {"id": "0190"}, "but a bridge needs the name"


def seconds(entry: Value, headers: Table) -> float:
    """CPU time of reading it."""
    side = ENDS["0-9-1 rabbitmq"]._side
    octets = side.encode(Message(b"", Properties(headers={**headers, RESERVED: entry})))
    start = time.process_time()
    _ = side.received(octets, b"").properties
    return time.process_time() - start


def test_a_forged_header_is_no_quadratic_work() -> None:
    """As many notes as fit into the largest header, all about large tables."""
    table = {f"x-gateway-key-{number}": "x" for number in range(4_000)}
    notes = [[["t", name], "key", "ff"] for name in table] + [[["t", name], "uint64"] for name in table]
    assert seconds({"types": json.dumps(notes)}, {"t": table}) < pace()
    assert seconds({"types": "[" * 100_000}, {}) < pace()
    names = {f"name{number}": "x" for number in range(4_000)}
    assert seconds({"properties": names, "held": names, "held_at": "1," * 10_000}, {}) < pace()

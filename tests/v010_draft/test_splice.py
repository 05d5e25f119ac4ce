"""The reserved header in properties that stay undecoded."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message, Properties
from gateway.fidelity import RESERVED
from gateway.v010_draft.splice import SEAM
from gateway.v010_draft.translate import decode, write_properties


def octets(properties: Properties) -> bytes:
    return write_properties(Message(b"", properties), None)


@pytest.mark.parametrize("headers", [None, {"a": 1, "b": {"c": [None]}}])
def test_entries_are_added_behind_all_others(headers: dict[str, object] | None) -> None:
    before = octets(Properties(headers=headers, message_id="m"))
    assert SEAM.read(before) == {}
    after = SEAM.splice(before, {"id": "0190"})
    assert after is not None
    assert SEAM.read(after) == {"id": "0190"}
    assert decode(after) == Properties(headers={**(headers or {}), RESERVED: {"id": "0190"}}, message_id="m")
    assert list(decode(after).headers or {})[-1] == RESERVED


def test_what_only_a_decoder_can_do() -> None:
    there = octets(Properties(headers={RESERVED: {"id": "1", "n": 5}}))
    assert SEAM.read(there) == {"id": "1"}
    assert SEAM.splice(there, {"id": "2"}) is None
    assert SEAM.read(octets(Properties(headers={RESERVED: "text"}))) == {}
    broken = octets(Properties(headers={"a": 1})).replace(b"\x01a\x21", b"\x01a\xab")
    assert SEAM.read(broken) is None
    assert SEAM.splice(broken, {}) is None
    many = octets(Properties(headers=dict.fromkeys(map(str, range(4_096)))))
    assert SEAM.splice(many, {"id": "1"}) is None
    assert SEAM.splice(octets(Properties()), {"id": "x" * 70_000}) is None


def test_headers_that_are_there_and_none() -> None:
    assert decode(octets(Properties(headers={}))).headers == {}
    assert decode(octets(Properties())).headers is None
    assert decode(write_properties(Message(b"", Properties(headers={}), None, ()), None)).headers is None

"""What Broker-J does to messages that are its to keep, and how it is got round: seen on a live one
(docs/reference/brokers.md)."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.amqp.values import Typed
from gateway.v010 import translate as native


def header(properties: Properties, broker_j: bool = True) -> bytes:
    return native.write_header(Message(b"", properties), "key", 0, None, "guest", broker_j)


def read(octets: bytes, restored: bool = True, broker_j: bool = True) -> Properties:
    return native.decode(octets, broker_j, restored)


def test_broker_j_is_not_told_that_a_body_is_packed() -> None:
    """It would unpack it, to nothing where it is no gzip."""
    properties = Properties(content_encoding="gzip")
    segment = header(properties)
    assert read(segment, restored=False).content_encoding == "x-gzip"
    assert read(segment) == properties
    assert read(header(properties, False), False, False).content_encoding == "gzip"


@pytest.mark.parametrize("encoding", ["x-gzip", "GZIP", "deflate", ""])
def test_other_encodings_are_left_alone(encoding: str) -> None:
    properties = Properties(content_encoding=encoding)
    assert read(header(properties), restored=False) == properties


@pytest.mark.parametrize(
    "properties",
    [
        Properties(content_type="caf\udce9"),
        Properties(content_encoding="caf\udce9"),
        Properties(reply_to="caf\udce9"),
        Properties(reply_to=ReplyTo("caf\udce9", "key")),
        Properties(reply_to=ReplyTo("exchange", "caf\udce9")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("broker_j", [True, False])
def test_a_str8_is_utf_8(properties: Properties, broker_j: bool) -> None:
    """Broker-J puts U+FFFD in the place of what is not."""
    segment = header(properties, broker_j)
    assert b"caf\xe9" not in segment
    assert read(segment, True, broker_j) == properties


@pytest.mark.parametrize("broker_j", [True, False])
def test_so_is_the_name_of_a_header(broker_j: bool) -> None:
    headers = {"before": 1, "caf\udce9": {"\udcff": Typed("uint8", 2), "é": 3}, "\udcff": 4, "behind": 5}
    segment = header(Properties(headers=headers), broker_j)
    assert b"caf\xe9" not in segment
    back = read(segment, True, broker_j).headers
    assert back == headers
    assert list(back) == list(headers)


EMPTY_ARRAYS = {
    "a": [],
    "b": [1, [], [[]], [{}], {"c": [], "d": {}}],
    "e": {"f": [], "g": ["h"]},
}


def test_broker_j_gets_no_empty_array() -> None:
    """Where its virtual host is on a disk, it ends the session over one."""
    properties = Properties(headers=EMPTY_ARRAYS)
    segment = header(properties)
    headers = read(segment, restored=False).headers
    assert headers is not None
    assert headers["a"] == {}
    assert headers["b"] == [1, {}, [{}], [{}], {"c": {}, "d": {}}]
    assert headers["e"] == {"f": {}, "g": ["h"]}
    assert read(segment) == properties
    others = header(properties, False)
    assert read(others, False, False) == properties


def test_an_empty_array_from_broker_j_is_written_again() -> None:
    """Its virtual host in memory hands one out. Between two of them other headers pass as octets."""
    for headers, passes in ((EMPTY_ARRAYS, False), ({"a": [1], "b": {}}, True)):
        segment = native.write_header(Message(b"", Properties(headers=headers)), "key", 0, None, None)
        came = native.read_message(segment, b"", True)
        assert native.untouched(came, "guest", True) is passes
        written = native.write_header(came, "key", 0, None, "guest", True)
        assert (b"\xa9\x00\x00\x00\x04\x00\x00\x00\x00" in written) is False
        assert read(written).headers == headers


def test_texts_that_are_utf_8_are_left_alone() -> None:
    properties = Properties(content_type="é", reply_to=ReplyTo("é", "€"), headers={"é": {"€": 1}})
    assert read(header(properties), restored=False) == properties


@pytest.mark.parametrize("octets", ["ff", "61", "c3a9", "", "zz", "ff" * 256])
def test_a_made_up_name_says_nothing_that_its_author_could_not_have_said(octets: str) -> None:
    """Only names that are no UTF-8 are put back, and only in place of ours."""
    types = f'[[["a"],"key","{octets}"],[["x-gateway-key-0"],"key","{octets}"]]'
    headers = {"a": 1, "x-gateway-key-0": 2, "x-gateway": {"types": types}}
    segment = header(Properties(headers=headers))
    back = read(segment).headers or {}
    assert back["a"] == 1
    assert set(back) <= {"a", "x-gateway-key-0", "\udcff"}
    assert ("\udcff" in back) == (octets == "ff")

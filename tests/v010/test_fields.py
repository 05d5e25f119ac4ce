"""Declared structs: every class there and back, presence bits, what is none."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v010.commands import MessageAccept, QueueDeclare
from gateway.v010.controls import ConnectionStart
from gateway.v010.fields import write_sequence_set
from gateway.v010.structs import CommandFragment, ReplyToStruct, SessionHeader
from tests.v010.values import DECLARED, declared_value


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.spelled)
def test_absent_fields_are_the_defaults(declared: Any) -> None:
    if declared.pack:
        assert declared.decode_fields(bytes(declared.pack), 0, declared.pack) == declared()
    else:
        with pytest.raises(FrameSyntaxError):
            declared.decode_fields(b"", 0, 0)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.spelled)
def test_unknown_fields_are_refused(declared: Any) -> None:
    for bit in range(8 * declared.pack):
        mask = 1 << bit
        if not declared.known & mask:
            with pytest.raises(FrameSyntaxError, match="unknown fields"):
                declared.decode_fields(mask.to_bytes(declared.pack, "big") + bytes(20), 0, 20 + declared.pack)


@given(data=st.data())
def test_any_declared_class_there_and_back(data: st.DataObject) -> None:
    declared: Any = data.draw(st.sampled_from(DECLARED))
    value = data.draw(declared_value(declared))
    octets = value.encode_fields()
    assert declared.decode_fields(b"#" + octets + b"#", 1, len(octets) + 1) == value
    for end in range(len(octets)):
        with pytest.raises(FrameSyntaxError):
            declared.decode_fields(octets[:end], 0, end)
    with pytest.raises(FrameSyntaxError, match="from its end"):
        declared.decode_fields(octets + b"\x00", 0, len(octets) + 1)


@given(st.sampled_from(DECLARED), st.binary(max_size=60))
def test_any_octets_are_a_struct_or_a_syntax_error(declared: Any, octets: bytes) -> None:
    try:
        declared.decode_fields(octets, 0, len(octets))
    except FrameSyntaxError:
        pass


def test_presence_bits_begin_with_the_first_octet() -> None:
    assert QueueDeclare("q", passive=True).encode_fields() == b"\x05\x00\x01q"
    assert QueueDeclare("q", arguments={}).encode_fields()[:2] == b"\x41\x00"


def test_one_octet_of_presence_bits_or_none() -> None:
    assert SessionHeader(True).encode_sized() == b"\x01\x01"
    assert SessionHeader.decode_sized(b"\x01\x01", 0) == (SessionHeader(True), 2)
    octets = b"\x00\x00\x00\x07" + b"\x00\x10" + struct.pack(">QQ", 3, 9)
    assert CommandFragment(7, ((3, 9),)).encode_fields() == octets
    assert CommandFragment.decode_fields(octets, 0, len(octets)) == CommandFragment(7, ((3, 9),))
    nothing: Any = None
    with pytest.raises(EncodeError, match="byte_ranges is missing"):
        CommandFragment(7, nothing).encode_fields()


@pytest.mark.parametrize(
    "octets", [b"\x00\x08" + bytes(8), b"\x00\x10" + bytes(8), b"\x00\x10" + b"\x01" * 8 + bytes(8)]
)
def test_byte_ranges_that_are_none(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError, match="byte-ranges"):
        CommandFragment.decode_fields(bytes(4) + octets, 0, 4 + len(octets))


def test_a_struct_longer_than_what_is_left() -> None:
    for octets in (b"\x00", b"\x00\x05" + bytes(4), b"\xff\xff\x00\x00"):
        with pytest.raises(FrameSyntaxError, match=r"message\.reply-to of"):
            ReplyToStruct.decode_sized(octets, 0)


def test_a_field_that_does_not_fit_is_named() -> None:
    with pytest.raises(EncodeError, match=r"queue\.declare\.queue does not fit a str8"):
        QueueDeclare("q" * 256).encode()


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x04" + b"\x00" * 4,
        b"\x00\x08" + struct.pack(">II", 5, 4),
        b"\x00\x08" + struct.pack(">II", 0, 0x80000000),
        b"\x00\x10" + struct.pack(">II", 1, 2),
        b"\x00",
    ],
)
def test_sequence_sets_that_are_none(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        MessageAccept.decode_fields(b"\x01\x00" + octets, 0, len(octets) + 2)


def test_sequence_sets_wrap() -> None:
    octets = b"\x01\x00" + write_sequence_set(((0xFFFFFFFF, 0x1_0000_0001),))
    assert MessageAccept.decode_fields(octets, 0, len(octets)).transfers == ((0xFFFFFFFF, 1),)


def mechanisms(array_octets: bytes) -> bytes:
    return b"\x02\x00" + struct.pack(">I", len(array_octets)) + array_octets


def test_arrays_of_strings() -> None:
    octets = mechanisms(struct.pack(">BI", 0x85, 2) + b"\x05PLAIN\x01X")
    assert ConnectionStart.decode_fields(octets, 0, len(octets)).mechanisms == ("PLAIN", "X")
    for empty in (b"", struct.pack(">BI", 0xF0, 0), struct.pack(">BI", 0x21, 0)):
        octets = mechanisms(empty)
        assert ConnectionStart.decode_fields(octets, 0, len(octets)).mechanisms == ()
    octets = mechanisms(b"")
    assert ConnectionStart.decode_fields(octets, 0, len(octets)).mechanisms == ()
    for broken in (
        struct.pack(">BI", 0x21, 1) + bytes(4),
        struct.pack(">BI", 0x95, 1) + b"\x00\x05ab",
        struct.pack(">BI", 0xF0, 0xFFFFFFFF),
    ):
        octets = mechanisms(broken)
        with pytest.raises(FrameSyntaxError):
            ConnectionStart.decode_fields(octets, 0, len(octets))
    with pytest.raises(FrameSyntaxError):
        ConnectionStart.decode_fields(b"\x02\x00\x00\x00\xff\xff", 0, 6)

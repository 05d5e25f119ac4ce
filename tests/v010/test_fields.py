"""Declared structs: every class there and back, presence bits, what is none."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v010 import commands, controls
from gateway.v010.commands import MessageAccept, QueueDeclare
from gateway.v010.controls import ConnectionStart
from gateway.v010.fields import write_sequence_set

scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20)
keys = st.text(max_size=20)


DECLARED = [*controls.CONTROLS.values(), *commands.COMMANDS.values()]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.spelled)
def test_absent_fields_are_the_defaults(declared: Any) -> None:
    assert declared.decode_fields(bytes(2), 0, 2) == declared()


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.spelled)
def test_unknown_fields_are_refused(declared: Any) -> None:
    for bit in range(16):
        mask = 1 << bit
        if not declared.known & mask:
            with pytest.raises(FrameSyntaxError):
                declared.decode_fields(mask.to_bytes(2, "big") + bytes(20), 0, 22)


@given(data=st.data())
def test_any_declared_class_there_and_back(data: st.DataObject) -> None:
    declared: Any = data.draw(st.sampled_from(DECLARED))
    value = declared(*[data.draw(FIELDS[kind.name if kind else "bit"]) for _, _, kind, _ in declared.layout])
    octets = value.encode_fields()
    assert declared.decode_fields(b"#" + octets + b"#", 1, len(octets) + 1) == value
    for end in range(2, len(octets)):
        with pytest.raises(FrameSyntaxError):
            declared.decode_fields(octets[:end], 0, end)
    with pytest.raises(FrameSyntaxError, match="from its end"):
        declared.decode_fields(octets + b"\x00", 0, len(octets) + 1)


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
ranges = st.lists(
    st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 100)).map(lambda r: (r[0], (r[0] + r[1]) & 0xFFFFFFFF)),
    max_size=4,
).map(tuple)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "uint8": st.integers(0, 0xFF),
    "uint16": st.integers(0, 0xFFFF),
    "uint32": st.integers(0, 0xFFFFFFFF),
    "sequence-no": st.integers(0, 0xFFFFFFFF),
    "uint64": st.integers(0, (1 << 64) - 1),
    "datetime": st.integers(0, (1 << 64) - 1),
    "str8": texts,
    "str16": texts,
    "vbin16": st.binary(max_size=20),
    "vbin32": st.binary(max_size=20),
    "array": st.binary(max_size=20),
    "struct32": st.binary(max_size=20),
    "map": st.dictionaries(keys, scalars, max_size=3),
    "str16-array": st.lists(texts, max_size=3).map(tuple),
    "sequence-set": ranges,
}


@given(st.sampled_from(DECLARED), st.binary(max_size=60))
def test_any_octets_are_a_struct_or_a_syntax_error(declared: Any, octets: bytes) -> None:
    try:
        declared.decode_fields(octets, 0, len(octets))
    except FrameSyntaxError:
        pass


def test_presence_bits_begin_with_the_first_octet() -> None:
    assert QueueDeclare("q", passive=True).encode_fields() == b"\x05\x00\x01q"
    assert QueueDeclare("q", arguments={}).encode_fields()[:2] == b"\x41\x00"


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

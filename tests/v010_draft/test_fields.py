"""The types of fields that no other version has."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v010_draft.fields import Content, ReferenceTo, SerialSet, Uuid
from gateway.wire.declare import Declared, declared


@declared()
class Three(Declared):
    ranges: SerialSet
    content: Content
    made_by: Uuid


NAME = UUID("12345678-1234-5678-1234-567812345678")
OCTETS = (
    b"\x00\x10\x00\x00\x00\x01\x00\x00\x00\x03\xff\xff\xff\xff\x00\x00\x00\x00" + b"\x00\x00\x00\x00\x02hi" + NAME.bytes
)


def test_each_is_written_as_it_is_read() -> None:
    made = Three(((1, 3), (0xFFFFFFFF, 0)), b"hi", NAME)
    assert made.encode() == OCTETS
    assert Three.decode(OCTETS, 0, len(OCTETS)) == made


def test_a_reference_is_told_from_a_body() -> None:
    octets = Three((), ReferenceTo(b"hi"), NAME).encode()
    assert octets[2:9] == b"\x01\x00\x00\x00\x02hi"
    content = Three.decode(octets, 0, len(octets)).content
    assert content == b"hi"
    assert type(content) is ReferenceTo


@pytest.mark.parametrize("size", range(len(OCTETS)))
def test_octets_that_end_too_early(size: int) -> None:
    with pytest.raises(FrameSyntaxError):
        Three.decode(OCTETS[:size], 0, size)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x07" + bytes(7) + b"\x00\x00\x00\x00\x00" + NAME.bytes,
        b"\xff\xff" + bytes(8) + b"\x00\x00\x00\x00\x00" + NAME.bytes,
        b"\x00\x00\x02\x00\x00\x00\x00" + NAME.bytes,
        b"\x00\x00\x00\xff\xff\xff\xff" + NAME.bytes,
    ],
    ids=["no pairs", "too long a set", "a third kind of content", "too long a content"],
)
def test_octets_that_are_none(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        Three.decode(octets, 0, len(octets))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Three(5, b"", NAME), "no tuple"),  # type: ignore[arg-type]
        (Three(((0, 0),) * 8_192, b"", NAME), "8192 ranges"),
        (Three(((0, 1 << 32),), b"", NAME), "no range"),
        (Three(((1,),), b"", NAME), "no range"),  # type: ignore[arg-type]
        (Three((), "text", NAME), "no octets"),  # type: ignore[arg-type]
        (Three((), b"", "name"), "no UUID"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_named(made: Three, text: str) -> None:
    with pytest.raises(EncodeError, match=text):
        made.encode()


def test_a_set_that_fits_is_not_blamed() -> None:
    layout = dict(Three.layout)
    assert layout["ranges"].misfit(((1, 2),)) is None
    assert layout["content"].misfit(b"x") is None
    assert layout["made_by"].misfit(NAME) is None

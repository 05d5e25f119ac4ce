"""Frames: whole, in pieces, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FrameSyntaxError
from gateway.v010.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_SEGMENT,
    HEADER,
    HEADER_SIZE,
    LAST_SEGMENT,
    WHOLE,
    pack_head,
    read_frame,
    read_simple,
    write_segment,
)


def test_one_frame_by_hand() -> None:
    (frame,) = write_segment(b"\x01\x0a\x00\x00", CONTROL, CONTROL, 3, 4096)
    assert frame.hex() == "0f00" + "0010" + "0000" + "0003" + "00000000" + "010a0000"
    assert read_frame(frame + b"more", 0, 4096) == ((WHOLE, CONTROL, 0, 3, b"\x01\x0a\x00\x00"), 16)


@given(st.binary(max_size=100), st.integers(1, 40))
def test_a_segment_in_any_number_of_frames(octets: bytes, room: int) -> None:
    frames = write_segment(octets, BODY, COMMAND, 9, room + HEADER_SIZE, LAST_SEGMENT)
    data = b"".join(frames)
    at, payloads, flags = 0, [], []
    while (found := read_frame(data, at, room + HEADER_SIZE)) is not None:
        (flag, kind, track, channel, payload), at = found
        assert (kind, track, channel) == (BODY, COMMAND, 9)
        payloads.append(payload)
        flags.append(flag)
    assert b"".join(payloads) == octets
    assert at == len(data)
    assert [flag & 2 for flag in flags] == [2] + [0] * (len(flags) - 1)
    assert [flag & 1 for flag in flags] == [0] * (len(flags) - 1) + [1]
    assert all(flag & 0x0C == LAST_SEGMENT for flag in flags)


def test_what_is_not_all_there() -> None:
    (frame,) = write_segment(b"abc", CONTROL, CONTROL, 0, 4096)
    for end in range(len(frame)):
        assert read_frame(frame[:end], 0, 4096) is None


@pytest.mark.parametrize(
    "head",
    [
        pack_head(WHOLE, CONTROL, 11, 0, 0, 0, 0),
        pack_head(WHOLE, CONTROL, 0, 0, 0, 0, 0),
        pack_head(WHOLE, CONTROL, 4097, 0, 0, 0, 0),
        pack_head(WHOLE, CONTROL, 0xFFFF, 0, 0, 0, 0),
        pack_head(0x4F, CONTROL, 12, 0, 0, 0, 0),
        pack_head(WHOLE, 4, 12, 0, 0, 0, 0),
    ],
    ids=bytes.hex,
)
def test_what_is_no_frame(head: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        read_frame(head, 0, 4096)


def message(command: bytes, header: bytes, body: bytes, channel: int = 1) -> bytes:
    frames = write_segment(command, COMMAND, COMMAND, channel, 4096, FIRST_SEGMENT)
    frames += write_segment(header, HEADER, COMMAND, channel, 4096, 0 if body else LAST_SEGMENT)
    if body:
        frames += write_segment(body, BODY, COMMAND, channel, 4096, LAST_SEGMENT)
    return b"".join(frames)


def test_an_ordinary_message() -> None:
    data = b"##" + message(b"cmd", b"head", b"body", 7)
    assert read_simple(data + b"more", 2, 4096) == ((7, b"cmd", b"head", b"body"), len(data))
    data = message(b"cmd", b"head", b"")
    assert read_simple(data + b"more", 0, 4096) == ((1, b"cmd", b"head", b""), len(data))


def test_an_ordinary_message_that_is_not_all_there() -> None:
    data = message(b"cmd", b"head", b"body")
    for end in range(len(data)):
        assert read_simple(data[:end], 0, 4096) is None


def test_what_is_no_ordinary_message() -> None:
    data = message(b"cmd", b"head", b"body")
    assert read_simple(data, 0, 15) is None
    foot = len(data) - HEADER_SIZE - 4
    for at in (0, 1, 5, 7, 15, 16, 20, 22, foot, foot + 1, foot + 5, foot + 7):
        changed = bytearray(data)
        changed[at] ^= 1
        assert read_simple(bytes(changed), 0, 4096) is None, at
    large = message(b"cmd", b"head", bytes(5000))
    assert read_simple(large, 0, 4096) is None
    assert read_simple(message(b"cmd", bytes(5000), b"x"), 0, 4096) is None

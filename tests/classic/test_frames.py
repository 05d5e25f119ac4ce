"""Frames as they are written, and what reply codes mean."""

from __future__ import annotations

import pytest

from gateway.classic.frames import (
    CONNECTION_CODES,
    FRAME_HEADER,
    REPLY_CODES,
    content_frames,
    method_frame,
    reply_text,
    unexpected,
)


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of each frame."""
    result, at = [], 0
    while at < len(data):
        kind, channel, size = FRAME_HEADER.unpack_from(data, at)
        assert data[at + 7 + size] == 0xCE
        result.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += size + 8
    return result


def test_method_frame() -> None:
    assert method_frame(3, b"\x00\x0a\x00\x33") == b"\x01\x00\x03\x00\x00\x00\x04\x00\x0a\x00\x33\xce"


METHOD = method_frame(7, b"\x00\x3c\x00\x28...")


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 16_384, 16_385, 50_000])
def test_content_is_cut_at_frame_max(size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    method, header, *bodies = frames(b"".join(content_frames(7, METHOD, b"\x00\x00", body, 4_096)))
    assert method == (1, 7, b"\x00\x3c\x00\x28...")
    assert header == (2, 7, b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00")
    assert all(kind == 3 and channel == 7 and len(payload) <= 4_088 for kind, channel, payload in bodies)
    assert b"".join(payload for _, _, payload in bodies) == body
    assert len(bodies) == -(-size // 4_088)


def test_a_large_body_is_passed_on_uncopied() -> None:
    body = bytes(100_000)
    assert any(buffer is body for buffer in content_frames(1, METHOD, b"\x00\x00", body, 131_072))
    assert len(content_frames(1, METHOD, b"\x00\x00", bytes(100), 131_072)) == 1


def test_reply_text_begins_with_the_codes_name() -> None:
    assert reply_text(404, "no queue 'x'") == "NOT_FOUND - no queue 'x'"
    assert reply_text(404, "NOT_FOUND - no queue 'x'") == "NOT_FOUND - no queue 'x'"
    assert reply_text(312, "") == "NO_ROUTE"
    assert reply_text(999, "odd") == "odd"
    assert len(reply_text(404, "\u00e9" * 300).encode()) <= 255


def test_every_connection_code_has_a_name() -> None:
    assert REPLY_CODES.keys() >= CONNECTION_CODES
    assert unexpected("x").reply_code == 505

"""From frames to assemblies: interleaved, limited, and what is out of order."""

from __future__ import annotations

import pytest

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.assembler import Assembler, Content
from gateway.v010.frames import BODY, COMMAND, CONTROL, HEADER, WHOLE

TRANSFER = bytes.fromhex("040101000000")
BEGIN, MIDDLE, END = 0x0B, 0x03, 0x07
"""First segment, one between, last segment; each in one frame."""


def test_a_whole_command_and_a_whole_control() -> None:
    assembler = Assembler(Limits())
    assert assembler.feed(WHOLE, COMMAND, 1, 0, b"command") == b"command"
    assert assembler.feed(WHOLE, CONTROL, 0, 0, b"control") == b"control"


def test_channels_and_tracks_may_be_interleaved() -> None:
    assembler = Assembler(Limits())
    for channel in (1, 2):
        assert assembler.feed(BEGIN, COMMAND, 1, channel, TRANSFER) is None
        assert assembler.busy(channel)
    assert assembler.feed(0x0E, CONTROL, 0, 1, b"con") is None
    for channel in (2, 1):
        assert assembler.feed(MIDDLE, HEADER, 1, channel, b"head") is None
        assert assembler.feed(0x06, BODY, 1, channel, b"%d" % channel) is None
    assert assembler.spooled == 10
    assert assembler.feed(0x0D, CONTROL, 0, 1, b"trol") == b"control"
    for channel in (1, 2):
        body = b"%d and more" % channel
        assert assembler.feed(0x04, BODY, 1, channel, b" and") is None
        assert assembler.feed(0x05, BODY, 1, channel, b" more") == Content(TRANSFER, b"head", body, len(body), 0)
        assert not assembler.busy(channel)
    assert assembler.spooled == 0


def test_content_without_header_or_body() -> None:
    assembler = Assembler(Limits())
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assert assembler.feed(END, HEADER, 1, 0, b"head") == Content(TRANSFER, b"head", b"", 0, 0)
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assert assembler.feed(END, BODY, 1, 0, b"body") == Content(TRANSFER, b"", b"body", 4, 0)
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assert assembler.feed(END, BODY, 1, 0, b"") == Content(TRANSFER, b"", b"", 0, 0)


def test_a_body_over_the_limit_is_dropped_as_it_comes() -> None:
    assembler = Assembler(Limits(message_max=5))
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assembler.feed(0x06, BODY, 1, 0, b"1234")
    assembler.feed(0x04, BODY, 1, 0, b"56")
    assert assembler.spooled == 0
    assembler.feed(0x04, BODY, 1, 0, b"78")
    assert assembler.feed(0x05, BODY, 1, 0, b"9") == Content(TRANSFER, b"", None, 9, 5)


def test_the_spool_is_shared() -> None:
    assembler = Assembler(Limits(spool_max=6))
    for channel in (1, 2):
        assembler.feed(BEGIN, COMMAND, 1, channel, TRANSFER)
        assembler.feed(0x06, BODY, 1, channel, b"1234")
    assert assembler.spooled == 4
    assert assembler.feed(0x05, BODY, 1, 2, b"") == Content(TRANSFER, b"", None, 4, 6)
    assembler.drop(1)
    assembler.drop(1)
    assert assembler.spooled == 0


def test_a_session_that_ends_within_a_command_leaves_nothing() -> None:
    assembler = Assembler(Limits())
    assembler.feed(BEGIN, COMMAND, 1, 1, TRANSFER)
    assembler.drop(1)
    assert not assembler.busy(1)
    assert assembler.spooled == 0


@pytest.mark.parametrize(
    "frames",
    [
        [(WHOLE, COMMAND, 0, b"")],
        [(WHOLE, CONTROL, 1, b"")],
        [(WHOLE, COMMAND, 2, b"")],
        [(MIDDLE, HEADER, 1, b"")],
        [(END, BODY, 1, b"")],
        [(0x0D, COMMAND, 1, TRANSFER)],
        [(0x07, COMMAND, 1, TRANSFER)],
        [(BEGIN, COMMAND, 1, bytes.fromhex("080401000000"))],
        [(BEGIN, CONTROL, 0, bytes.fromhex("010a0000"))],
        [(BEGIN, COMMAND, 1, TRANSFER), (BEGIN, COMMAND, 1, TRANSFER)],
        [(BEGIN, COMMAND, 1, TRANSFER), (MIDDLE, HEADER, 1, b""), (MIDDLE, HEADER, 1, b"")],
        [(BEGIN, COMMAND, 1, TRANSFER), (MIDDLE, BODY, 1, b""), (END, HEADER, 1, b"")],
        [(BEGIN, COMMAND, 1, TRANSFER), (0x02, HEADER, 1, b"a"), (0x01, BODY, 1, b"b")],
        [(BEGIN, COMMAND, 1, TRANSFER), (0x02, HEADER, 1, b"a"), (0x03, HEADER, 1, b"b")],
        [(BEGIN, COMMAND, 1, TRANSFER), (0x02, HEADER, 1, b"a"), (0x05, HEADER, 1, b"b")],
        [(BEGIN, COMMAND, 1, TRANSFER), (0x0F, BODY, 1, b"a")],
    ],
)
def test_what_is_out_of_order(frames: list[tuple[int, int, int, bytes]]) -> None:
    assembler = Assembler(Limits())
    for flags, kind, track, payload in frames[:-1]:
        assert assembler.feed(flags, kind, track, 0, payload) is None
    flags, kind, track, payload = frames[-1]
    with pytest.raises(FrameSyntaxError):
        assembler.feed(flags, kind, track, 0, payload)


def test_a_header_over_the_limit_is_dropped_as_it_comes() -> None:
    """As a body is: were it a violation, the broker would deliver the same message to the next connection."""
    assembler = Assembler(Limits(header_max=10))
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assembler.feed(0x02, HEADER, 1, 0, b"12345678")
    assembler.feed(0x00, HEADER, 1, 0, b"90123")
    assert assembler.spooled == 0
    assembler.feed(0x01, HEADER, 1, 0, b"4")
    assert assembler.feed(END, BODY, 1, 0, b"body") == Content(TRANSFER, b"", None, 14, 10)
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assert assembler.feed(END, HEADER, 1, 0, b"1234567890") == Content(TRANSFER, b"1234567890", b"", 0, 0)
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assert assembler.feed(END, HEADER, 1, 0, b"12345678901") == Content(TRANSFER, b"", None, 11, 10)


def test_controls_and_commands_are_limited_together() -> None:
    assembler = Assembler(Limits(header_max=10))
    assembler.feed(0x0E, COMMAND, 1, 0, b"12345678")
    assembler.feed(0x0E, CONTROL, 0, 7, b"90")
    with pytest.raises(FrameSyntaxError, match="more than 10 octets"):
        assembler.feed(0x0C, CONTROL, 0, 7, b"1")
    assembler = Assembler(Limits(header_max=10))
    for _ in range(5):
        assembler.feed(0x0E, COMMAND, 1, 0, b"1234567")
        assert assembler.feed(0x0D, COMMAND, 1, 0, b"890") == b"1234567890"
        assembler.feed(0x0E, COMMAND, 1, 0, b"1234567")
        assembler.drop(0)


def test_a_body_that_is_dropped_leaves_its_header_counted() -> None:
    assembler = Assembler(Limits(spool_max=10))
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assembler.feed(MIDDLE, HEADER, 1, 0, b"12345678")
    assembler.feed(0x06, BODY, 1, 0, b"ab")
    assembler.feed(0x04, BODY, 1, 0, b"c")
    assert assembler.spooled == 8
    assert assembler.feed(0x05, BODY, 1, 0, b"d") == Content(TRANSFER, b"12345678", None, 4, 10)
    assert assembler.spooled == 0


def test_what_is_unfinished_does_not_grow_with_channel_numbers() -> None:
    assembler = Assembler(Limits(channel_max=3))
    for channel in range(4):
        for track in (CONTROL, COMMAND):
            assembler.feed(0x0E, track, track, channel, b"")
    with pytest.raises(FrameSyntaxError, match="more than 8 controls and commands"):
        assembler.feed(0x0E, CONTROL, 0, 9, b"")


def test_frames_without_payload_cost_nothing() -> None:
    assembler = Assembler(Limits())
    assembler.feed(BEGIN, COMMAND, 1, 0, TRANSFER)
    assembler.feed(0x02, HEADER, 1, 0, b"")
    for _ in range(10_000):
        assembler.feed(0x00, HEADER, 1, 0, b"")
    assembler.feed(0x01, HEADER, 1, 0, b"h")
    assert assembler.feed(END, BODY, 1, 0, b"b") == Content(TRANSFER, b"h", b"b", 1, 0)

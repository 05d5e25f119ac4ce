"""Content: one frame, many frames, none; limits; frames that have no place."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from gateway.classic.assembler import Assembler, AssemblyLimit
from gateway.classic.frames import CONTENT_HEADER
from gateway.errors import FrameSyntaxError
from gateway.limits import Limits

LIMITS = Limits(message_max=100, header_max=50, spool_max=150)


class Collector(Assembler):
    """Remembers what it is told."""

    def __init__(self, limits: Limits = LIMITS, spool: AssemblyLimit | None = None) -> None:
        super().__init__(limits, spool or AssemblyLimit(limits.spool_max))
        self.complete: list[tuple[Any, bytes, bytes]] = []
        self.refused: list[tuple[Any, int, int]] = []

    def content(self, method: Any, octets: bytes, body: bytes) -> None:
        self.complete.append((method, octets, body))

    def oversized(self, method: Any, size: int, limit: int) -> None:
        self.refused.append((method, size, limit))

    def header(self, size: int, octets: bytes = b"\x00\x00", class_id: int = 60) -> None:
        data = b"ab" + CONTENT_HEADER.pack(class_id, 0, size) + octets + b"cd"
        self.header_frame(data, 2, len(data) - 2)

    def body(self, octets: bytes) -> None:
        self.body_frame(b"x" + octets + b"y", 1, 1 + len(octets))


@pytest.mark.parametrize("pieces", [[], [b"abc"], [b"ab", b"c"], [b"", b"abc"], [b"a", b"b", b"c"]])
def test_any_number_of_body_frames(pieces: list[bytes]) -> None:
    collector = Collector()
    body = b"".join(pieces)
    for _ in range(2):
        collector.expect_content("method")
        collector.header(len(body))
        for piece in pieces:
            collector.body(piece)
    assert collector.complete == [("method", b"\x00\x00", body)] * 2
    assert collector.awaiting == ""
    assert collector._spool.held == 0


def test_a_body_over_the_limit_is_discarded_as_it_comes() -> None:
    collector = Collector()
    collector.expect_content("big")
    collector.header(101)
    collector.body(bytes(100))
    assert collector._spool.held == 0
    assert not collector.refused
    collector.body(b"x")
    assert collector.refused == [("big", 101, 100)]
    collector.expect_content("next")
    collector.header(1)
    collector.body(b"x")
    assert collector.complete == [("next", b"\x00\x00", b"x")]


@pytest.mark.parametrize("size", [0, 3])
def test_a_header_over_the_limit(size: int) -> None:
    collector = Collector()
    collector.expect_content("method")
    collector.header(size, b"\x00\x00" + bytes(49))
    if size:
        collector.body(bytes(size))
    assert collector.refused == [("method", 51, 50)]


def test_the_spool_is_shared_by_the_channels() -> None:
    spool = AssemblyLimit(150)
    one, two = Collector(spool=spool), Collector(spool=spool)
    for collector in (one, two):
        collector.expect_content("method")
        collector.header(100)
        collector.body(bytes(90))
    assert spool.held == 90
    one.body(bytes(10))
    two.body(bytes(10))
    assert spool.held == 0
    assert [len(body) for _, _, body in one.complete] == [100]
    assert two.refused == [("method", 100, 150)]


def test_large_headers_count_towards_the_spool() -> None:
    spool = AssemblyLimit(10_000)
    one, two = Collector(Limits(), spool), Collector(Limits(), spool)
    for collector in (one, two):
        collector.expect_content("method")
        collector.header(1, bytes(5_001))
    assert spool.held == 5_001
    two.body(b"x")
    one.body(b"x")
    assert spool.held == 0
    assert len(one.complete) == 1
    assert two.refused == [("method", 1, 10_000)]


def test_empty_and_tiny_body_frames_cost_no_more_than_their_octets() -> None:
    collector = Collector(Limits())
    collector.expect_content("method")
    collector.header(20_001)
    tracemalloc.start()
    for _ in range(10_000):
        collector.body(b"")
        collector.body(b"xy")
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 40_000
    collector.body(b"z")
    assert collector.complete[0][2] == b"xy" * 10_000 + b"z"


def test_a_channel_that_goes_gives_back_what_it_held() -> None:
    collector = Collector()
    collector.expect_content("method")
    collector.header(100)
    collector.body(bytes(90))
    collector.forget()
    assert collector._spool.held == 0


def test_frames_that_have_no_place() -> None:
    collector = Collector()
    with pytest.raises(FrameSyntaxError, match="content header where a method was due") as error:
        collector.header(1)
    assert error.value.reply_code == 505
    with pytest.raises(FrameSyntaxError, match="body frame where a method was due"):
        collector.body(b"x")
    collector.expect_content("method")
    with pytest.raises(FrameSyntaxError, match="body frame where header was due"):
        collector.body(b"x")
    collector.header(5)
    with pytest.raises(FrameSyntaxError, match="content header where body was due"):
        collector.header(5)
    with pytest.raises(FrameSyntaxError, match="runs 1 octets past the 5"):
        collector.body(b"123456")


def test_malformed_headers() -> None:
    collector = Collector()
    collector.expect_content("method")
    with pytest.raises(FrameSyntaxError, match="class 10 after a method of class 60"):
        collector.header(1, class_id=10)
    with pytest.raises(FrameSyntaxError, match="content header of 13 octets"):
        collector.header(1, octets=b"\x00")

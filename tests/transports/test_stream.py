"""Streams over memory: one write per turn, back-pressure, the end."""

from __future__ import annotations

import asyncio

from gateway.transports.memory import memory_pair
from gateway.transports.stream import WRITE_HIGH, Stream


class User:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.got = b""
        self.lost: list[Exception | None] = []
        self.asked = 0
        self.again = 0

    def data_received(self, data: bytes) -> None:
        self.got += data

    def stream_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def data_to_send(self) -> list[bytes]:
        self.asked += 1
        out, self.out = self.out, []
        return out

    def writable_again(self) -> None:
        self.again += 1


def pair() -> tuple[User, Stream, User, Stream]:
    left, right = User(), User()
    one, two = Stream(left), Stream(right)
    memory_pair(one, two)
    return left, one, right, two


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_fetch_for_everything_of_a_turn() -> None:
    left, one, right, _ = pair()
    await turns()
    asked = left.asked
    for index in range(10):
        left.out.append(b"%d" % index)
        one.wake()
    assert right.got == b""
    await turns()
    assert right.got == b"0123456789"
    assert left.asked == asked + 1


async def test_nothing_is_fetched_while_the_buffer_is_full() -> None:
    left, one, right, two = pair()
    await turns()
    assert two._transport is not None
    two._transport.pause_reading()
    assert not two._transport.is_reading()
    left.out.append(bytes(WRITE_HIGH + 1))
    one.wake()
    await turns()
    assert not one.writable
    left.out.append(b"later")
    one.wake()
    await turns()
    assert left.out == [b"later"]
    two._transport.resume_reading()
    await turns()
    assert one.writable
    assert left.again == 1
    assert right.got[-5:] == b"later"


async def test_close_sends_what_is_queued_and_both_ends_hear_of_it_once() -> None:
    left, one, right, two = pair()
    left.out.append(b"last words")
    one.close()
    one.close()
    await turns(10)
    assert right.got == b"last words"
    assert left.lost == right.lost == [None]
    two.wake()
    await turns()
    one.flush()


async def test_abort_drops_what_is_queued() -> None:
    left, one, right, _ = pair()
    await turns()
    left.out.append(b"never")
    one.abort()
    await turns(10)
    assert right.got == b""
    assert right.lost == [None]


async def test_a_stream_closed_before_it_was_open_ends_when_it_opens() -> None:
    left, right = User(), User()
    one, two = Stream(left), Stream(right)
    one.close()
    memory_pair(one, two)
    await turns(10)
    assert left.lost == [None]
    assert right.lost == [None]
    assert one.peer == ""


async def test_reading_can_be_paused_and_what_is_not_taken_is_told() -> None:
    left, one, right, two = pair()
    two.pause_reading()  # not connected for long enough to matter
    two.pause_reading()
    await turns()
    left.out.append(b"x" * 1_000)
    one.wake()
    await turns()
    assert (one.unsent, one.sent, right.got) == (1_000, 0, b"")
    assert not two.reading
    two.resume_reading()
    two.resume_reading()
    await turns()
    assert (one.unsent, one.sent, right.got) == (0, 1_000, b"x" * 1_000)
    assert two.reading
    one.close(b"last words")
    one.pause_reading()
    await turns()
    assert right.got.endswith(b"xlast words")
    assert one.reading


async def test_a_stream_without_a_transport_has_nothing_unsent() -> None:
    stream = Stream(User())
    stream.close(b"unheard")
    assert (stream.unsent, stream.sent, stream.address) == (0, 0, "")


async def test_a_handle_that_was_closed_in_the_same_turn_is_no_error_of_the_loop() -> None:
    """uvloop's transport says so with a RuntimeError, and tells that the connection is lost afterwards."""
    left, one, _, _ = pair()
    await turns()
    transport = one._transport
    assert transport is not None

    def write(_: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    transport.write = write  # type: ignore[method-assign,assignment]
    left.out.append(b"x")
    one.flush()
    one.connection_lost(None)
    await turns()
    assert left.lost == [None]

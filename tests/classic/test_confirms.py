"""The window of publishes without an outcome."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Publish
from gateway.classic.confirms import REMEMBERED_MAX, ConfirmWindow, Pending, Remembered
from gateway.errors import FrameSyntaxError


def pending(serial: int, key: str = "k", body: bytes = b"x", octets: bytes = b"\x00\x00") -> Pending:
    return Pending(serial, Publish(1, "ex", key, Message(body)), octets)


def window(*serials: int) -> ConfirmWindow:
    made = ConfirmWindow()
    for serial in serials:
        made.add(pending(serial, body=b"%d" % serial))
    return made


def serials(entries: list[Pending]) -> list[int]:
    return [entry.serial for entry in entries]


def test_one_by_one_in_order() -> None:
    made = window(10, 11, 12)
    assert [serials(made.settle(tag, False)) for tag in (1, 2, 3)] == [[10], [11], [12]]
    assert len(made) == 0
    assert made.last == 3


def test_out_of_order_leaves_no_gap_behind() -> None:
    made = window(10, 11, 12, 13)
    assert serials(made.settle(3, False)) == [12]
    assert serials(made.settle(2, False)) == [11]
    assert len(made) == 4
    assert serials(made.settle(1, False)) == [10]
    assert len(made) == 1
    assert serials(made.settle(4, True)) == [13]


def test_multiple_takes_those_without_an_outcome() -> None:
    made = window(10, 11, 12, 13)
    made.settle(2, False)
    assert serials(made.settle(3, True)) == [10, 12]
    assert serials(made.settle(0, True)) == [13]
    assert made.settle(1, False) == []  # said before, and harmless


def test_a_publish_that_never_was() -> None:
    for tag, multiple in ((3, False), (3, True), (1 << 63, True), (0, False)):
        with pytest.raises(FrameSyntaxError) as error:
            window(10, 11).settle(tag, multiple)
        assert error.value.reply_code == 503
    with pytest.raises(FrameSyntaxError):
        ConfirmWindow().settle(0, True)


def test_a_returned_publish_is_the_oldest_that_matches() -> None:
    made = window()
    for entry in (pending(1, "a"), pending(2, "b", b"x"), pending(3, "b", b"y"), pending(4, "b", b"y")):
        made.add(entry)
    assert made.returned("ex", "b", b"\x00\x00", b"y") == pending(3, "b", b"y")
    assert made.returned("ex", "b", b"changed", b"y") == pending(4, "b", b"y")
    made.add(pending(5, "b", b"z"))
    assert made.returned("ex", "b", b"changed", b"changed") == pending(2, "b", b"x")
    assert made.returned("ex", "b", b"\x00\x00", b"x") == pending(5, "b", b"z")
    assert made.returned("ex", "b", b"\x00\x00", b"x") is None
    assert serials(made.settle(4, True)) == [1]


def test_what_was_refused_is_returned_first() -> None:
    made = window()
    made.add(pending(1))
    made.add(pending(2))
    made.nacked += made.settle(2, False)
    assert made.returned("ex", "k", b"\x00\x00", b"x") == pending(2)
    assert made.nacked == []
    assert made.returned("ex", "k", b"\x00\x00", b"x") == pending(1)


def test_without_confirms_some_are_remembered() -> None:
    remembered = Remembered()
    for serial in range(1, REMEMBERED_MAX + 2):
        remembered.add(serial, Publish(1, "ex", "k", Message(b"%d" % (serial % 100))), b"\x00\x00")
    assert remembered.returned("ex", "k", b"\x00\x00", b"1") == 101  # 1 is forgotten
    assert remembered.returned("ex", "k", b"\x00\x00", b"none of them") == 2
    assert remembered.returned("ex", "other", b"\x00\x00", b"1") == 0

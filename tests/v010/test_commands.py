"""The commands against octets written out by hand."""

from __future__ import annotations

import pytest

from gateway.errors import FrameSyntaxError
from gateway.v010.commands import (
    COMMANDS,
    Command,
    ExecutionException,
    ExecutionSync,
    MessageFlow,
    MessageRelease,
    MessageSubscribe,
    MessageTransfer,
    QueueQuery,
    decode_command,
)


@pytest.mark.parametrize(
    ("command", "sync", "octets"),
    [
        (ExecutionSync(), True, "030101010000"),
        (ExecutionException(404, 7, 8, 4, description="no"), False, "030301002f0001940000000708040002" + "6e6f"),
        (MessageTransfer("x", 0, 0), False, "0401010007000178" + "0000"),
        (MessageFlow("d", 1, 0xFFFFFFFF), False, "040a010007000164" + "01ffffffff"),
        (MessageRelease(((1, 2),), True), False, "0404010003000008" + "0000000100000002"),
        (MessageSubscribe("q", "d", 1, 1, True), True, "040701011f00" + "017101640101"),
        (QueueQuery("q"), True, "0804010101000171"),
    ],
    ids=repr,
)
def test_octets(command: Command, sync: bool, octets: str) -> None:
    assert command.encode(sync).hex() == octets
    assert decode_command(bytes.fromhex(octets)) == (command, sync)


def test_a_session_header_of_another_size() -> None:
    assert decode_command(bytes.fromhex("0301" + "00" + "0000")) == (ExecutionSync(), False)
    assert decode_command(bytes.fromhex("0301" + "020100" + "0000")) == (ExecutionSync(), True)


def test_a_command_that_is_not_known() -> None:
    assert decode_command(bytes.fromhex("0b01010100")) == (None, True)


def test_all_of_eight_classes_are_there() -> None:
    counts: dict[int, int] = {}
    for code in COMMANDS:
        counts[code >> 8] = counts.get(code >> 8, 0) + 1
    assert counts == {3: 3, 4: 12, 5: 3, 6: 10, 7: 6, 8: 4, 9: 13, 10: 8}


@pytest.mark.parametrize("octets", ["", "04", "0401", "040105", "04010100"])
def test_what_is_no_command(octets: str) -> None:
    with pytest.raises(FrameSyntaxError):
        decode_command(bytes.fromhex(octets))

"""The controls against octets written out by hand."""

from __future__ import annotations

import pytest

from gateway.errors import FrameSyntaxError
from gateway.v010.controls import (
    CONTROLS,
    ConnectionClose,
    ConnectionHeartbeat,
    ConnectionTune,
    ConnectionTuneOk,
    Control,
    SessionAttach,
    SessionCommandPoint,
    SessionCompleted,
    SessionDetached,
    SessionFlush,
    decode_control,
)


@pytest.mark.parametrize(
    ("control", "octets"),
    [
        (ConnectionHeartbeat(), "010a0000"),
        (ConnectionClose(320, "bye"), "010b0300014003627965"),
        (ConnectionTune(256, 65535, 0, 120), "01050f000100ffff00000078"),
        (ConnectionTune(), "01050000"),
        (ConnectionTuneOk(7), "010601000007"),
        (SessionAttach(b"s"), "02010100000173"),
        (SessionDetached(b"s", 3), "0204030000017303"),
        (SessionCommandPoint(1, 0), "02070300000000010000000000000000"),
        (SessionCompleted(((0, 4),), True), "020a030000080000000000000004"),
        (SessionFlush(completed=True), "020c0400"),
    ],
    ids=repr,
)
def test_octets(control: Control, octets: str) -> None:
    assert control.encode().hex() == octets
    assert decode_control(bytes.fromhex(octets)) == control


def test_there_are_twenty_five() -> None:
    """12 of the connection class, 13 of the session class."""
    assert sorted(CONTROLS) == [*range(0x0101, 0x010D), *range(0x0201, 0x020E)]


@pytest.mark.parametrize("octets", [b"", b"\x01", b"\x01\x0a\x00", b"\x01\x99\x00\x00", b"\x03\x01\x00\x00"])
def test_what_is_no_control(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError, match="no control"):
        decode_control(octets)

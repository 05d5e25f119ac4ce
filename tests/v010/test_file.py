"""The file class against octets written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.v010.commands import COMMANDS, UNSERVED, Command, decode_command

EMPTY_MAP = "0000000400000000"


def made(name: str, *values: Any, **named: Any) -> Any:
    """A command or struct of the class."""
    return UNSERVED[f"file.{name}"](*values, **named)


@pytest.mark.parametrize(
    ("command", "octets"),
    [
        (made("qos", 1, 2, True), "09010101" + "0700" + "000000010002"),
        (made("qos-ok"), "09020101" + "0000"),
        (made("consume", "q", "t", False, True, False, True, {}), "09030101" + "6b00" + "01710174" + EMPTY_MAP),
        (made("consume-ok", "t"), "09040101" + "0100" + "0174"),
        (made("cancel", "t"), "09050101" + "0100" + "0174"),
        (made("open", "i", 9), "09060101" + "0300" + "0169" + "0000000000000009"),
        (made("open-ok", 4), "09070101" + "0100" + "0000000000000004"),
        (made("stage"), "09080101" + "0000"),
        (made("publish", "x", "k", immediate=True, identifier="i"), "09090101" + "1b00" + "0178016b0169"),
        (made("return", 312, "no", "x", "k"), "090a0101" + "0f00" + "0138026e6f0178016b"),
        (made("deliver", "t", 1, True, "x", "k", "i"), "090b0101" + "3f00" + "01740000000000000001" + "0178016b0169"),
        (made("ack", 1, True), "090c0101" + "0300" + "0000000000000001"),
        (made("reject", 1, True), "090d0101" + "0300" + "0000000000000001"),
    ],
    ids=repr,
)  # fmt: skip
def test_octets(command: Command, octets: str) -> None:
    assert command.encode(True).hex() == octets
    assert decode_command(bytes.fromhex(octets)) == (command, True)


def test_properties() -> None:
    value = made("file-properties", "t", "e", {}, 5, "r", "m", "f", 1, "c")
    octets = "0901ff01" + "01740165" + EMPTY_MAP + "05" + "0172016d0166" + "0000000000000001" + "0163"
    assert value.encode().hex() == octets
    assert UNSERVED["file.file-properties"].decode(bytes.fromhex(octets)) == value


def test_content() -> None:
    with_content = {kind for code, kind in COMMANDS.items() if code >> 8 == 9 and kind.header}
    assert with_content == {UNSERVED["file.stage"], UNSERVED["file.return"]}
    assert {kind.header for kind in with_content} == {(UNSERVED["file.file-properties"].code,)}

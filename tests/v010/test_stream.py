"""The stream class against octets written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.v010.commands import COMMANDS, UNSERVED, Command, decode_command


def made(name: str, *values: Any, **named: Any) -> Any:
    """A command or struct of the class."""
    return UNSERVED[f"stream.{name}"](*values, **named)


@pytest.mark.parametrize(
    ("command", "octets"),
    [
        (made("qos", 1, 2, 3, True), "0a010101" + "0f00" + "00000001000200000003"),
        (made("qos-ok"), "0a020101" + "0000"),
        (made("consume", "q", "t", False, True, False, {}), "0a030101" + "2b00" + "01710174" + "0000000400000000"),
        (made("consume-ok", "t"), "0a040101" + "0100" + "0174"),
        (made("cancel", "t"), "0a050101" + "0100" + "0174"),
        (made("publish", "x", "k", mandatory=True), "0a060101" + "0700" + "0178016b"),
        (made("return", 313, "no", "x", "k"), "0a070101" + "0f00" + "0139026e6f0178016b"),
        (made("deliver", "t", 1, "x", "q"), "0a080101" + "0f00" + "01740000000000000001" + "01780171"),
    ],
    ids=repr,
)  # fmt: skip
def test_octets(command: Command, octets: str) -> None:
    assert command.encode(True).hex() == octets
    assert decode_command(bytes.fromhex(octets)) == (command, True)


def test_properties() -> None:
    value = made("stream-properties", "t", "e", {}, 5, 1)
    octets = "0a011f00" + "01740165" + "0000000400000000" + "05" + "0000000000000001"
    assert value.encode().hex() == octets
    assert UNSERVED["stream.stream-properties"].decode(bytes.fromhex(octets)) == value


def test_content() -> None:
    with_content = {kind for code, kind in COMMANDS.items() if code >> 8 == 10 and kind.header}
    assert with_content == {UNSERVED["stream.publish"], UNSERVED["stream.return"], UNSERVED["stream.deliver"]}
    assert {kind.header for kind in with_content} == {(UNSERVED["stream.stream-properties"].code,)}

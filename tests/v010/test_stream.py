"""The stream class against octets written out by hand."""

from __future__ import annotations

import pytest

from gateway.v010 import commands as c
from gateway.v010.commands import COMMANDS, Command, decode_command
from gateway.v010.stream import STREAM_PROPERTIES, StreamProperties


@pytest.mark.parametrize(
    ("command", "octets"),
    [
        (c.StreamQos(1, 2, 3, True), "0a010101" + "0f00" + "00000001000200000003"),
        (c.StreamQosOk(), "0a020101" + "0000"),
        (c.StreamConsume("q", "t", False, True, False, {}), "0a030101" + "2b00" + "01710174" + "0000000400000000"),
        (c.StreamConsumeOk("t"), "0a040101" + "0100" + "0174"),
        (c.StreamCancel("t"), "0a050101" + "0100" + "0174"),
        (c.StreamPublish("x", "k", mandatory=True), "0a060101" + "0700" + "0178016b"),
        (c.StreamReturn(313, "no", "x", "k"), "0a070101" + "0f00" + "0139026e6f0178016b"),
        (c.StreamDeliver("t", 1, "x", "q"), "0a080101" + "0f00" + "01740000000000000001" + "01780171"),
    ],
    ids=repr,
)  # fmt: skip
def test_octets(command: Command, octets: str) -> None:
    assert command.encode(True).hex() == octets
    assert decode_command(bytes.fromhex(octets)) == (command, True)


def test_properties() -> None:
    value = StreamProperties("t", "e", {}, 5, 1)
    octets = "0a011f00" + "01740165" + "0000000400000000" + "05" + "0000000000000001"
    assert value.encode().hex() == octets
    assert StreamProperties.decode(bytes.fromhex(octets)) == value


def test_content() -> None:
    with_content = {kind for code, kind in COMMANDS.items() if code >> 8 == 10 and kind.header}
    assert with_content == {c.StreamPublish, c.StreamReturn, c.StreamDeliver}
    assert {kind.header for kind in with_content} == {(STREAM_PROPERTIES,)}

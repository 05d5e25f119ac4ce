"""What Broker-J and Qpid's Java client said to each other: read, and written again octet for octet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.limits import Limits
from gateway.v010.assembler import Assembler, Content
from gateway.v010.commands import Command, ExecutionResult, decode_command
from gateway.v010.controls import Control, decode_control
from gateway.v010.dtx import DtxPrepare, DtxStart, RecoverResult, XaResult, Xid
from gateway.v010.frames import CONTROL, PROTOCOL_HEADER, read_frame
from gateway.v010.spans import each_struct
from gateway.v010.structs import STRUCTS
from tests import golden

NAMES = golden.names("0-10")
REWRITTEN = {
    "connection.start-ok": "a locale that is required and left out is written as an empty one",
    "connection.close": "a reply-text that is left out is written as an empty one",
}
"""What is not written octet for octet as it was read, and why."""


def segments(octets: bytes) -> Iterator[tuple[int, int, bytes | Content]]:
    """Channel, track and assembly."""
    octets = octets.removeprefix(PROTOCOL_HEADER)
    assembler = Assembler(Limits())
    at = 0
    while (frame := read_frame(octets, at, 0xFFFF)) is not None:
        (flags, kind, track, channel, payload), at = frame
        whole = assembler.feed(flags, kind, track, channel, payload)
        if whole is not None:
            yield channel, track, whole
    assert at == len(octets)


def said(name: str) -> Iterator[tuple[Control | Command, bytes, bytes]]:
    """Each control and command with its segment and its header segment."""
    transcript = golden.load(name)
    for octets in (transcript.from_client, transcript.from_server):
        for _, track, whole in segments(octets):
            segment, header = (whole.command, whole.header) if isinstance(whole, Content) else (whole, b"")
            if track == CONTROL:
                yield decode_control(segment), segment, header
            else:
                command, _ = decode_command(segment)
                assert command is not None
                yield command, segment, header


def written(what: Control | Command, segment: bytes) -> bytes:
    """The segment as we write it."""
    return what.encode() if isinstance(what, Control) else what.encode(segment[3] & 1 != 0)


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_written_as_it_was_read(name: str) -> None:
    for what, segment, header in said(name):
        octets = written(what, segment)
        if octets != segment:
            assert what.spelled in REWRITTEN, (what, octets.hex(), segment.hex())
            again = decode_control(octets) if isinstance(what, Control) else decode_command(octets)[0]
            assert again == what
        for code, begin, end in each_struct(header):
            struct, stop = STRUCTS[code].decode_sized(header, begin)
            assert stop == end
            assert struct.encode_sized() == header[begin:end]


def test_only_what_has_a_reason_is_written_in_another_way() -> None:
    found = {what.spelled for name in NAMES for what, segment, _ in said(name) if written(what, segment) != segment}
    assert found == REWRITTEN.keys()


def test_what_was_said() -> None:
    """Of which classes, and how many of their controls and commands, Broker-J was heard to speak."""
    spoken = {what.spelled for name in NAMES for what, _, _ in said(name)}
    counts: dict[str, int] = {}
    for spelled in spoken:
        above = spelled.partition(".")[0]
        counts[above] = counts.get(above, 0) + 1
    assert counts["dtx"] == 10
    assert counts["execution"] == 3


def test_results_of_branches() -> None:
    sent = [what for what, _, _ in said("brokerj-0-10-dtx")]
    names = [what.xid for what in sent if isinstance(what, DtxStart)]
    assert names[:2] == [Xid(7, b"golden", b"\x01")] * 2
    assert Xid(7, b"golden", b"\x01") in [what.xid for what in sent if isinstance(what, DtxPrepare)]
    values = [what.value for what in sent if isinstance(what, ExecutionResult) and what.value]
    results = [STRUCTS[value[0] << 8 | value[1]].decode(value) for value in values]
    assert RecoverResult((Xid(7, b"golden", b"\x01"),)) in results
    assert results.count(XaResult()) == 12

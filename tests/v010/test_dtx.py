"""The dtx class against octets written out by hand; the two forms of a branch's name."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import Limits
from gateway.v010 import dtx
from gateway.v010.commands import COMMANDS, Command, decode_command
from gateway.v010.domains import DOMAINS
from gateway.v010.dtx import (
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxSetTimeout,
    DtxStart,
    GetTimeoutResult,
    PublishedXid,
    RecoverResult,
    XaResult,
    Xid,
)
from gateway.v010.structs import STRUCTS, UNCODED, Struct
from tests.v010.values import XIDS

XID = Xid(7, b"gt", b"b")
NAME = "00000007" + "026774" + "0162"
CODED = "0000000d" + "0604" + "0700" + NAME
PUBLISHED = "000b" + "0700" + NAME


@pytest.mark.parametrize(
    ("command", "sync", "octets"),
    [
        (DtxSelect(), True, "060101010000"),
        (DtxStart(XID), False, "060201000100" + CODED),
        (DtxStart(XID, join=True), False, "060201000300" + CODED),
        (DtxStart(XID, resume=True), True, "060201010500" + CODED),
        (DtxStart(PublishedXid(7, b"gt", b"b")), True, "060201010100" + PUBLISHED),
        (DtxEnd(XID, fail=True), True, "060301010300" + CODED),
        (DtxEnd(XID, suspend=True), True, "060301010500" + CODED),
        (DtxCommit(XID, True), True, "060401010300" + CODED),
        (DtxForget(XID), True, "060501010100" + CODED),
        (DtxGetTimeout(XID), True, "060601010100" + CODED),
        (DtxPrepare(XID), True, "060701010100" + CODED),
        (DtxRecover(), True, "060801010000"),
        (DtxRollback(XID), True, "060901010100" + CODED),
        (DtxSetTimeout(XID, 60), True, "060a01010300" + CODED + "0000003c"),
    ],
    ids=repr,
)
def test_octets(command: Command, sync: bool, octets: str) -> None:
    assert command.encode(sync).hex() == octets
    assert decode_command(bytes.fromhex(octets)) == (command, sync)


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (XaResult(dtx.XA_RBTIMEOUT), "060101000002"),
        (GetTimeoutResult(60), "060201000000003c"),
        (RecoverResult(), "0603010000000005ab00000000"),
        (RecoverResult((XID, XID)), "0603010000000027ab00000002" + CODED * 2),
        (XID, "06040700" + NAME),
    ],
    ids=repr,
)
def test_structs(value: Struct, octets: str) -> None:
    assert value.encode().hex() == octets
    assert type(value).decode(bytes.fromhex(octets)) == value


def test_results() -> None:
    results = {code & 0xFF: kind.result for code, kind in COMMANDS.items() if code >> 8 == 6}
    branch = dict.fromkeys((2, 3, 4, 7, 9), XaResult)
    assert results == {1: None, 5: None, 10: None, **branch, 6: GetTimeoutResult, 8: RecoverResult}


def test_the_two_forms() -> None:
    assert (Xid.code, Xid.size, PublishedXid.code, PublishedXid.size) == (0x0604, 4, 0, 2)
    assert STRUCTS[0x0604] is Xid
    assert UNCODED["dtx.xid"] is PublishedXid
    published = PublishedXid(7, b"gt", b"b")
    assert published != XID
    assert hash(published) == hash(XID)
    assert {XID: 1}[Xid(7, b"gt", b"b")] == 1


@given(XIDS)
def test_the_form_is_kept(xid: Xid) -> None:
    for form in (Xid, PublishedXid):
        start = DtxStart(form(xid.format, xid.global_id, xid.branch_id))
        found, _ = decode_command(start.encode())
        assert found == start
        assert isinstance(found, DtxStart)
        assert type(found.xid) is form


def test_names_of_statuses() -> None:
    for name, value in DOMAINS["dtx.xa-status"].choices.items():
        assert getattr(dtx, name.upper().replace("-", "_")) == value


@pytest.mark.parametrize(
    "octets",
    [
        "",
        "00",
        "0000",
        "0000000d",
        "0000000d" + "0605" + "0700" + NAME,
        "0000000c" + "0604" + "0700" + NAME,
        "00000001" + "06",
        "00000000",
        "000a" + "0700" + NAME,
        "000c" + "0700" + NAME,
        "0002" + "0800",
    ],
)
def test_what_is_no_xid(octets: str) -> None:
    with pytest.raises(FrameSyntaxError):
        decode_command(bytes.fromhex("060701010100" + octets))


def recovered(array: bytes) -> RecoverResult:
    return RecoverResult.decode(b"\x06\x03\x01\x00" + struct.pack(">I", len(array)) + array, Limits(table_entries=10))


def test_branches_in_doubt() -> None:
    xid = bytes.fromhex(CODED)
    assert recovered(b"\xab\x00\x00\x00\x01" + xid).in_doubt == (XID,)
    for nothing in (b"", b"\xf0\x00\x00\x00\x00", b"\xab\x00\x00\x00\x00"):
        assert recovered(nothing).in_doubt == ()
    for broken in (
        b"\xab\x00\x00\x00\x02" + xid,
        b"\xab\x00\x00\x00\x01" + xid + b"\x00",
        b"\xab\x00\x00\x00\x0b" + xid * 11,
        b"\x21\x00\x00\x00\x01" + bytes(4),
        b"\x00",
    ):
        with pytest.raises(FrameSyntaxError):
            recovered(broken)
    with pytest.raises(FrameSyntaxError, match="an array of 9 octets where 5 are left"):
        RecoverResult.decode(b"\x06\x03\x01\x00" + b"\x00\x00\x00\x09" + bytes(5))


def test_what_is_not_an_xid_cannot_be_written() -> None:
    nothing: Any = "a branch"
    for command in (DtxPrepare(nothing), DtxPrepare(Xid(1 << 32)), DtxPrepare(Xid(0, b"g" * 256))):
        with pytest.raises(EncodeError):
            command.encode()
    with pytest.raises(EncodeError, match=r"dtx\.recover-result\.in_doubt"):
        RecoverResult(nothing).encode()

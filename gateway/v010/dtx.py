"""Distributed transactions of AMQP 0-10: the dtx class (specification section 10.6).

A branch is named by an :class:`Xid`. Published and Qpid's definitions disagree about its form on the wire: a length of
two octets and no code there, a length of four and the code 0x0604 in Qpid's errata, which is what the brokers we know
speak. Both forms are recognized by the first two bytes: a branch has fewer octets than would make a length of
four begin with anything but zeros, and more than none. :class:`PublishedXid` is what a field of the published form is
read as, and what is written in it.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, TypeAlias

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.codec import Reading, check_array
from gateway.v010.domains import XaStatus
from gateway.v010.fields import Bit, FieldType, Uint32, Vbin8
from gateway.v010.segments import Command, command
from gateway.v010.structs import Struct, coded, uncoded

XA_OK: Final = 0
XA_RBROLLBACK: Final = 1
XA_RBTIMEOUT: Final = 2
XA_HEURHAZ: Final = 3
XA_HEURCOM: Final = 4
XA_HEURRB: Final = 5
XA_HEURMIX: Final = 6
XA_RDONLY: Final = 7
"""xa-status: what became of a branch."""


# -------------------------------------------------------------------------------------------------- structs


@coded(0x0601, "dtx.xa-result")
class XaResult(Struct):
    """What became of a branch."""

    status: XaStatus = XA_OK


@coded(0x0604, "dtx.xid")
class Xid(Struct):
    """The name of a branch, in Qpid's form."""

    format: Uint32 = 0
    """How the other two were made."""
    global_id: Vbin8 = b""
    """The transaction: at most 64 octets in XA, 255 on the wire."""
    branch_id: Vbin8 = b""
    """The branch of it, as long."""

    def __hash__(self) -> int:
        return hash((self.format, self.global_id, self.branch_id))


@uncoded("dtx.xid", size=2)
class PublishedXid(Xid):
    """The name of a branch, in the published form. It does not equal the same one in Qpid's form."""

    __hash__ = Xid.__hash__


def _read_xid(data: bytes, at: int, limits: Limits) -> tuple[Xid, int]:
    return (PublishedXid if data[at] or data[at + 1] else Xid).decode_sized(data, at, limits)


def _read_xids(data: bytes, at: int, limits: Limits) -> tuple[tuple[Xid, ...], int]:
    """An array of struct32, each of them an xid: only what has a code can be in an array."""
    start = at + 4
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise FrameSyntaxError(f"an array of {end - start} octets where {len(data) - start} are left")
    if end == start:
        return (), end
    count = check_array(data, start, end - start, Reading(limits))
    if count and data[start] != 0xAB:
        raise FrameSyntaxError(f"an array of type 0x{data[start]:02x} where one of structs belongs")
    at = start + 5
    found = []
    for _ in range(count):
        xid, at = Xid.decode_sized(data, at, limits)
        found.append(xid)
    if at != end:
        raise FrameSyntaxError("the elements of an array do not fill it")
    return tuple(found), end


def _write_xids(value: tuple[Xid, ...]) -> bytes:
    octets = b"".join([Xid(xid.format, xid.global_id, xid.branch_id).encode_sized() for xid in value])
    return struct.pack(">IBI", len(octets) + 5, 0xAB, len(value)) + octets


def _write_xid(value: Any) -> bytes:
    octets: bytes = value.encode_sized()
    return octets


XidField: TypeAlias = Annotated[Xid, FieldType("xid", _read_xid, _write_xid)]
Xids: TypeAlias = Annotated[tuple[Xid, ...], FieldType("array", _read_xids, _write_xids)]


@coded(0x0602, "dtx.get-timeout-result")
class GetTimeoutResult(Struct):
    """The timeout of a branch."""

    timeout: Uint32 = 0
    """Seconds."""


@coded(0x0603, "dtx.recover-result")
class RecoverResult(Struct):
    """The branches that are prepared, or decided without us."""

    in_doubt: Xids = ()


# ------------------------------------------------------------------------------------------------- commands

_NULL: Final = Xid()


@command(0x0601, "dtx.select")
class DtxSelect(Command):
    """The session may work on branches from here."""


@command(0x0602, "dtx.start", result=XaResult)
class DtxStart(Command):
    """What follows belongs to the branch."""

    xid: XidField = _NULL
    join: Bit = False
    """Work on a branch that is known already."""
    resume: Bit = False
    """Go on with one that was suspended."""


@command(0x0603, "dtx.end", result=XaResult)
class DtxEnd(Command):
    """What follows does not belong to the branch."""

    xid: XidField = _NULL
    fail: Bit = False
    """It can only be rolled back."""
    suspend: Bit = False
    """It is only interrupted."""


@command(0x0604, "dtx.commit", result=XaResult)
class DtxCommit(Command):
    """Commit a branch that is prepared, or in one phase."""

    xid: XidField = _NULL
    one_phase: Bit = False


@command(0x0605, "dtx.forget")
class DtxForget(Command):
    """Forget a branch that was decided elsewhere."""

    xid: XidField = _NULL


@command(0x0606, "dtx.get-timeout", result=GetTimeoutResult)
class DtxGetTimeout(Command):
    """How long a branch may take."""

    xid: XidField = _NULL


@command(0x0607, "dtx.prepare", result=XaResult)
class DtxPrepare(Command):
    """The first phase: from here on it can be committed."""

    xid: XidField = _NULL


@command(0x0608, "dtx.recover", result=RecoverResult)
class DtxRecover(Command):
    """Which branches are in doubt."""


@command(0x0609, "dtx.rollback", result=XaResult)
class DtxRollback(Command):
    """Nothing of the branch has happened."""

    xid: XidField = _NULL


@command(0x060A, "dtx.set-timeout")
class DtxSetTimeout(Command):
    """How long the branch may take."""

    xid: XidField = _NULL
    timeout: Uint32 = 0
    """Seconds."""

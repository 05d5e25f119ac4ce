"""Any value of any declared class of 0-10."""

from __future__ import annotations

from typing import Any, Final, get_args
from uuid import UUID

from hypothesis import strategies as st

from gateway.v010.commands import COMMANDS
from gateway.v010.controls import CONTROLS
from gateway.v010.dtx import PublishedXid, Xid, Xids
from gateway.v010.fields import Fields
from gateway.v010.structs import STRUCTS, UNCODED, ReplyToStruct

DECLARED: Final[list[Any]] = [*CONTROLS.values(), *COMMANDS.values(), *STRUCTS.values(), *UNCODED.values()]

SCALARS: Final = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20)
TEXTS: Final = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
OCTETS: Final = st.binary(max_size=20)
RANGES: Final = st.lists(
    st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 100)).map(lambda r: (r[0], (r[0] + r[1]) & 0xFFFFFFFF)),
    max_size=4,
).map(tuple)
BYTE_RANGES: Final = st.lists(
    st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)).map(lambda pair: tuple(sorted(pair))),
    max_size=4,
).map(tuple)
XIDS: Final = st.builds(Xid, st.integers(0, 0xFFFFFFFF), OCTETS, OCTETS)

FIELDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bit": st.booleans(),
    "uint8": st.integers(0, 0xFF),
    "uint16": st.integers(0, 0xFFFF),
    "uint32": st.integers(0, 0xFFFFFFFF),
    "sequence-no": st.integers(0, 0xFFFFFFFF),
    "uint64": st.integers(0, (1 << 64) - 1),
    "datetime": st.integers(0, (1 << 64) - 1),
    "uuid": st.builds(lambda octets: UUID(bytes=octets), st.binary(min_size=16, max_size=16)),
    "str8": TEXTS,
    "str16": TEXTS,
    "vbin8": OCTETS,
    "vbin16": OCTETS,
    "vbin32": OCTETS,
    "array": OCTETS,
    "struct32": OCTETS,
    "map": st.dictionaries(st.text(max_size=20), SCALARS, max_size=3),
    "str16-array": st.lists(TEXTS, max_size=3).map(tuple),
    "sequence-set": RANGES,
    "byte-ranges": BYTE_RANGES,
    "reply-to": st.builds(ReplyToStruct, st.none() | TEXTS, st.none() | TEXTS),
    "xid": XIDS | st.builds(PublishedXid, st.integers(0, 0xFFFFFFFF), OCTETS, OCTETS),
}
"""Type of a field -> its values."""
_XIDS: Final = get_args(Xids)[1]


def field_value(kind: Any, absent: Any) -> st.SearchStrategy[Any]:
    """A value of a field, or none where it may be absent."""
    if kind is _XIDS:
        return st.lists(XIDS, max_size=3).map(tuple)
    present = FIELDS[kind.name if kind else "bit"]
    return present if absent is not None else st.none() | present


def declared_value(declared: type[Fields]) -> st.SearchStrategy[Any]:
    """A value of a declared class."""
    return st.builds(declared, *[field_value(kind, absent) for _, _, kind, absent in declared.layout])

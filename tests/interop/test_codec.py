"""Every control, command and struct of 0-10 that Qpid's own codec knows: what we write it reads, and writes again.

The codec is that of Qpid's Java client, which its broker shares. It has no file and no stream class.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.v010.commands import COMMANDS, UNSERVED, Command, decode_command
from gateway.v010.controls import CONTROLS, Control, decode_control
from gateway.v010.domains import DOMAINS
from gateway.v010.dtx import PublishedXid, Xid
from gateway.v010.fields import Fields
from gateway.v010.structs import STRUCTS, ExchangeBoundResult, Struct
from tests.servers.judge import Judge
from tests.v010.values import FIELDS, TEXTS, XIDS, field_value

pytestmark = pytest.mark.broker

UNKNOWN: Final = {"file", "stream"}
DECLARED: Final[list[Any]] = [
    kind
    for kind in (*CONTROLS.values(), *COMMANDS.values(), *STRUCTS.values())
    if kind.spelled.partition(".")[0] not in UNKNOWN
]
RANGES: Final = st.lists(st.integers(1, 50), max_size=8).map(
    lambda steps: tuple((sum(steps[:at]) * 2, sum(steps[: at + 1]) * 2 - 2) for at in range(len(steps)))
)
"""In order, with a gap between any two."""
PLAIN: Final = st.booleans() | st.integers(-(1 << 31), (1 << 31) - 1) | TEXTS
ITS_OWN: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "array": TEXTS.map(str.encode).map(lambda text: struct.pack(">BIH", 0x95, 1, len(text)) + text),
    "struct32": st.builds(ExchangeBoundResult, st.booleans(), st.booleans()).map(Struct.encode),
    "map": st.dictionaries(TEXTS.filter(lambda key: len(key.encode()) < 256), PLAIN, max_size=3),
    "sequence-set": RANGES,
    "xid": XIDS,
}
"""Values that it reads as what they are: it takes arrays and structs apart, joins ranges, and makes the types of values
those of Java, several of them the same."""
REWRITTEN: Final = {"map", "str16-array", "array"}
"""Fields that it writes in its own way: entries in another order, an empty array without its type."""


def value_of(declared: type[Fields]) -> st.SearchStrategy[Any]:
    """A value of a class; a field of a domain with choices is one of them."""
    fields = []
    for name, _, kind, absent in declared.layout:
        choices = DOMAINS[declared.domains[name]].choices if name in declared.domains else None
        if choices:
            fields.append(st.sampled_from(list(choices.values())))
        elif kind is not None and kind.name in ITS_OWN and field_value(kind, ()) is FIELDS[kind.name]:
            fields.append(ITS_OWN[kind.name] if absent is not None else st.none() | ITS_OWN[kind.name])
        else:
            fields.append(field_value(kind, absent))
    return st.builds(declared, *fields)


def encoded(value: Control | Command | Struct) -> tuple[str, bytes]:
    """Its kind and its octets."""
    if isinstance(value, Control):
        return "control", value.encode()
    return ("command", value.encode(True)) if isinstance(value, Command) else ("struct", value.encode_sized())


def decoded(kind: str, octets: bytes, declared: Any) -> Any:
    """The value in octets."""
    if kind == "control":
        return decode_control(octets)
    return decode_command(octets)[0] if kind == "command" else declared.decode(octets[4:])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*map(value_of, DECLARED)))
def test_every_class_is_the_same_to_qpid(judge: Judge, values: tuple[Any, ...]) -> None:
    written = [encoded(value) for value in values]
    for value, (kind, octets), (name, again) in zip(values, written, judge.recode(*written), strict=True):
        assert isinstance(again, bytes), (value, again)
        assert name == type(value).__name__
        assert decoded(kind, again, type(value)) == value
        if not REWRITTEN & {field.name for _, _, field, _ in value.layout if field}:
            assert again == octets


def test_what_qpid_does_not_know(judge: Judge) -> None:
    xid = PublishedXid(1, b"g", b"b")
    commands = (
        UNSERVED["file.qos"](),
        UNSERVED["stream.qos"](),
        COMMANDS[0x0607](xid),
        COMMANDS[0x0607](Xid(1, b"g", b"b")),
    )
    assert [name for name, _ in judge.recode(*map(encoded, commands))] == [None, None, None, "DtxPrepare"]

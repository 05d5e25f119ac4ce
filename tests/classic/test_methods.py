"""Every declared method: there and back for any value, cut, with trailing octets; and as other libraries write it."""

from __future__ import annotations

from typing import Any

import pamqp.commands
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec as pika_spec

from gateway.classic import methods as m
from gateway.classic.tables import TableCodec
from gateway.errors import FrameSyntaxError
from gateway.v08.dialect import DIALECTS as DIALECTS_08
from gateway.v091.dialect import DIALECTS as DIALECTS_091
from gateway.wire.types import BitType, FieldType, Integer, LongString, ShortString, TableType

TABLES = TableCodec()
METHODS = sorted(
    {
        value
        for value in vars(m).values()
        if isinstance(value, type) and issubclass(value, m.Method) and value is not m.Method
    },
    key=lambda method: (method.key, method.__name__),
)


def values_of(kind: FieldType) -> st.SearchStrategy[Any]:
    if isinstance(kind, Integer):
        return st.integers(kind.minimum, kind.maximum)
    strategies: dict[type, st.SearchStrategy[Any]] = {
        BitType: st.booleans(),
        ShortString: st.text(max_size=63),
        LongString: st.binary(max_size=300),
        TableType: st.dictionaries(st.text(max_size=20), st.booleans() | st.text(), max_size=3),
    }
    return strategies[type(kind)]


def sample(method: type[m.Method]) -> m.Method:
    values = {Integer: 1, BitType: True, ShortString: "name", LongString: b"octets", TableType: {"k": "v"}}
    return method(**{name: values[type(kind)] for name, kind in method.layout})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_any_arguments_come_back(method: type[m.Method]) -> None:
    @given(st.builds(method, **{name: values_of(kind) for name, kind in method.layout}))
    def check(message: m.Method) -> None:
        octets = message.encode(TABLES)
        assert int.from_bytes(octets[:4], "big") == method.key == method.class_id << 16 | method.method_id
        assert method.decode(octets, 4, len(octets), TABLES) == message

    check()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_cut_and_trailing(method: type[m.Method]) -> None:
    octets = sample(method).encode(TABLES)
    assert method.decode(b"ab" + octets + b"cd", 6, 2 + len(octets), TABLES) == sample(method)
    for length in range(4, len(octets)):
        with pytest.raises(FrameSyntaxError):
            method.decode(octets, 4, length, TABLES)
    with pytest.raises(FrameSyntaxError):
        method.decode(octets + b"\x00", 4, len(octets) + 1, TABLES)


@pytest.mark.parametrize("dialect", [*DIALECTS_08.values(), *DIALECTS_091.values()], ids=lambda d: d.properties)
def test_a_dialects_numbers_are_its_own(dialect: Any) -> None:
    assert all(key == method.key for key, method in dialect.methods.items())
    for used in (dialect.connection_close, dialect.connection_close_ok, dialect.channel_open_ok, dialect.recover):
        assert dialect.methods[used.key] is used


RENAMED = {
    (None, "class_id_"): "class_id",
    (None, "method_id_"): "method_id",
    (m.ExchangeDeclare, "type"): "exchange_type",
}
RESERVED = {"ticket", "out_of_band", "channel_id", "known_hosts", "capabilities", "insist", "cluster_id"}
OF_0_9_1 = [
    method
    for method in DIALECTS_091["rabbitmq"].methods.values()
    if method.key not in (m.ExchangeBound.key, m.ExchangeBoundOk.key)
]


@pytest.mark.parametrize("method", OF_0_9_1, ids=lambda method: method.__name__)
def test_as_pamqp_writes_it(method: type[m.Method]) -> None:
    kind = pamqp.commands.INDEX_MAPPING[method.key]
    theirs = kind.__new__(kind)  # its __init__ warns of some, and refuses others
    message = sample(method)
    theirs.unmarshal(message.encode(TABLES)[4:])
    for name, type_ in method.layout:
        if name in RESERVED:
            continue
        field = RENAMED.get((method, name)) or RENAMED.get((None, name), name)
        value = getattr(theirs, field)
        assert value == getattr(message, name) or (isinstance(type_, LongString) and value == "octets"), field


@pytest.mark.parametrize(
    "method",
    [method for method in OF_0_9_1 if method is not m.ConnectionUpdateSecret],  # which pika decodes into other names
    ids=lambda method: method.__name__,
)
def test_as_pika_writes_it(method: type[m.Method]) -> None:
    kind = pika_spec.methods[method.key]
    theirs = kind.__new__(kind)
    message = sample(method)
    octets = message.encode(TABLES)
    theirs.decode(octets, 4)
    pieces = b"".join(theirs.encode())
    # pika writes its own reserved fields, and a bool where we have one: compare what it read and wrote again.
    again = method.decode(octets[:4] + pieces, 4, 4 + len(pieces), TABLES)
    for name, _ in method.layout:
        if name not in RESERVED:
            assert getattr(again, name) == getattr(message, name), name

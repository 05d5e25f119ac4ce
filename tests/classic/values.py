"""Values of every field type, for the methods of both classic versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.classic.methods import Method
from gateway.classic.tables import TableCodec
from gateway.errors import FrameSyntaxError
from gateway.wire.types import BitType, FieldType, Integer, LongString, ShortString, TableType

TABLES = TableCodec()


def values_of(kind: FieldType) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    if isinstance(kind, Integer):
        return st.integers(kind.minimum, kind.maximum)
    strategies: dict[type, st.SearchStrategy[Any]] = {
        BitType: st.booleans(),
        ShortString: st.text(max_size=63),
        LongString: st.binary(max_size=300),
        TableType: st.dictionaries(st.text(max_size=20), st.booleans() | st.text(), max_size=3),
    }
    return strategies[type(kind)]


def sample(method: type[Method]) -> Method:
    """One of its kind, with no field at its default."""
    values = {Integer: 1, BitType: True, ShortString: "name", LongString: b"octets", TableType: {"k": "v"}}
    return method(**{name: values[type(kind)] for name, kind in method.layout})


def any_of(method: type[Method]) -> st.SearchStrategy[Any]:
    """Any of its kind."""
    return st.builds(method, **{name: values_of(kind) for name, kind in method.layout})


def check_there_and_back(method: type[Method]) -> None:
    """Any arguments come back as they went, behind the method's own numbers."""

    @given(any_of(method))
    def check(message: Method) -> None:
        octets = message.encode(TABLES)
        assert int.from_bytes(octets[:4], "big") == method.key == method.class_id << 16 | method.method_id
        assert method.decode(octets, 4, len(octets), TABLES) == message

    check()


def check_cut_and_trailing(method: type[Method]) -> None:
    """Not an octet less, and not one more."""
    octets = sample(method).encode(TABLES)
    assert method.decode(b"ab" + octets + b"cd", 6, 2 + len(octets), TABLES) == sample(method)
    for length in range(4, len(octets)):
        with pytest.raises(FrameSyntaxError):
            method.decode(octets, 4, length, TABLES)
    with pytest.raises(FrameSyntaxError):
        method.decode(octets + b"\x00", 4, len(octets) + 1, TABLES)

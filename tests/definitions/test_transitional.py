"""The transitional draft of 0-10: every class, method, field, reply, constant and domain of the definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.classic.methods import Method
from gateway.v010_draft.attached import METHODS
from gateway.v010_draft.constants import TABLE_TYPES
from gateway.v010_draft.fields import ReferenceTo
from gateway.v010_draft.tables import DECODERS, Tables
from tests.definitions.definitions import facts, facts_path, source, written
from tests.definitions.transitional import FILE, definition, differences, read, type_name

TABLES = Tables()
NUMBERS = st.integers(0, 0xFFFFFFFF)
VALUES = {
    "bit": st.booleans(),
    "octet": st.integers(0, 0xFF),
    "short": st.integers(0, 0xFFFF),
    "long": NUMBERS,
    "longlong": st.integers(0, (1 << 64) - 1),
    "shortstr": st.text(max_size=60),
    "longstr": st.binary(max_size=300),
    "uuid": st.uuids(),
    "rfc1982-long-set": st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(tuple),
    "content": st.binary(max_size=300) | st.binary(max_size=300).map(ReferenceTo),
    "table": st.dictionaries(
        st.text(max_size=9), st.none() | st.booleans() | st.text(max_size=9) | NUMBERS, max_size=4
    ),
}


def test_there_is_no_difference() -> None:
    assert list(differences(definition())) == []


def test_the_whole_definition_was_read() -> None:
    said = definition()
    assert (len(said.methods), len(said.classes), len(said.domains)) == (121, 16, 39)
    assert len(said.constants) == 40 + len(TABLE_TYPES)


def test_a_difference_would_be_found() -> None:
    said = definition()
    first, *others = said.methods
    for changed in (
        replace(first, content=True),
        replace(first, name="connection.begin"),
        replace(first, index=12),
        replace(first, fields=first.fields[1:]),
        replace(first, replies=()),
    ):
        assert list(differences(replace(said, methods=(changed, *others))))
    assert list(differences(replace(said, constants=said.constants[1:])))
    assert list(differences(replace(said, domains={})))
    assert list(
        differences(replace(said, classes=(replace(said.classes[0], properties=first.fields), *said.classes[1:])))
    )


def test_the_facts_are_what_the_definition_says() -> None:
    path = source(FILE)
    said = facts(FILE) if path is None else read(path)
    assert said == facts(FILE)
    assert written(said) == facts_path(FILE).read_text()


def test_every_type_of_a_table_is_read() -> None:
    assert set(TABLE_TYPES.values()) == set(DECODERS)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.title)
@given(data=st.data())
def test_what_is_written_is_what_is_read(method: type[Method], data: st.DataObject) -> None:
    made = method(*(data.draw(VALUES[type_name(kind)]) for _, kind in method.layout))
    octets = made.encode(TABLES)
    assert int.from_bytes(octets[:4], "big") == method.key
    assert method.decode(octets, 4, len(octets), TABLES) == made

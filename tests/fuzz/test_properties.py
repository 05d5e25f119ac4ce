"""What decodes, encodes to something that decodes to the same: tables, maps and properties, octets by Hypothesis."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.classic import properties as classic_properties
from gateway.classic.tables import QPID_TAGS, RABBITMQ_TAGS, TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v010 import translate
from gateway.v010.codec import read_map
from gateway.v010.encoders import write_map
from tests.fuzz import extremes

MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SEEDS = st.integers(0, 1 << 32)
OCTETS = st.one_of(st.binary(max_size=200), SEEDS.map(lambda seed: extremes.table(Random(seed))))


@pytest.mark.parametrize("tags", [RABBITMQ_TAGS, QPID_TAGS], ids=["rabbitmq", "qpid"])
@MANY
@given(octets=OCTETS)
def test_tables(tags: dict[str, str], octets: bytes) -> None:
    codec = TableCodec(tags)
    try:
        table, end = codec.read(octets, 0, len(octets))
    except FrameSyntaxError:
        return
    assert end <= len(octets)
    again = codec.encode(table)
    assert repr(codec.read(again, 0, len(again))[0]) == repr(table)
    assert codec.encode(codec.read(again, 0, len(again))[0]) == again


@MANY
@given(octets=st.one_of(st.binary(max_size=200), SEEDS.map(lambda seed: extremes.mapping(Random(seed)))))
def test_maps(octets: bytes) -> None:
    try:
        table, end = read_map(octets, 0)
    except FrameSyntaxError:
        return
    assert end <= len(octets)
    again = write_map(table)
    assert repr(read_map(again, 0)[0]) == repr(table)
    assert write_map(read_map(again, 0)[0]) == again


@MANY
@given(octets=st.one_of(st.binary(max_size=200), SEEDS.map(lambda seed: extremes.properties(Random(seed)))))
def test_content_properties(octets: bytes) -> None:
    codec = TableCodec(RABBITMQ_TAGS)
    try:
        found = classic_properties.decode(octets, codec)
    except FrameSyntaxError:
        return
    again = classic_properties.encode(found, codec)
    assert repr(classic_properties.decode(again, codec)) == repr(found)


@MANY
@given(octets=st.one_of(st.binary(max_size=300), SEEDS.map(lambda seed: header(Random(seed)))))
def test_header_segments(octets: bytes) -> None:
    try:
        found = translate.decode(octets)
    except FrameSyntaxError:
        return
    try:
        again = translate._pack(found, 0, 1)
    except EncodeError:
        return
    assert b"".join(part for part in again if isinstance(part, bytes))


def header(random: Random) -> bytes:
    """The structs of a header segment, their fields at the edges."""
    from gateway.v010.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, STRUCTS

    return b"".join(
        extremes.sized(random, code.to_bytes(2, "big") + extremes.fields(random, STRUCTS[code]), 4)
        for code in (DELIVERY_PROPERTIES, MESSAGE_PROPERTIES)
    )

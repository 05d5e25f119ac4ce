"""Every property and every header type, from every version and dialect to every other and back: the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import Deadline, Message, Properties, ReplyTo
from gateway.amqp.values import Timestamp, Typed, type_of
from gateway.errors import EncodeError
from gateway.fidelity import RESERVED, digest
from tests.translation.ends import ENDS, HEADER_SAMPLES, ON_NO_WIRE, PAIRS, PROPERTY_SAMPLES, hop, mine, samples

SAMPLES = samples()


def same(found: Properties, sent: Properties) -> bool:
    """Equal, with the classes that say more than the value, and the order of headers."""
    return (
        found == sent
        and repr(found) == repr(sent)
        and [type(getattr(found, name)) for name in ("expiration", "timestamp")]
        == [type(getattr(sent, name)) for name in ("expiration", "timestamp")]
    )


def test_samples_are_of_the_types_that_they_stand_for() -> None:
    for kind, values in HEADER_SAMPLES.items():
        assert {type_of(value) for value in values} == {kind}


@pytest.mark.parametrize(("there", "here"), PAIRS)
def test_there_and_back_is_the_identity(there: str, here: str) -> None:
    """What lies at one end goes to the other and comes back."""
    for properties in SAMPLES:
        at_home = ENDS[here].there_and_back(Message(b"body", properties))
        away = hop(at_home, ENDS[there])
        back = hop(away, ENDS[here])
        assert same(mine(back.properties), mine(at_home.properties)), properties
        assert same(mine(away.properties), mine(at_home.properties)), properties
        assert digest(at_home) == digest(away) == digest(back), properties
        assert back.body == b"body"


@pytest.mark.parametrize("end", ENDS)
def test_what_is_published_is_what_is_read(end: str) -> None:
    """One end alone. A broker's own time is shown in 0-10, and only where the gateway did not carry the message."""
    for properties in SAMPLES:
        found = ENDS[end].there_and_back(Message(b"", properties)).properties
        assert same(found, properties), properties


@pytest.mark.parametrize(("there", "here"), PAIRS)
def test_what_stays_undecoded_is_what_decoding_gives(there: str, here: str) -> None:
    for properties in SAMPLES:
        raw = ENDS[here].there_and_back(Message(b"", properties))
        decoded = Message(b"", raw.properties)
        assert same(mine(hop(raw, ENDS[there]).properties), mine(hop(decoded, ENDS[there]).properties)), properties


def test_a_tour_through_all_of_them() -> None:
    """Every kind of message, through every end in turn, twice."""
    for properties in SAMPLES:
        first = message = ENDS["0-9-1 rabbitmq"].there_and_back(Message(b"", properties))
        for end in [*ENDS, *reversed(ENDS)]:
            message = hop(message, ENDS[end])
            assert digest(message) == digest(first), (end, properties)
        assert same(mine(hop(message, ENDS["0-9-1 rabbitmq"]).properties), mine(first.properties)), properties


def test_every_loss_is_known_beforehand() -> None:
    """Nothing that these ends carry is a loss, and nothing is said to be one."""
    for name, end in ENDS.items():
        for properties in SAMPLES:
            assert end.losses(Message(b"", properties)) == (), (name, properties)


texts = st.text(max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=9)
    | st.uuids()
    | st.integers(0, 2**64 - 1).map(Timestamp)
    | st.decimals(min_value=-(2**31), max_value=2**31 - 1, places=0)
    | st.sampled_from([value for kind in sorted(HEADER_SAMPLES) for value in HEADER_SAMPLES[kind]]).filter(
        lambda value: not isinstance(value, str)
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Properties,
    **{
        name: st.none() | st.sampled_from(values)
        for name, values in PROPERTY_SAMPLES.items()
        if name not in ("reply_to", "message_id")
    },
    reply_to=st.none() | texts | st.builds(ReplyTo, texts, texts),
    message_id=st.none() | texts | st.uuids().map(str),
    headers=st.none() | st.dictionaries(texts.filter(lambda key: key != RESERVED), values, max_size=5),
)


@given(messages, st.sampled_from(PAIRS))
def test_any_message_there_and_back(properties: Properties, pair: tuple[str, str]) -> None:
    there, here = (ENDS[name] for name in pair)
    at_home = here.there_and_back(Message(b"", properties))
    away = hop(at_home, there)
    back = hop(away, here)
    assert same(mine(back.properties), mine(at_home.properties))
    assert digest(at_home) == digest(away) == digest(back)


def test_types_of_no_wire_are_carried_where_they_can_be() -> None:
    for kind in ON_NO_WIRE:
        value = Typed(kind, 5 if kind == "sequence-no" else b"123456")
        for end in ENDS.values():
            found = end.there_and_back(Message(b"", Properties(headers={"k": value}))).properties
            assert found.headers == {"k": value}


def test_a_text_of_another_class_is_a_text() -> None:
    """An expiration may be kept in a header as it is."""
    for end in ENDS.values():
        headers = {"k": Deadline.of(5, "60000"), RESERVED: {"expiration": Deadline.of(5, "60000")}}
        found = end.there_and_back(Message(b"", Properties(headers=headers))).properties.headers
        assert found == {"k": "60000", RESERVED: {"expiration": "60000"}}


def test_a_value_that_is_none_is_refused_with_its_name() -> None:
    for end in ENDS.values():
        message = Message(b"", Properties(headers={"k": {"inner": [object()]}}))
        assert [loss.name for loss in end.losses(message)] == ["untranslatable"] or end.version.value == "0-10"
        with pytest.raises(EncodeError, match="no AMQP value"):
            end.there_and_back(message)

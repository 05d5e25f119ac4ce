"""The messages are what they are taken for, and the judge sees what is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Typed, type_of
from gateway.fidelity import annotate
from gateway.versions import VERSION_NAMES
from tests.translation.live.ends import ENDS, PAIRS, End
from tests.translation.live.messages import edges, header_values, message, messages, number_of, properties_of
from tests.translation.live.run import Result, judge

SEED = 5


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
def test_every_property_and_every_type_occurs(end: End) -> None:
    count = 2 * len(edges(end))
    seen: Counter[str] = Counter()
    for number, made in enumerate(messages(end, SEED, count)):
        assert number_of(made) == number
        for name in properties_of(end):
            seen[name] += getattr(made.properties, name) is not None
        for value in (made.properties.headers or {}).values():
            seen[type_of(value)] += 1
    assert (
        set(end.types) | set(properties_of(end)) | {"headers"} >= set(seen) >= set(end.types) | set(properties_of(end))
    )
    assert {edge.where for edge in edges(end)} > {f"header {kind}" for kind in end.types}
    assert all(header_values(end).values())
    assert min(seen.values()) > 1


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
def test_a_message_is_the_same_again(end: End) -> None:
    assert repr(message(end, SEED, 77).properties) == repr(list(messages(end, SEED, 78))[77].properties)
    assert message(end, SEED, 77).body == list(messages(end, SEED, 78))[77].body
    assert repr(message(end, SEED + 1, 77).properties) != repr(message(end, SEED, 77).properties)


def test_every_pair_is_among_the_pairs() -> None:
    assert len(PAIRS) == len(ENDS) ** 2
    assert len({(source.version, target.version) for source, target in PAIRS}) == len(VERSION_NAMES) ** 2


# ----------------------------------------------------------------------------------------------------- the judge

END = ENDS[1]
SENT = list(messages(END, SEED, 40))


def judged(got: list[Message]) -> Result:
    result = Result(END, ENDS[4], len(SENT))
    judge(result, SENT, got, 1.0)
    return result


def test_what_is_the_same_is_perfect() -> None:
    assert judged(SENT).perfect
    assert judged([Message(one.body, annotate(one.properties, id="x", hops="2")) for one in SENT]).perfect


def test_what_is_missing_is_lost() -> None:
    result = judged(SENT[:7] + SENT[8:])
    assert (result.lost, result.twice, result.ordered, result.perfect) == ([7], [], True, False)


def test_what_comes_again_came_twice() -> None:
    result = judged([*SENT[:8], SENT[3], *SENT[8:]])
    assert (result.lost, result.twice, result.equal, result.perfect) == ([], [3], len(SENT), False)


def test_what_overtakes_is_out_of_order() -> None:
    result = judged([*SENT[:7], SENT[8], SENT[7], *SENT[9:]])
    assert (result.lost, result.ordered, result.perfect) == ([], False, False)


WITH_HEADERS = Message(b"b", Properties(headers={"n": "#000000;", "a": 3, "b": 0.0, "c": {"d": [1]}}))


@pytest.mark.parametrize(
    "headers",
    [
        {"n": "#000000;", "a": Typed("int64", 3), "b": 0.0, "c": {"d": [1]}},
        {"n": "#000000;", "a": 3, "b": -0.0, "c": {"d": [1]}},
        {"n": "#000000;", "b": 0.0, "a": 3, "c": {"d": [1]}},
        {"n": "#000000;", "a": 3, "b": 0.0, "c": {"d": [1, None]}},
        {"n": "#000000;", "a": 3, "b": 0.0},
        {"n": "#000000;", "a": 3, "b": 0.0, "c": {"d": [1]}, "e": None},
    ],
)
def test_a_header_of_another_type_value_or_place_is_a_change(headers: dict[str, Any]) -> None:
    result = Result(ENDS[2], ENDS[4], 1)
    judge(result, [WITH_HEADERS], [Message(b"b", Properties(headers=headers))], 1.0)
    assert list(result.changed) == [0]


def test_the_place_of_a_header_does_not_count_where_the_broker_sorts_them() -> None:
    result = Result(END, ENDS[4], 1)
    assert not END.keeps_order
    headers = dict(sorted((WITH_HEADERS.properties.headers or {}).items()))
    judge(result, [WITH_HEADERS], [Message(b"b", Properties(headers=headers))], 1.0)
    assert result.perfect


@pytest.mark.parametrize(
    "changed",
    [
        Message(b"B", WITH_HEADERS.properties),
        Message(b"b", replace(WITH_HEADERS.properties, priority=0)),
        Message(b"b", replace(WITH_HEADERS.properties, timestamp=0)),
        Message(b"b", replace(WITH_HEADERS.properties, content_type="")),
    ],
    ids=repr,
)
def test_so_is_another_body_or_property(changed: Message) -> None:
    result = Result(END, ENDS[4], 1)
    judge(result, [WITH_HEADERS], [changed], 1.0)
    assert list(result.changed) == [0]


def test_a_message_without_its_number_is_told() -> None:
    assert list(judged([*SENT, Message(b"who?")]).changed) == [-1]


def test_only_an_instant_may_come_nearer() -> None:
    sent = Message(b"#000000;", Properties(expiration="600000"))
    got = Message(b"#000000;", Properties(expiration="599000"))
    for end, changed in ((ENDS[1], [0]), (ENDS[2], [])):
        result = Result(end, ENDS[4], 1)
        judge(result, [sent], [got], 2.0)
        assert list(result.changed) == changed
    result = Result(ENDS[2], ENDS[4], 1)
    judge(result, [sent], [Message(b"#000000;", Properties(expiration="500000"))], 2.0)
    assert list(result.changed) == [0]

"""Which messages a subscription wants."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.topics import TopicTrie
from gateway.config import SubscriptionFilter
from gateway.core.sources import filters
from gateway.core.sources.filters import Filter, matches
from gateway.errors import EncodeError, FrameSyntaxError


@pytest.mark.parametrize(
    ("pattern", "key", "wanted"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*", "", False),
        ("#.*", "", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("#", "a.b", True),
        ("#.z", "a.b.z", True),
        ("#.z", "a.b.y", False),
        ("#.a.#", "b.a.c", True),
        ("a.#.#.b", "a.b", True),
        ("#.*.b", "b", False),
        ("", "a", True),
    ],
)
def test_patterns(pattern: str, key: str, wanted: bool) -> None:
    found = Filter(SubscriptionFilter(routing_key=pattern))
    for _ in range(2):  # as it is worked out, and as it is remembered
        assert (found.refusal(key, Message()) is None) is wanted


def test_patterns_are_those_of_topic_exchanges() -> None:
    chance = random.Random(1)
    agreed = {True: 0, False: 0}
    for _ in range(3_000):
        pattern = ".".join(chance.choice("a*#b#") for _ in range(chance.randint(1, 5)))
        key = ".".join(chance.choice("ab") for _ in range(chance.randint(1, 5)))
        trie: TopicTrie[str] = TopicTrie()
        trie.add(pattern, "queue")
        expected = bool(list(trie.match(key)))
        assert matches(tuple(pattern.split(".")), key.split(".")) is expected, (pattern, key)
        agreed[expected] += 1
    assert min(agreed.values()) > 500


def test_a_pattern_of_hashes_is_no_work() -> None:
    class Counted(tuple[str, ...]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.looks += 1
            return super().__getitem__(place)

    pattern = Counted(("#.#." * 60 + "x").split("."))
    words = ["a"] * 127
    assert not matches(pattern, words)
    assert Counted.looks < 5 * len(pattern) * len(words)


def test_a_pattern_is_no_longer_than_a_routing_key() -> None:
    Filter(SubscriptionFilter(routing_key="é" * 127))
    with pytest.raises(EncodeError, match=r"^filter.routing_key: 256 octets, the limit is 255"):
        Filter(SubscriptionFilter(routing_key="é" * 128))


def test_selectors() -> None:
    found = Filter(SubscriptionFilter(selector="amount > 10"))
    assert found.refusal("", Message(b"", Properties(headers={"amount": 11}))) is None
    assert found.refusal("", Message(b"", Properties(headers={"amount": 10}))) == "the selector does not match"
    assert found.refusal("", Message()) == "the selector does not match"


def test_all_that_is_given_must_hold() -> None:
    found = Filter(SubscriptionFilter(selector="amount > 10", routing_key="orders.#"))
    good, bad = (Message(b"", Properties(headers={"amount": amount})) for amount in (11, 10))
    assert not found.wants_all
    assert found.refusal("orders.eu", good) is None
    assert found.refusal("orders.eu", bad) is not None
    assert found.refusal("stock", good) == "the routing key does not match orders.#"
    assert Filter(SubscriptionFilter()).wants_all


def test_properties_that_cannot_be_read() -> None:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    message = Message(b"", None, RawProperties(b"\xff", "0-9-1", decode))
    reason = Filter(SubscriptionFilter(selector="a = 1")).refusal("", message)
    assert reason is not None
    assert "broken" in reason
    assert Filter(SubscriptionFilter(routing_key="#")).refusal("", message) is None


def test_a_selector_that_is_none() -> None:
    with pytest.raises(EncodeError, match=r"filter\.selector: 'a >'"):
        Filter(SubscriptionFilter(selector="a >"))


def test_no_more_is_remembered_than_documented() -> None:
    found = Filter(SubscriptionFilter(routing_key="a.#"))
    for number in range(filters.REMEMBERED * 2 + 1):
        assert found.refusal(f"a.{number}", Message()) is None
    assert len(found._keys) <= filters.REMEMBERED


@pytest.mark.parametrize(
    ("settings", "wants_all"),
    [({}, True), ({"selector": "a = 1"}, False), ({"routing_key": "#"}, False), ({"routing_key": "a"}, False)],
)
def test_there_is_nothing_to_ask_only_without_both(settings: dict[str, str], wants_all: bool) -> None:
    assert Filter(SubscriptionFilter(**settings)).wants_all is wants_all


def test_a_pattern_may_be_as_long_as_the_limit() -> None:
    Filter(SubscriptionFilter(routing_key="x" * filters.PATTERN_MAX))
    with pytest.raises(EncodeError, match=rf"filter\.routing_key: {filters.PATTERN_MAX + 1} octets"):
        Filter(SubscriptionFilter(routing_key="x" * (filters.PATTERN_MAX - 1) + "\u00e9"))


def test_answers_are_remembered_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "REMEMBERED", 2)
    asked: list[list[str]] = []
    matches = filters.matches

    def counted(pattern: tuple[str, ...], words: list[str]) -> bool:
        asked.append(words)
        return matches(pattern, words)

    monkeypatch.setattr(filters, "matches", counted)
    found = Filter(SubscriptionFilter(routing_key="a.*"))
    for key in ("a.1", "b.1", "a.1", "b.1", "a.1"):
        assert (found.refusal(key, Message()) is None) is key.startswith("a")
    assert asked == [["a", "1"], ["b", "1"]]
    assert found.refusal("a.2", Message()) is None
    assert found.refusal("a.1", Message()) is None
    assert len(asked) == 4, "all were forgotten when there were too many"

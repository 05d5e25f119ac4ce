"""Topic patterns: the trie against the definition."""

from __future__ import annotations

import itertools
import time

import pytest

from gateway.amqp.topics import CACHE_MAX, TopicTrie
from tests.pace import pace


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*", "", False),
        ("*.#", "", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "a.b", False),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("#.*", "", False),
        ("", "a", False),
        (".", "", False),
        ("#.*.#", "a", True),
        ("*.#.*", "a", False),
        ("#.#", "a", True),
        ("", "", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("a", "*", False),
        ("*", "#", True),
    ],
)
def test_match(pattern: str, key: str, matches: bool) -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, "queue")
    assert trie.match(key) == (("queue",) if matches else ())


def _matches(pattern: list[str], key: list[str]) -> bool:
    """The definition, by recursion."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return _matches(pattern[1:], key) or (bool(key) and _matches(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and _matches(pattern[1:], key[1:])


def test_all_short_patterns() -> None:
    keys = [list(key) for size in range(1, 5) for key in itertools.product("ab", repeat=size)]
    patterns = [list(words) for size in range(1, 5) for words in itertools.product("a*#", repeat=size)]
    trie: TopicTrie[str] = TopicTrie()
    for pattern in patterns:
        trie.add(".".join(pattern), ".".join(pattern))
    for key in keys:
        assert set(trie.match(".".join(key))) == {".".join(words) for words in patterns if _matches(words, key)}


def test_a_target_is_found_once_and_counted() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.*", "queue")
    trie.add("a.*", "queue")
    trie.add("#", "queue")
    assert trie.match("a.b") == ("queue",)
    trie.remove("#", "queue")
    trie.remove("a.*", "queue")
    assert trie.match("a.b") == ("queue",)
    trie.remove("a.*", "queue")
    assert trie.match("a.b") == ()


def test_branches_that_lead_nowhere_are_cut() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.b", "one")
    trie.add("a.b.c.d", "two")
    trie.remove("a.b.c.d", "two")
    assert trie.match("a.b") == ("one",)
    trie.remove("a.b", "one")
    assert not trie._root.children


def test_hostile_patterns_do_not_explode() -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number in range(20):
        trie.add(".".join(["#", "a"] * (number + 1)), number)
    started = time.process_time()
    assert trie.match(".".join(["a"] * 120) + ".b") == ()
    assert time.process_time() - started < pace()


def test_the_memory_of_answers_is_bounded() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("*", "queue")
    for number in range(CACHE_MAX + 10):
        assert trie.match(str(number)) == ("queue",)
    assert len(trie._cache) <= CACHE_MAX

"""A trie of topic patterns (0-9-1 section 3.1.3.3), for topic exchanges and for scopes of routing keys.

A pattern is words between dots; ``*`` stands for exactly one word, ``#`` for none or more. Patterns share their
prefixes in a trie. For each node a number says after which words of the key it can be reached, one bit for each word;
the number of a child follows from that of its node, so a match visits each node at most once, for any patterns. It
visits only what can be reached.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from gateway.amqp.steps import Steps

_Target = TypeVar("_Target")

CACHE_MAX = 1_024
"""Routing keys whose answer is remembered; the memory is emptied when it is full and when a pattern changes."""
CACHED_TARGETS = 1_024
"""Longest answer that is remembered."""


class _Node(Generic[_Target]):
    __slots__ = ("children", "targets")

    def __init__(self) -> None:
        self.children: dict[str, _Node[_Target]] = {}
        self.targets: dict[_Target, int] = {}


class TopicTrie(Generic[_Target]):
    """Patterns and their targets. The same pair may be added more than once, and is removed as often."""

    __slots__ = ("_cache", "_root", "nodes")

    def __init__(self) -> None:
        self._root: _Node[_Target] = _Node()
        self.nodes = 0
        """How many nodes the trie has, beside its root."""
        self._cache: dict[str, tuple[_Target, ...]] = {}

    def add(self, pattern: str, target: _Target) -> None:
        """Let ``pattern`` lead to ``target``."""
        self._cache.clear()
        node = self._root
        for word in _words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
                self.nodes += 1
            node = child
        node.targets[target] = node.targets.get(target, 0) + 1

    def remove(self, pattern: str, target: _Target) -> None:
        """Undo one :meth:`add`. Branches that lead nowhere are cut."""
        self._cache.clear()
        words = _words(pattern)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        node = path.pop()
        if node.targets[target] > 1:
            node.targets[target] -= 1
            return
        del node.targets[target]
        while path and not node.targets and not node.children:
            node = path.pop()
            del node.children[words[len(path)]]
            self.nodes -= 1

    def missing(self, pattern: str) -> int:
        """How many nodes :meth:`add` would make for ``pattern``."""
        node, words = self._root, _words(pattern)
        for number, word in enumerate(words):
            child = node.children.get(word)
            if child is None:
                return len(words) - number
            node = child
        return 0

    def match(self, key: str, steps: Steps | None = None) -> tuple[_Target, ...]:
        """The targets of all patterns that match the routing key, each once. ``steps``: what it may cost; raises
        :class:`~gateway.amqp.steps.TooManySteps`."""
        found = self._cache.get(key)
        if found is None:
            found = self._walk(key, steps)
            if len(found) <= CACHED_TARGETS:
                if len(self._cache) >= CACHE_MAX:
                    self._cache.clear()
                self._cache[key] = found
        return found

    def _walk(self, key: str, steps: Steps | None) -> tuple[_Target, ...]:
        words = _words(key)
        end = 1 << len(words)
        everywhere = 2 * end - 1
        places: dict[str, int] = {}
        for number, word in enumerate(words):
            places[word] = places.get(word, 0) | 1 << number
        places.pop("*", None)  # in a key they are words that no pattern can name
        places.pop("#", None)
        found: dict[_Target, None] = {}
        todo = [(self._root, 1)]
        while todo:
            node, reached = todo.pop()
            children = node.children
            if steps is not None:
                # A visit takes three times as long as a look at a child.
                steps.spend(3 + min(len(children), len(places)) + (len(node.targets) >> 3))
            if node.targets and reached & end:
                found.update(dict.fromkeys(node.targets))
            if not children:
                continue
            if len(children) < len(places):
                for word, child in children.items():
                    if (after := reached & places.get(word, 0)) != 0:
                        todo.append((child, after << 1))
            else:
                for word, at in places.items():
                    if reached & at and (found_child := children.get(word)) is not None:
                        todo.append((found_child, (reached & at) << 1))
            if (any_word := children.get("*")) is not None and (after := reached << 1 & everywhere) != 0:
                todo.append((any_word, after))
            if (any_words := children.get("#")) is not None:
                todo.append((any_words, everywhere & -(reached & -reached)))
        return tuple(found)


def _words(text: str) -> list[str]:
    """The words of a key or pattern; the empty one has none, as in RabbitMQ."""
    return text.split(".") if text else []

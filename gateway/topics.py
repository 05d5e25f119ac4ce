"""A trie of topic patterns (0-9-1 section 3.1.3.3), for topic exchanges and for scopes of routing keys.

A pattern is words between dots; ``*`` stands for exactly one word, ``#`` for none or more. Patterns share their
prefixes in a trie, and a key is matched by walking it with the *set* of nodes that are reachable so far, so the
work is bounded by words times nodes whatever the patterns are: there is no backtracking.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_Target = TypeVar("_Target")

CACHE_MAX = 1_024
"""Routing keys whose answer is remembered; the memory is emptied when it is full and when a pattern changes."""


class _Node(Generic[_Target]):
    __slots__ = ("children", "is_hash", "targets")

    def __init__(self, is_hash: bool) -> None:
        self.is_hash = is_hash
        self.children: dict[str, _Node[_Target]] = {}
        self.targets: dict[_Target, int] = {}


class TopicTrie(Generic[_Target]):
    """Patterns and their targets. The same pair may be added more than once, and is removed as often."""

    __slots__ = ("_cache", "_root")

    def __init__(self) -> None:
        self._root: _Node[_Target] = _Node(False)
        self._cache: dict[str, tuple[_Target, ...]] = {}

    def add(self, pattern: str, target: _Target) -> None:
        """Let ``pattern`` lead to ``target``."""
        self._cache.clear()
        node = self._root
        for word in _words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(word == "#")
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

    def match(self, key: str) -> tuple[_Target, ...]:
        """The targets of all patterns that match the routing key, each once."""
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            found = self._cache[key] = self._walk(key)
        return found

    def _walk(self, key: str) -> tuple[_Target, ...]:
        nodes = _with_empty_hashes([self._root])
        for word in _words(key):
            following: list[_Node[_Target]] = []
            for node in nodes:
                if node.is_hash:
                    following.append(node)
                children = node.children
                if word != "*" and word != "#" and (child := children.get(word)) is not None:
                    following.append(child)
                if (child := children.get("*")) is not None:
                    following.append(child)
            nodes = _with_empty_hashes(following)
            if not nodes:
                return ()
        return tuple(dict.fromkeys(target for node in nodes for target in node.targets))


def _words(text: str) -> list[str]:
    """The words of a key or pattern; the empty one has none, as in RabbitMQ."""
    return text.split(".") if text else []


def _with_empty_hashes(nodes: list[_Node[_Target]]) -> list[_Node[_Target]]:
    """``nodes``, each once, and what is reached from them by a ``#`` that stands for no word."""
    reached = dict.fromkeys(nodes)
    todo = list(reached)
    while todo:
        child = todo.pop().children.get("#")
        if child is not None and child not in reached:
            reached[child] = None
            todo.append(child)
    return list(reached)

"""Routing keys with which a caller may publish to one exchange."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.amqp.topics import TopicTrie

NAME_MAX: Final = 255
"""Longest routing key, and longest name of an exchange or queue, in bytes."""


class RoutingKeys:
    """All keys, none, or those that match a set of topic patterns."""

    __slots__ = ("_patterns", "every")

    def __init__(self, patterns: Iterable[str] = (), *, every: bool = False) -> None:
        self.every = every
        """Whether any key is allowed."""
        self._patterns: TopicTrie[str] | None = None
        for pattern in () if every else patterns:
            if self._patterns is None:
                self._patterns = TopicTrie()
            self._patterns.add(pattern, pattern)

    def __bool__(self) -> bool:
        """Whether any key can be allowed."""
        return self.every or self._patterns is not None

    def allow(self, key: str) -> bool:
        """Whether the caller may publish with this key."""
        return self.every or (self._patterns is not None and len(key) <= NAME_MAX and bool(self._patterns.match(key)))

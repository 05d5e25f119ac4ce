"""Which messages a subscription wants: a message selector, and a pattern for the routing key. Rules without I/O.

A pattern is words between dots, as topic exchanges have them (0-9-1 section 3.1.3.3): ``*`` stands for exactly one
word, ``#`` for none or more. It is matched by walking the key's words with the *set* of places in the pattern that are
reachable so far, so the work is bounded by words times words for every pattern.
"""

from __future__ import annotations

from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.selectors import Selector, SelectorError
from gateway.config import SubscriptionFilter
from gateway.errors import EncodeError, FrameSyntaxError

PATTERN_MAX: Final = 255
"""Longest pattern, in octets: as long as a routing key may be."""
REMEMBERED: Final = 1_000
"""How many routing keys are remembered with their answer; when they are more, all are forgotten."""


class Filter:
    """The settings, ready for use."""

    __slots__ = ("_keys", "_pattern", "_selector")

    def __init__(self, settings: SubscriptionFilter) -> None:
        """Raises :class:`~gateway.errors.EncodeError`: the selector is malformed, or the pattern is too long; it names
        the setting."""
        size = len(settings.routing_key.encode())
        if size > PATTERN_MAX:
            raise EncodeError(f"filter.routing_key: {size} octets, the limit is {PATTERN_MAX}")
        self._selector: Selector | None = None
        if settings.selector:
            try:
                self._selector = Selector(settings.selector)
            except SelectorError as error:
                raise EncodeError(f"filter.selector: {settings.selector!r:.200}: {error}") from None
        self._pattern: tuple[str, ...] = tuple(settings.routing_key.split(".")) if settings.routing_key else ()
        self._keys: dict[str, bool] = {}

    @property
    def wants_all(self) -> bool:
        """There is nothing to ask."""
        return self._selector is None and not self._pattern

    def refusal(self, routing_key: str, message: Message) -> str | None:
        """Why a message is not wanted; None: it is. A message whose properties cannot be read matches no selector."""
        if self._pattern and not self._key_matches(routing_key):
            return f"the routing key does not match {'.'.join(self._pattern)}"
        if self._selector is not None:
            try:
                if not self._selector.matches(message.properties):
                    return "the selector does not match"
            except FrameSyntaxError as error:
                return f"its properties cannot be read for the selector: {error}"
        return None

    def _key_matches(self, routing_key: str) -> bool:
        found = self._keys.get(routing_key)
        if found is None:
            if len(self._keys) >= REMEMBERED:
                self._keys.clear()
            found = self._keys[routing_key] = matches(self._pattern, routing_key.split(".") if routing_key else [])
        return found


def matches(pattern: tuple[str, ...], words: list[str]) -> bool:
    """Whether the words of a routing key match those of a pattern."""
    places = _through_hashes(pattern, {0})
    for word in words:
        places = _through_hashes(
            pattern,
            {
                place if pattern[place] == "#" else place + 1
                for place in places
                if place < len(pattern) and pattern[place] in ("#", "*", word)
            },
        )
        if not places:
            return False
    return len(pattern) in places


def _through_hashes(pattern: tuple[str, ...], places: set[int]) -> set[int]:
    """And the places behind each ``#``, which may stand for no word at all."""
    for place in sorted(places):
        while place < len(pattern) and pattern[place] == "#" and place + 1 not in places:  # else that one goes on
            place += 1
            places.add(place)
    return places

"""A bound on the work that one decision may cost, for any rules and values.

Work is counted in steps before it is done. A step is what takes about a tenth of a microsecond: one comparison of a
header, one node of a trie, one word of a selector. Counted steps are the same on every machine, so that a message
that is refused on a slow one is refused on a fast one too.
"""

from __future__ import annotations


class TooManySteps(Exception):
    """A decision costs more steps than it may."""


class Steps:
    """The steps that are left."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, count: int) -> None:
        """Take ``count`` steps. Raises :class:`TooManySteps` where fewer are left."""
        self.left -= count
        if self.left < 0:
            raise TooManySteps

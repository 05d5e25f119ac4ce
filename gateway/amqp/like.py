"""LIKE patterns of message selectors, matched in a time that is known beforehand."""

from __future__ import annotations

import re

from gateway.amqp.steps import Steps


class Meter:
    """Where the parts of a selector find the steps that its evaluation may cost; None: as many as it takes."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: Steps | None = None


_LITERAL_STEP = 64
"""Characters of a text that are searched for a literal in one step."""
_PATTERN_STEP = 32
"""Comparisons of a character with one of a pattern in one step."""


class _Piece:
    """What stands between two ``%`` of a pattern: ``skip`` characters, then ``body``, then ``rest`` characters.

    A body without ``_`` is searched as a literal, in a time that grows with the text alone. One that has some between
    its literals may take as long as text times body.
    """

    __slots__ = ("body", "expression", "length", "rest", "skip")

    def __init__(self, characters: list[tuple[str, bool]]) -> None:
        is_any = [wild for _, wild in characters]
        self.skip = is_any.index(False) if False in is_any else len(is_any)
        self.rest = 0 if self.skip == len(is_any) else is_any[::-1].index(False)
        middle = characters[self.skip : len(characters) - self.rest]
        self.body = "".join(character for character, _ in middle)
        self.length = len(characters)
        self.expression: re.Pattern[str] | None = None
        if any(wild for _, wild in middle):
            pattern = "".join("." if wild else re.escape(character) for character, wild in middle)
            self.expression = re.compile(pattern, re.DOTALL)

    def cost(self, octets: int) -> int:
        """Steps of a search in so many characters."""
        if self.expression is None:
            return 1 + octets // _LITERAL_STEP
        return 1 + octets * len(self.body) // _PATTERN_STEP

    def at(self, text: str, start: int) -> int:
        """Where it ends if it stands at ``start``; -1: it does not."""
        end = start + self.length
        if end > len(text):
            return -1
        start += self.skip
        found = text.startswith(self.body, start) if self.expression is None else self.expression.match(text, start)
        return end if found else -1

    def search(self, text: str, start: int) -> int:
        """Where it ends, as far left as it stands behind ``start``; -1: nowhere."""
        start += self.skip
        if self.expression is None:
            begin = text.find(self.body, start)
        else:
            found = self.expression.search(text, start)
            begin = -1 if found is None else found.start()
        end = begin + self.length - self.skip
        return -1 if begin < 0 or end > len(text) else end


class Like:
    """A LIKE pattern: ``%`` is any run, ``_`` any one character. It is cut at its ``%``, and each piece is looked
    for as far left as it goes, which is enough: there is no backtracking, however many ``%`` there are."""

    __slots__ = ("_meter", "_pieces")

    def __init__(self, pattern: str, escape: str | None, meter: Meter) -> None:
        self._meter = meter
        pieces: list[list[tuple[str, bool]]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                literal = next(characters, None)
                if literal is None:
                    raise ValueError("a pattern ends with its escape character")
                pieces[-1].append((literal, False))
            elif character == "%":
                pieces.append([])
            else:
                pieces[-1].append((character, character == "_"))
        self._pieces = [_Piece(piece) for piece in pieces]

    def matches(self, text: str) -> bool:
        """Whether all of ``text`` is of this pattern."""
        first, *rest = self._pieces
        steps = self._meter.steps
        if steps is not None:
            steps.spend(2 + first.length // _LITERAL_STEP)
        end = first.at(text, 0)
        if not rest:
            return end == len(text)
        *between, last = rest
        for piece in between:
            if end < 0:
                return False
            if steps is not None:
                steps.spend(piece.cost(len(text) - end))
            end = piece.search(text, end)
        return 0 <= end <= len(text) - last.length and last.at(text, len(text) - last.length) >= 0

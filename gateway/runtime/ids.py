"""Random ids and random choice: the only source of chance."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final
from uuid import UUID


class Ids:
    """Random bytes, which secrets are made of too, and fractions for jitter. All else is made from these two."""

    __slots__ = ("fraction", "random_bytes")

    def __init__(self) -> None:
        self.random_bytes: Callable[[int], bytes] = os.urandom
        """Return this many bytes that nobody can guess."""
        self.fraction: Callable[[], float] = random.random
        """Return a number from 0 up to, but not including, 1. Not for secrets."""

    def hex(self, size: int) -> str:
        """Return ``size`` random bytes in hexadecimal digits."""
        return self.random_bytes(size).hex()

    def uuid(self) -> UUID:
        """Return a random UUID (version 4)."""
        return UUID(bytes=self.random_bytes(16), version=4)

    def letters(self, count: int, alphabet: str) -> str:
        """Return ``count`` letters that nobody can guess, each as likely as the others. At most 256 kinds."""
        fair = 256 - 256 % len(alphabet)  # bytes above that would make the first letters likelier
        found = ""
        while len(found) < count:
            found += "".join(alphabet[byte % len(alphabet)] for byte in self.random_bytes(count) if byte < fair)
        return found[:count]

    def between(self, least: float, most: float) -> float:
        """Return a number between these two. Not for secrets."""
        return least + (most - least) * self.fraction()

    def generator(self) -> random.Random:
        """Return a generator of its own, for places that draw often. Not for secrets."""
        return random.Random(self.random_bytes(32))  # noqa: S311  # not for secrets


ids: Final = Ids()
"""The chance of this process."""


def random_bytes(size: int) -> bytes:
    """Return ``size`` bytes that nobody can guess: the default of those that are given a source of bytes."""
    return ids.random_bytes(size)


def fraction() -> float:
    """Return a number from 0 up to, but not including, 1: for those that are given a source of chance."""
    return ids.fraction()

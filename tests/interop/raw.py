"""Messages whose properties are given as octets."""

from __future__ import annotations

import pika


class Octets(pika.BasicProperties):  # type: ignore[misc]  # pika is not typed
    """Properties that pika sends as they are: flags and property list."""

    def __init__(self, octets: bytes) -> None:
        super().__init__()
        self._octets = octets

    def encode(self) -> list[bytes]:
        """What pika puts into the content header."""
        return [self._octets]

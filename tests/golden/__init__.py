"""Transcripts of real brokers and foreign clients, octet by octet.

Each ``NAME.json`` is one connection: who the broker and the client were, what they did, and ``pieces``, a list of
``[who spoke, hex]`` in the order in which a relay between the two read them. A piece is what came before the
other side spoke, not a frame. ``python -m tests.servers.record`` makes them anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Transcript:
    """One recorded connection."""

    name: str
    broker: str
    version: str
    client: str
    about: str
    pieces: tuple[tuple[str, bytes], ...]
    """``("client" or "server", octets)``"""

    @property
    def from_client(self) -> bytes:
        """All that the client sent, protocol header first."""
        return b"".join(octets for who, octets in self.pieces if who == "client")

    @property
    def from_server(self) -> bytes:
        """All that the broker sent (0-10: its own protocol header first)."""
        return b"".join(octets for who, octets in self.pieces if who == "server")


def names(version: str = "") -> list[str]:
    """All transcripts, or those of a version; sorted."""
    found = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [name for name in found if not version or load(name).version == version]


def load(name: str) -> Transcript:
    """The transcript ``NAME.json``."""
    document = json.loads((FOLDER / f"{name}.json").read_text())
    pieces = tuple((who, bytes.fromhex(octets)) for who, octets in document.pop("pieces"))
    return Transcript(name=name, pieces=pieces, **document)

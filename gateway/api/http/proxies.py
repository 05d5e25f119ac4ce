"""Whose request a proxy passes on: ``Forwarded`` (RFC 7239) or ``X-Forwarded-For``, from proxies that are trusted.

Each proxy adds at the end whom the request came from. So the header is read from its end, for as long as the one who
added an entry is trusted, and the first address that is not is the caller's. Anybody may have written what is left of
it. An entry that names no address (``unknown``, ``_hidden``), and an error, end the reading: the caller counts as the
trusted proxy that added it. So does the caller of a trusted proxy that adds nothing.

A caller may send the header that its proxy does not write. Where both are there and name different callers, neither
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from gateway.errors import ConfigurationError

HOPS_MAX: Final = 32
"""Most entries that are read."""
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = re.compile(rf'({_WORD})=(?:({_WORD})|"((?:[^"\\]|\\.)*)")')
_ESCAPED = re.compile(r"\\(.)")
_SPACE = re.compile(r"[ \t]*")
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::(?:\d{1,5}|_[0-9A-Za-z._-]+))?")
"""An address, in brackets if it is of IPv6, and a port."""


class Proxies:
    """The proxies that are trusted."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises ConfigurationError: one is neither an address nor a network."""
        self._networks = [_network(text) for text in networks]
        self.trusts = lru_cache(4_096)(self._trusts) if self._networks else _nobody

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _trusts(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks if network.version == address.version)

    def caller(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the address of the caller of a request.

        Args:
            peer: the address that the connection comes from.
            headers: names in lower case.
        """
        if not self.trusts(peer):
            return peer
        lines = [value for name, value in headers if name == b"forwarded"]
        others = [value for name, value in headers if name == b"x-forwarded-for"]
        found = self._walk(peer, _forwarded(lines)) if lines else None
        other = self._walk(peer, _x_forwarded_for(others)) if others else None
        if found is not None and other is not None and found != other:
            return peer
        return found or other or peer

    def _walk(self, peer: str, nodes: Iterable[str | None]) -> str:
        for count, node in enumerate(nodes):
            if node is None or count >= HOPS_MAX or not self.trusts(peer):
                break
            peer = node
        return peer


def _nobody(host: str) -> bool:
    return False


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigurationError(
            f"http.trusted_proxies: {text!r} is neither an address nor a network such as 10.1.0.0/16: {error}"
        ) from None


def _x_forwarded_for(lines: Sequence[bytes]) -> Iterable[str | None]:
    """The addresses from the last one on; None: an entry that names none."""
    for line in reversed(lines):
        for entry in reversed(line.decode("latin-1").split(",")):
            text = entry.strip(" \t")
            yield _address(text) or _of_node(text)


def _forwarded(lines: Sequence[bytes]) -> Iterable[str | None]:
    """The same of ``Forwarded``. A line with an error names nobody, for where its entries end is not certain."""
    for line in reversed(lines):
        for entry in reversed(_entries(line.decode("latin-1")) or (None,)):
            yield _of_node(entry) if entry else None


def _entries(text: str) -> list[str | None] | None:
    """What ``for`` says in each entry of a line (None: nothing); None: the line has an error."""
    found: list[str | None] = []
    position = 0
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text[position : position + 1] not in ("", ","):  # a list may have empty entries
            names: dict[str, str] = {}
            while (match := _PAIR.match(text, position)) is not None:
                name, token, quoted = match.groups()
                if name.lower() in names:
                    return None
                names[name.lower()] = token if quoted is None else _ESCAPED.sub(r"\1", quoted)
                position = match.end()
                if text[position : position + 1] != ";":
                    break
                position += 1
            else:
                return None
            found.append(names.get("for"))
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if position == len(text):
            return found
        if text[position] != ",":
            return None
        position += 1


def _of_node(text: str) -> str | None:
    """The address of a node (RFC 7239 section 6); None: it has none."""
    match = _NODE.fullmatch(text)
    return _address(match[1] or match[2]) if match else None


def _address(text: str) -> str | None:
    """An address as it is counted and logged; None: it is not an address."""
    if "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
